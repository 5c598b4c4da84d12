"""Object stores, on a file system and on S3 (moto's server over HTTP), and adapters in them."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from botocore.config import Config
from moto.server import ThreadedMotoServer

from tasks import attempts, publication
from tasks.adapters import read_intact
from tasks.attempts import Attempt
from tasks.backends.object_store import FileStore
from tasks.backends.protocols import ObjectStore
from tasks.backends.s3_store import S3Store
from tests.samples import make_context, reason, write_adapter

DAY_S = 86_400


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(moto: str) -> Any:
    httpx.post(f"{moto}/moto-api/reset", timeout=10).raise_for_status()
    client = boto3.client(
        "s3", "us-east-1", endpoint_url=moto, aws_access_key_id="k", aws_secret_access_key="s",
        config=Config(retries={"mode": "standard", "max_attempts": 4}),
    )  # fmt: skip
    client.create_bucket(Bucket="mazes")
    return client


@pytest.fixture(params=["files", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "files":
        return FileStore(tmp_path / "store")
    return S3Store("mazes", "home/one", request.getfixturevalue("s3"))


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return write_adapter(make_context(tmp_path / "home"), 2)


def test_what_is_there_is_not_created_again(store: ObjectStore) -> None:
    assert store.read("a/1.json") is None
    assert store.create("a/1.json", b"first")
    assert not store.create("a/1.json", b"second")
    assert store.read("a/1.json") == b"first"
    store.delete("a/1.json")
    store.delete("a/1.json")
    assert store.create("a/1.json", b"third")


def test_of_many_that_take_an_attempt_each_gets_one_of_its_own(store: ObjectStore) -> None:
    def take(number: int) -> int:
        return attempts.take_next(store, "night", f"flow-{number}", 4).number

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(take, range(12))) == list(range(1, 13))
    third = store.read("3.json")
    assert third and Attempt.model_validate_json(third).submission_id == "night-attempt-3"


def test_of_many_that_create_the_same_object_one_wins(store: ObjectStore) -> None:
    barrier = threading.Barrier(8)

    def claim(who: int) -> list[int]:
        barrier.wait()
        return [n for n in range(10) if store.create(f"attempts/{n}.json", str(who).encode())]

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(claim, range(8)))
    assert sorted(number for mine in won for number in mine) == list(range(10))
    for who, mine in enumerate(won):
        assert {store.read(f"attempts/{number}.json") for number in mine} <= {str(who).encode()}


def test_names_are_listed_in_order_and_only_those_below(store: ObjectStore) -> None:
    for key in ("b/2", "a/1", "b/10", "bb"):
        store.create(key, b"")
    assert store.keys("b/") == ["b/10", "b/2"]
    assert store.keys("b") == ["b/10", "b/2", "bb"]
    assert store.keys("nothing/") == []


def test_large_files_go_in_parts_and_come_back_as_they_were(
    store: ObjectStore, tmp_path: Path
) -> None:
    whole = tmp_path / "large"
    whole.write_bytes(bytes(range(256)) * (40 * 2**12))  # 40 MiB: three parts
    store.upload("large", whole)
    store.download("large", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == whole.read_bytes()
    with pytest.raises(LookupError, match="has no absent"):
        store.download("absent", tmp_path / "absent")


def test_a_listing_has_all_of_ten_thousand_names(s3: Any) -> None:
    store = S3Store("mazes", "", s3)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.create(f"steps/{n:05}", b""), range(10_000)))
    assert store.keys("steps/") == [f"steps/{n:05}" for n in range(10_000)]


@pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/../b", "a/.hidden", "a b", "a" * 600])
def test_a_name_that_leads_elsewhere_is_refused(store: ObjectStore, key: str) -> None:
    assert "is no name of an object" in reason(lambda: store.create(key, b""))
    assert "is no name of an object" in reason(lambda: store.delete(key))


@pytest.mark.parametrize(("num_faults", "is_taken"), [(2, True), (9, False)])
def test_errors_that_pass_are_waited_out_and_others_are_one_line(
    s3: Any, num_faults: int, is_taken: bool
) -> None:
    faults = [503] * num_faults

    def answer(**_: Any) -> Any:
        from botocore.awsrequest import AWSResponse

        status = faults.pop() if faults else 0
        return AWSResponse("", status, {}, _Raw()) if status else None

    s3.meta.events.register("before-send.s3.PutObject", answer)
    store = S3Store("mazes", "", s3)
    if is_taken:
        assert store.create("a", b"x") and store.read("a") == b"x"
    else:
        said = reason(lambda: store.create("a", b"x"))
        assert said.startswith("s3://mazes/: ") and "look at the credentials" in said


class _Raw:
    """The body of an answer without one."""

    def stream(self, **_: Any) -> Iterator[bytes]:
        return iter(())


def test_a_bucket_that_is_not_there_is_named(s3: Any) -> None:
    said = reason(lambda: S3Store("no-such-bucket", "x", s3).keys(""))
    assert said.startswith("s3://no-such-bucket/x/: ") and "NoSuchBucket" in said


def test_an_adapter_is_published_once_and_comes_back_whole(
    store: ObjectStore, adapter: Path, tmp_path: Path
) -> None:
    manifest = read_intact(adapter)
    assert manifest
    place = publication.publish(store, adapter)
    assert publication.publish(store, adapter) == place == f"adapters/{manifest.digest}/"
    assert publication.published(store) == [manifest.digest]
    assert publication.fetch(store, manifest.digest, tmp_path / "back") == manifest
    assert read_intact(tmp_path / "back") == manifest
    assert sorted(path.name for path in tmp_path.glob(".fetch-*")) == []
    with pytest.raises(LookupError, match=f"there are: {manifest.digest[:12]}"):
        publication.fetch(store, "0" * 64, tmp_path / "none")


class Dies(BaseException):
    """A process that is killed."""


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_publication_that_was_cut_off_is_not_seen_and_is_finished_by_the_next(
    store: ObjectStore, adapter: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    done = 0

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any) -> Any:
            nonlocal done
            if done == after:
                raise Dies
            done += 1
            return call(*arguments)

        return act

    with monkeypatch.context() as mortal:
        mortal.setattr(store, "upload", dying(store.upload))
        mortal.setattr(store, "create", dying(store.create))
        with pytest.raises(Dies):
            publication.publish(store, adapter)
    assert publication.published(store) == []
    publication.publish(store, adapter)
    assert len(publication.published(store)) == 1


def test_a_file_that_was_damaged_in_the_store_is_refused(
    store: ObjectStore, adapter: Path, tmp_path: Path
) -> None:
    place = publication.publish(store, adapter)
    (tmp_path / "other").write_bytes(b"other weights")
    store.upload(f"{place}adapter_model.safetensors", tmp_path / "other")
    digest = publication.published(store)[0]
    said = reason(lambda: publication.fetch(store, digest, tmp_path / "back"))
    assert said.endswith("adapter_model.safetensors is damaged")
    assert not (tmp_path / "back").exists()


def test_what_is_not_wanted_goes_after_its_days_and_not_while_it_is_wanted_again(
    store: ObjectStore, adapter: Path
) -> None:
    place = publication.publish(store, adapter)
    (digest,) = publication.published(store)
    assert publication.retire(store, [digest], 7, now_s=0) == []
    assert publication.retire(store, [], 7, now_s=0) == []
    assert publication.retire(store, [], 7, now_s=6 * DAY_S) == []
    publication.publish(store, adapter)  # it is wanted again: its days start anew
    assert publication.retire(store, [], 7, now_s=8 * DAY_S) == []
    assert json.loads(store.read(f"{place}retired.json") or b"") == {"since_s": 8 * DAY_S}
    assert publication.retire(store, [], 7, now_s=15 * DAY_S) == [digest]
    assert store.keys("adapters/") == [] and publication.published(store) == []
