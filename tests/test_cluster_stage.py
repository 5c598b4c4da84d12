"""Who holds the cluster: written while it is held, and for as long as it may still be there."""

from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from tasks import cluster
from tasks.cancel import read_holder
from tasks.cluster import ray_cluster
from tasks.context import Context
from tests.fakes import IMAGE
from tests.samples import make_context


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    context = make_context(tmp_path)
    context.home.create()
    monkeypatch.setattr(cluster, "start_cluster", lambda *_: None)
    monkeypatch.setattr(cluster, "release_cluster", lambda *_: None)
    return context


def holder_of(context: Context) -> object:
    return read_holder(context.home.runtime / f"cluster-{context.config.name}.lock")


def test_the_holder_is_named_while_it_works_and_not_after(context: Context) -> None:
    with disable_run_logger(), ray_cluster(context, IMAGE):
        assert holder_of(context)
    assert holder_of(context) is None


def test_a_failure_gives_the_cluster_back_too(context: Context) -> None:
    with pytest.raises(RuntimeError), disable_run_logger(), ray_cluster(context, IMAGE):
        raise RuntimeError("training failed")
    assert holder_of(context) is None


@pytest.mark.parametrize("fails", [True, False])
def test_a_cluster_that_could_not_be_released_keeps_its_holder(
    context: Context, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def refuse(*_: object) -> None:
        raise ConnectionError("the API is down")

    monkeypatch.setattr(cluster, "release_cluster", refuse)
    with pytest.raises(ConnectionError), disable_run_logger(), ray_cluster(context, IMAGE):
        if fails:
            raise RuntimeError("training failed")
    assert holder_of(context)
