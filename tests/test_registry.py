"""The model registry on a real MLflow server: one version for each adapter, aliases last, and
nothing that a crash and a second try could double."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from mlflow.exceptions import MlflowException

from tasks.backends.mlflow_tracker import MlflowTracker
from tasks.ports import any_free
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(180)
RUN = "smoke-0123456789"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An MLflow server with SQLite, on a free port of the loopback."""
    folder = tmp_path_factory.mktemp("mlflow")
    port = any_free()
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
        *("--serve-artifacts", "--artifacts-destination", str(folder / "artifacts")),
    ]
    private = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **private},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(lambda: _answers(f"http://127.0.0.1:{port}/health", server), timeout_s=120)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)


def _answers(url: str, server: subprocess.Popen[bytes]) -> bool:
    assert server.poll() is None, "the MLflow server ended"
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


@pytest.fixture
def tracker(url: str, monkeypatch: pytest.MonkeyPatch) -> MlflowTracker:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    tracker = MlflowTracker()
    tracker.open(RUN, {}, {})
    return tracker


@pytest.fixture
def name() -> str:
    """A model of its own for each test."""
    return f"model-{uuid4().hex[:8]}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    adapter = tmp_path / "step_6"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"weights")
    return adapter


class Lost(ConnectionError):
    """The answer of the server did not arrive."""


def losing_the_answer(call: Callable[..., Any]) -> Callable[..., Any]:
    """The server does what it is asked to and the client never learns of it."""

    def then_fail(*arguments: Any, **named: Any) -> None:
        call(*arguments, **named)
        raise Lost

    return then_fail


def digest_of(letter: str) -> str:
    return letter * 64


def versions(tracker: MlflowTracker, name: str) -> list[Any]:
    found = tracker._client.search_model_versions(f"name = '{name}'")
    return sorted(found, key=lambda version: int(version.version))


def aliases(tracker: MlflowTracker, name: str) -> dict[str, str]:
    """Alias to the digest of the version it names."""
    model = tracker._client.get_registered_model(name)
    found = {}
    for alias in model.aliases:
        version = tracker._client.get_model_version_by_alias(name, alias)
        found[alias] = version.tags["adapter_digest"]
    return found


def register(tracker: MlflowTracker, name: str, letter: str, folder: Path, **tags: str) -> str:
    return tracker.register(RUN, name, digest_of(letter), folder, tags)


def test_an_adapter_is_one_version_however_often_it_is_registered(
    tracker: MlflowTracker, name: str, folder: Path
) -> None:
    tracker.open("another-run", {}, {})
    first = register(tracker, name, "a", folder, gate="rejected", run_id=RUN)
    second = tracker.register("another-run", name, digest_of("a"), folder, {"gate": "promoted"})
    other = register(tracker, name, "b", folder)
    assert (first, second, other) == ("1", "1", "2")
    found = versions(tracker, name)
    assert [version.tags["adapter_digest"] for version in found] == [digest_of("a"), digest_of("b")]
    assert found[0].tags["gate"] == "promoted" and found[0].tags["run_id"] == RUN


def test_a_version_holds_the_files_of_its_adapter_also_when_a_step_is_trained_anew(
    tracker: MlflowTracker, name: str, folder: Path, tmp_path: Path
) -> None:
    register(tracker, name, "a", folder)
    (folder / "adapter_model.safetensors").write_bytes(b"other weights")
    register(tracker, name, "b", folder)
    run_id = versions(tracker, name)[0].run_id
    kept = [version.source.rsplit("/", 2)[-2:] for version in versions(tracker, name)]
    assert kept == [["adapters", "a" * 16], ["adapters", "b" * 16]]
    for letter, content in (("a", b"weights"), ("b", b"other weights")):
        place = f"adapters/{letter * 16}/adapter_model.safetensors"
        file = tracker._client.download_artifacts(run_id, place, str(tmp_path))
        assert Path(file).read_bytes() == content


