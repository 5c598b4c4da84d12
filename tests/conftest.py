"""Fixtures that several files share."""

from tests.browsers import browser
from tests.chains import chain

__all__ = ["browser", "chain"]
