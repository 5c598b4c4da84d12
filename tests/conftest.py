"""Fixtures that several files share.

This file is read in both environments: what only one of them has is imported where it is used.
"""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The whole chain, run once; see `Chain`."""
    from tests.chains import run_chain

    with run_chain(tmp_path_factory.mktemp("chain")) as chain:
        yield chain


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser without a screen."""
    from tests.browsers import launched_browser

    with launched_browser() as browser:
        yield browser