@pytest.mark.parametrize(
    "call", ["create_registered_model", "log_artifacts", "create_model_version"]
)
def test_a_lost_answer_and_a_second_try_make_one_version(
    tracker: MlflowTracker, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with monkeypatch.context() as away:
        away.setattr(tracker._client, call, losing_the_answer(getattr(tracker._client, call)))
        with pytest.raises(Lost):
            register(tracker, name, "a", folder, gate="promoted")
    assert register(tracker, name, "a", folder, gate="promoted") == "1"
    (version,) = versions(tracker, name)
    assert version.tags == {"adapter_digest": digest_of("a"), "gate": "promoted"}
    assert version.status == "READY"


def test_tags_that_a_crash_kept_from_being_written_come_with_the_next_try(
    tracker: MlflowTracker, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = tracker._client.set_model_version_tag
    with monkeypatch.context() as away:
        away.setattr(tracker._client, "set_model_version_tag", losing_the_answer(setting))
        with pytest.raises(Lost):
            register(tracker, name, "a", folder, gate="promoted", step="6")
    register(tracker, name, "a", folder, gate="promoted", step="6")
    (version,) = versions(tracker, name)
    assert version.tags == {"adapter_digest": digest_of("a"), "gate": "promoted", "step": "6"}


def test_of_two_flows_that_register_at_the_same_time_one_version_stays(
    tracker: MlflowTracker, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other flow creates its version after we looked and before we create ours."""
    creating = tracker._client.create_model_version
    calls: list[str] = []

    def overtaken(*arguments: Any, **named: Any) -> Any:
        if not calls:
            calls.append("other")
            assert register(tracker, name, "a", folder) == "1"
        return creating(*arguments, **named)

    monkeypatch.setattr(tracker._client, "create_model_version", overtaken)
    assert register(tracker, name, "a", folder) == "1"
    assert [str(version.version) for version in versions(tracker, name)] == ["1"]


def test_aliases_follow_and_a_rollback_moves_them_back(
    tracker: MlflowTracker, name: str, folder: Path
) -> None:
    for letter in "ab":
        register(tracker, name, letter, folder)
    a, b = digest_of("a"), digest_of("b")
    seen = []
    for champion, previous in ((a, None), (b, a), (b, a), (a, b), (a, None)):
        tracker.point_aliases(name, champion, previous)
        seen.append(aliases(tracker, name))
    assert seen == [
        {"champion": a},
        {"champion": b, "previous": a},
        {"champion": b, "previous": a},
        {"champion": a, "previous": b},
        {"champion": a},
    ]


def test_the_champion_moves_last_and_a_second_try_ends_as_the_first_would(
    tracker: MlflowTracker, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for letter in "abc":
        register(tracker, name, letter, folder)
    a, b, c = (digest_of(letter) for letter in "abc")
    tracker.point_aliases(name, b, a)
    moving = tracker._client.set_registered_model_alias
    with monkeypatch.context() as away:
        away.setattr(tracker._client, "set_registered_model_alias", losing_the_answer(moving))
        with pytest.raises(Lost):
            tracker.point_aliases(name, c, b)
    assert aliases(tracker, name) == {"champion": b, "previous": b}
    tracker.point_aliases(name, c, b)
    assert aliases(tracker, name) == {"champion": c, "previous": b}


def test_an_alias_never_names_an_adapter_that_is_not_registered(
    tracker: MlflowTracker, name: str, folder: Path
) -> None:
    register(tracker, name, "a", folder)
    tracker.point_aliases(name, digest_of("a"), None)
    with pytest.raises(LookupError, match="register it first"):
        tracker.point_aliases(name, digest_of("f"), digest_of("a"))
    assert aliases(tracker, name) == {"champion": digest_of("a")}
    tracker.point_aliases(name, digest_of("a"), digest_of("f"))
    assert aliases(tracker, name) == {"champion": digest_of("a")}


def test_a_refusal_of_the_server_is_not_taken_for_a_known_model(
    tracker: MlflowTracker, folder: Path
) -> None:
    with pytest.raises(MlflowException, match="name"):
        register(tracker, "a/b:c", "a", folder)
