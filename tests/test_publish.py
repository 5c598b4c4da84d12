"""The stage that publishes: what serves is in the store, what served last stays, the rest goes."""

from dataclasses import replace
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from configs.loader import load_config
from tasks import publication
from tasks.adapters import read_intact
from tasks.backends.object_store import FileStore
from tasks.backends.protocols import Endpoint
from tasks.backends.s3_store import S3Store
from tasks.backends.wiring import make_backends
from tasks.context import Context
from tasks.home import Home
from tasks.hosted import Hosted, remember
from tasks.publish import publish_hosted
from tasks.records import HostRecord, Promotion
from tests.samples import make_context, write_adapter


def hosted(context: Context, step: int) -> HostRecord:
    """As if the adapter of this step had just been put to service."""
    write_adapter(context, step)
    manifest = read_intact(context.run.adapter(step))
    assert manifest
    digest = manifest.digest
    word = Promotion.now("gate", "gate", "it solves more")
    remember(
        context.home,
        Hosted(run_id=context.run.run_id, step=step, adapter_digest=digest, promotion=word),
    )
    return HostRecord(
        inputs="i",
        endpoint=Endpoint(url="http://127.0.0.1:1/v1", models={}),
        adapter_name="maze-solver",
        adapter_digest=digest,
        gate="g",
        promotion=word,
    )


def publish(context: Context, record: HostRecord) -> str | None:
    with disable_run_logger():
        return publish_hosted.fn(context, record)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    kept = make_context(tmp_path, store__url=str(tmp_path / "store"), store__grace_days=0)
    kept.home.create()
    return replace(kept, backends=replace(kept.backends, store=FileStore(tmp_path / "store")))


def test_champion_and_previous_are_kept_and_what_served_before_them_goes(context: Context) -> None:
    digests = []
    for step in (2, 4, 6):
        record = hosted(context, step)
        digests.append(record.adapter_digest)
        assert publish(context, record) == f"adapters/{record.adapter_digest}/"
    store = context.backends.store
    assert store and sorted(publication.published(store)) == sorted(digests[1:])


def test_an_adapter_that_serves_no_more_is_left_to_its_successor(context: Context) -> None:
    late = hosted(context, 2)
    hosted(context, 4)
    assert publish(context, late) is None
    assert context.backends.store and publication.published(context.backends.store) == []


def test_without_a_store_nothing_is_published(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    context.home.create()
    assert publish(context, hosted(context, 2)) is None


@pytest.mark.parametrize(("url", "kind"), [("s3://mazes/a/b", S3Store), ("/fsx/store", FileStore)])
def test_the_address_says_which_store(tmp_path: Path, url: str, kind: type) -> None:
    config = load_config("smoke", {"store.url": url})
    assert isinstance(make_backends(config, Home(tmp_path)).store, kind)


@pytest.mark.parametrize("url", ["relative", "/a/../b", "s3://", "s3://A_B", "file:///x", "/"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"store\.url"):
        load_config("smoke", {"store.url": url})
