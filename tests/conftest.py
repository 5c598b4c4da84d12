"""Fixtures that several files share."""

from tests.chains import chain

__all__ = ["chain"]
