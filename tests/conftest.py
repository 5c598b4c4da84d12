"""Fixtures that several files share.

This file is read in both environments: what only one of them has is imported where it is used.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The whole chain, run once; see `Chain`."""
    from tests.chains import run_chain

    with run_chain(tmp_path_factory.mktemp("chain")) as chain:
        yield chain


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where buildah keeps its images meanwhile."""
    from tests.registries import images_in

    folder = tmp_path_factory.mktemp("images")
    with images_in(folder):
        yield folder


@pytest.fixture(scope="module")
def host(images: Path) -> Iterator[str]:
    """A real registry's host and port."""
    from tests.registries import registry

    with registry(images) as host:
        yield host


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser without a screen."""
    from tests.browsers import launched_browser

    with launched_browser() as browser:
        yield browser
