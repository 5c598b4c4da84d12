"""The door: only what was proven answers, a switch drops nothing, and bad requests are refused."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from configs.loader import load_config
from configs.serving import DoorStatus, ServedAdapter, Serving
from containers.server import bodies
from containers.server import door as doors
from containers.server.door import DIGEST_HEADER, build
from containers.trainer.inference import free_port
from tests.trainer.stand_in_replica import PROBE, SOLUTION, STOP, StandInReplica
from tests.waiting import wait_until

ALIAS = "maze-solver"
ASKED = {"model": ALIAS, "messages": [{"role": "user", "content": "?"}]}


class Hosting:
    """A door on a port with its serving file."""

    def __init__(self, root: Path, replicas: list[StandInReplica]) -> None:
        self._root = root
        self._replicas = replicas
        self._generation = 0
        self.file = root / "serving.json"
        self.port = free_port()

    def adapter(self, letter: str) -> ServedAdapter:
        folder = self._root / letter
        folder.mkdir(exist_ok=True)
        (folder / "adapter_config.json").write_text("{}")
        return ServedAdapter(digest=letter * 64, folder=folder)

    def wish(self, champion: ServedAdapter, previous: ServedAdapter | None = None) -> int:
        self._generation += 1
        serving = Serving(
            generation=self._generation,
            alias=ALIAS,
            base_digest="0" * 64,
            champion=champion,
            previous=previous,
            probes=(PROBE,),
            replicas=tuple(replica.socket for replica in self._replicas),
            mazes=load_config("smoke").mazes,
            max_action_tokens=8,
        )
        temporary = self.file.with_suffix(".new")
        temporary.write_text(serving.model_dump_json())
        temporary.replace(self.file)
        return self._generation

    def get(self, path: str, **arguments: Any) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=30, **arguments)

    def ask(self, body: Any = ASKED, **arguments: Any) -> httpx.Response:
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        return httpx.post(url, json=body, timeout=30, **arguments)

    def status(self) -> DoorStatus:
        return DoorStatus.model_validate_json(self.get("/status").text)

    def is_served(self, generation: int) -> bool:
        replicas = self.status().replicas
        return all(replica.proven == generation for replica in replicas)


@pytest.fixture
def replicas() -> Iterator[list[StandInReplica]]:
    with ExitStack() as stack:
        yield [stack.enter_context(StandInReplica().serve()) for _ in range(2)]


@contextmanager
def stands(
    replicas: list[StandInReplica], root: Path, *, is_proven: bool = True
) -> Iterator[Hosting]:
    """A door in front of replicas that are asked to serve adapter a."""
    hosting = Hosting(root, replicas)
    hosting.wish(hosting.adapter("a"))
    config = uvicorn.Config(
        build(hosting.file, hosting.port), port=hosting.port, log_level="critical"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        wait_until(lambda: hosting.is_served(1) or not is_proven)
        yield hosting
    finally:
        server.should_exit = True
        thread.join(20)


@pytest.fixture
def hosting(
    tmp_path: Path, replicas: list[StandInReplica], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hosting]:
    monkeypatch.setattr(doors, "_LOOK_EVERY_S", 0.05)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with stands(replicas, tmp_path) as hosting:
        yield hosting


def test_the_alias_is_the_champion_and_every_answer_says_whose_it_is(hosting: Hosting) -> None:
    answer = hosting.ask()
    assert answer.headers[DIGEST_HEADER] == "a" * 64
    assert answer.json()["model"] == f"{ALIAS}-{'a' * 12}"
    assert answer.json()["choices"][0]["message"]["content"] == SOLUTION[0]
    base = hosting.ask({**ASKED, "model": "base"})
    assert base.headers[DIGEST_HEADER] == "0" * 64
    assert base.json()["choices"][0]["message"]["content"] == STOP
    listed = {entry["id"]: entry["root"] for entry in hosting.get("/v1/models").json()["data"]}
    assert listed == {ALIAS: "a" * 64, "base": "0" * 64, f"{ALIAS}-{'a' * 12}": "a" * 64}


def test_a_stream_is_passed_on_and_says_whose_it_is(hosting: Hosting) -> None:
    answer = hosting.ask({**ASKED, "stream": True})
    assert answer.headers[DIGEST_HEADER] == "a" * 64
    assert answer.text.endswith("data: [DONE]\n\n")
    assert all(replica.in_flight == 0 for replica in hosting.status().replicas)


def test_a_switch_under_load_fails_no_request_and_keeps_the_one_before_at_hand(
    hosting: Hosting, replicas: list[StandInReplica]
) -> None:
    seen: list[tuple[int, str]] = []
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            answer = hosting.ask()
            seen.append((answer.status_code, answer.headers.get(DIGEST_HEADER, "")))

    askers = [threading.Thread(target=load) for _ in range(4)]
    for asker in askers:
        asker.start()
    first, second, third = (hosting.adapter(letter) for letter in "abc")
    for generation, (champion, previous) in enumerate([(second, first), (third, second)], start=2):
        assert hosting.wish(champion, previous) == generation
        wait_until(lambda: hosting.is_served(generation))  # noqa: B023  awaited in the loop
        count = len(seen)
        wait_until(lambda: len(seen) > count + 8)  # noqa: B023
    stop.set()
    for asker in askers:
        asker.join(30)
    assert {status for status, _ in seen} == {200}
    order = [digest[0] for _, digest in seen]
    assert set(order) == {"a", "b", "c"} and order[-1] == "c"
    names = {f"{ALIAS}-{letter * 12}" for letter in "bc"}
    wait_until(lambda: all(set(replica.adapters) == names for replica in replicas))


def test_a_server_that_plays_as_the_base_never_answers_for_the_champion(
    hosting: Hosting, replicas: list[StandInReplica]
) -> None:
    for replica in replicas:
        replica.plays_as_base = True
    hosting.wish(hosting.adapter("b"), hosting.adapter("a"))
    wait_until(lambda: all(r.refuted == 2 for r in hosting.status().replicas))
    assert all("as the base does" in r.fault for r in hosting.status().replicas)
    assert hosting.status().serving == 1
    assert hosting.ask().headers[DIGEST_HEADER] == "a" * 64


def test_an_adapter_that_does_not_load_is_named(hosting: Hosting) -> None:
    missing = ServedAdapter(digest="b" * 64, folder=Path("/nonexistent"))
    hosting.wish(missing, hosting.adapter("a"))
    wait_until(lambda: all(r.refuted == 2 for r in hosting.status().replicas))
    assert "it does not load /nonexistent" in hosting.status().replicas[0].fault
    assert hosting.ask().status_code == 200


def test_a_server_that_lost_its_adapter_gets_it_back_before_it_is_asked(
    hosting: Hosting, replicas: list[StandInReplica]
) -> None:
    replicas[0].requests.clear()
    replicas[0].forget()
    wait_until(lambda: replicas[0].requests)  # the proof
    for _ in range(6):
        assert hosting.ask().status_code == 200
    wait_until(lambda: hosting.is_served(1))
    assert set(replicas[0].adapters) == {f"{ALIAS}-{'a' * 12}"}


def test_a_server_that_dies_in_a_request_is_left_and_another_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "_LOOK_EVERY_S", 0.05)
    dying = StandInReplica()  # its socket; the server itself is another process
    command = [sys.executable, "-m", "tests.trainer.stand_in_replica", str(dying.socket)]
    process = subprocess.Popen(command)
    try:
        with StandInReplica().serve() as staying, stands([dying, staying], tmp_path) as hosting:
            answers: list[int] = []
            askers = [
                threading.Thread(target=lambda: answers.append(hosting.ask().status_code))
                for _ in range(4)
            ]
            for asker in askers:
                asker.start()
            wait_until(lambda: hosting.status().replicas[0].in_flight > 0)
            process.kill()
            for asker in askers:
                asker.join(60)
            assert answers == [200] * 4
            assert hosting.get("/health").status_code == 200
            assert "does not answer" in hosting.status().replicas[0].fault
    finally:
        process.kill()
        process.wait()
        dying.socket.unlink()


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({**ASKED, "model": "nobody"}, 404, "no such model; there are: maze-solver, base"),
        ({**ASKED, "model": "/etc/passwd"}, 404, "no such model"),
        ({**ASKED, "model": ["a"]}, 404, "no such model"),
        ([1, 2], 400, "no JSON object"),
    ],
)
def test_a_request_for_what_is_not_there_is_refused(
    hosting: Hosting, body: Any, status: int, word: str
) -> None:
    answer = hosting.ask(body)
    assert answer.status_code == status
    assert word in answer.json()["error"]["message"]


@pytest.mark.parametrize("raw", [b"{", b"\xff", b"[" * 100_000, b'{"temperature": NaN}'])
def test_what_is_no_json_is_refused(hosting: Hosting, raw: bytes) -> None:
    url = f"http://127.0.0.1:{hosting.port}/v1/chat/completions"
    assert httpx.post(url, content=raw, timeout=30).status_code == 400
    assert hosting.ask().status_code == 200


def test_a_request_that_is_too_large_is_refused_without_being_kept(hosting: Hosting) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:," + "a" * (50 * 2**20)}}
    body = {**ASKED, "messages": [{"role": "user", "content": [picture]}]}
    assert hosting.ask(body).status_code == 413
    assert hosting.ask().status_code == 200


def test_a_slow_client_is_refused_in_time(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "_TIMEOUT_S", 0.2)
    with socket.create_connection(("127.0.0.1", hosting.port), timeout=30) as client:
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"
        client.sendall(head.encode() + b'{"model": ')
        assert hosting.ask().status_code == 200
        assert client.recv(100).startswith(b"HTTP/1.1 408 ")


def test_too_many_requests_at_a_time_are_told_to_come_back(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "_MAX_IN_FLIGHT", 0)
    answer = hosting.ask()
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


def test_large_requests_are_bounded_together(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "_MAX_HELD_BYTES", 1000)
    large = {**ASKED, "messages": [{"role": "user", "content": "?" * 2000}]}
    answer = hosting.ask(large)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    for _ in range(20):  # what was refused or answered is no longer held
        assert hosting.ask().status_code == 200


def test_a_stream_is_in_flight_to_its_end(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "_MAX_IN_FLIGHT", 1)
    for _ in range(3):
        answer = hosting.ask({**ASKED, "stream": True})
        assert answer.status_code == 200 and answer.text.endswith("[DONE]\n\n")
    assert [replica.in_flight for replica in hosting.status().replicas] == [0, 0]


def test_the_metrics_of_each_server_are_passed_on(hosting: Hosting) -> None:
    for replica in hosting.status().replicas:
        assert hosting.get(f"/metrics/{replica.name}").text == "num_requests_running 0\n"
    answer = hosting.get("/metrics/nobody")
    assert answer.status_code == 404 and replica.name in answer.json()["error"]["message"]


def test_the_key_is_asked_for_where_there_is_one(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    right = {"authorization": "Bearer secret"}
    for path in ("/v1/models", "/status"):
        assert hosting.get(path).status_code == 401
        assert hosting.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401
        strange = {"authorization": b"Bearer \xc3\xbc"}
        assert hosting.get(path, headers=strange).status_code == 401
        assert hosting.get(path, headers=right).status_code == 200
    assert hosting.ask().status_code == 401
    assert hosting.ask(headers=right).status_code == 200
    assert hosting.get("/health").status_code == 200


def test_nothing_answers_before_it_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "_LOOK_EVERY_S", 0.05)
    with (
        StandInReplica(plays_as_base=True).serve() as replica,
        stands([replica], tmp_path, is_proven=False) as hosting,
    ):
        wait_until(lambda: hosting.status().replicas[0].refuted == 1)
        assert hosting.ask().status_code == 503
        assert hosting.get("/health").status_code == 503
