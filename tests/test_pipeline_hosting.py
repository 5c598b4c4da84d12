"""Hosting on real vLLM: two servers behind a door, switched, killed and asked nonsense under load.

It goes on from where test_pipeline.py has left the chain, and changes what is hosted.
"""

import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from playwright.sync_api import Browser, expect

from configs.serving import DoorStatus
from flows.operate import trainer_python
from tasks.attempts import all_attempts
from tests.chains import Chain
from tests.homes import kill_all, ours, run_deployment
from tests.load.asking import DIGEST_HEADER, ask, question, steady_load
from tests.waiting import wait_until

pytestmark = pytest.mark.pipeline
ALIAS = "maze-solver"


def url_of(chain: Chain) -> str:
    return json.loads((chain.home.hosting / "endpoint.json").read_text())["url"]


def status(chain: Chain) -> DoorStatus:
    address = url_of(chain).removesuffix("/v1") + "/status"
    return DoorStatus.model_validate_json(httpx.get(address, timeout=30).text)


def is_proven(chain: Chain) -> bool:
    now = status(chain)
    return all(replica.proven == now.wanted for replica in now.replicas)


def digest_of(chain: Chain, step: int) -> str:
    return json.loads((chain.run.adapter(step) / "manifest.json").read_text())["digest"]


def processes(chain: Chain, module: str) -> list[psutil.Process]:
    return [process for process, words in ours(chain.home) if module in words]


def test_both_servers_were_proven_to_serve_the_gates_adapter(chain: Chain) -> None:
    now = status(chain)
    assert now.champion_digest == digest_of(chain, 3)
    assert [replica.proven for replica in now.replicas] == [now.serving] * 2
    with httpx.Client(timeout=60) as http:
        assert ask(http, url_of(chain), ALIAS).digest == digest_of(chain, 3)
        assert ask(http, url_of(chain), "base").digest == chain.run.file.base_digest


def test_a_switch_and_a_rollback_under_load_fail_no_request(chain: Chain) -> None:
    run_id = chain.run.run_id
    assert run_deployment(chain.home, "evaluate/evaluate", {"run_id": run_id, "step": 2}) == (
        "Completed"
    )
    word = {"operator": "tests", "reason": "to see a switch under load"}
    with steady_load(url_of(chain), ("base", ALIAS), num_clients=4) as load:
        hosted = run_deployment(chain.home, "host/host", {"run_id": run_id, "step": 2, **word})
        assert hosted == "Completed"
        assert status(chain).champion_digest == digest_of(chain, 2)
        assert run_deployment(chain.home, "rollback/rollback", {}) == "Completed"
        assert status(chain).champion_digest == digest_of(chain, 3)
        after = len(load.answers) + 16
        wait_until(lambda: len(load.answers) > after)
    assert not load.failures
    order = [digest for digest in load.digests if digest != chain.run.file.base_digest]
    assert order[0] == order[-1] == digest_of(chain, 3)
    assert digest_of(chain, 2) in order


def test_a_server_killed_under_load_fails_no_request_and_comes_back_proven(chain: Chain) -> None:
    wait_until(lambda: is_proven(chain))
    servers = processes(chain, "vllm.entrypoints.openai.api_server")
    assert len(servers) == 2
    with steady_load(url_of(chain), ("base", ALIAS), num_clients=4) as load:
        wait_until(lambda: len(load.answers) > 8)
        kill_all([servers[0], *servers[0].children(recursive=True)])
        wait_until(lambda: not is_proven(chain))
        wait_until(lambda: is_proven(chain), timeout_s=180)
    assert not load.failures
    assert set(load.digests) == {digest_of(chain, 3), chain.run.file.base_digest}


def test_a_door_that_is_killed_comes_back_with_the_champion(chain: Chain) -> None:
    (door,) = processes(chain, "containers.server.door")
    door.kill()
    wait_until(lambda: not door.is_running())

    def is_back() -> bool:
        try:
            return is_proven(chain) and status(chain).champion_digest == digest_of(chain, 3)
        except (httpx.TransportError, ValueError):
            return False

    wait_until(is_back, timeout_s=60)


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        (question(ALIAS, num_pictures=100), "image"),
        (question(ALIAS, text="maze " * 5000), "token"),
        ({**question(ALIAS), "max_tokens": -1}, "max_tokens"),
        ({**question(ALIAS), "messages": "?"}, "messages"),
        ({**question("/etc/passwd")}, "no such model"),
    ],
    ids=["100 images", "huge prompt", "negative length", "no messages", "path as a model"],
)
def test_a_bad_request_is_refused_and_the_servers_stay_well(
    chain: Chain, asked: dict[str, object], word: str
) -> None:
    answer = httpx.post(f"{url_of(chain)}/chat/completions", json=asked, timeout=120)
    assert 400 <= answer.status_code < 500, answer.text
    assert word in answer.text
    good = httpx.post(f"{url_of(chain)}/chat/completions", json=question(ALIAS), timeout=120)
    assert good.status_code == 200 and good.headers[DIGEST_HEADER] == digest_of(chain, 3)


def test_many_large_requests_are_refused_and_the_door_stays_small(chain: Chain) -> None:
    (door,) = processes(chain, "containers.server.door")
    picture = {"url": "data:image/png;base64," + "A" * (12 * 2**20)}
    content = [{"type": "image_url", "image_url": picture}]
    body = json.dumps({**question(ALIAS), "messages": [{"role": "user", "content": content}]})
    before, peak = door.memory_info().rss, 0

    def post(_: int) -> int:
        return httpx.post(
            f"{url_of(chain)}/chat/completions", content=body, timeout=300
        ).status_code

    with ThreadPoolExecutor(24) as clients:
        asked = [clients.submit(post, number) for number in range(48)]
        while not all(each.done() for each in asked):
            peak = max(peak, door.memory_info().rss)
    assert {each.result() for each in asked} <= {400, 429}
    assert peak - before < 1.5 * 2**30, "16 bodies of 16 MiB, parsed and written anew"
    wait_until(lambda: is_proven(chain))


def test_peft_gives_the_answer_the_probability_that_vllm_gives_it(
    chain: Chain, tmp_path: Path
) -> None:
    asked = question(ALIAS, num_pictures=2) | {"max_tokens": 24, "temperature": 1.0, "seed": 1}
    asked |= {"logprobs": True, "return_tokens_as_token_ids": True, "ignore_eos": True}
    answer = httpx.post(f"{url_of(chain)}/chat/completions", json=asked, timeout=120).json()
    told = answer["choices"][0]["logprobs"]["content"]
    tokens = [entry["token"].removeprefix("token_id:") for entry in told]
    (tmp_path / "request.json").write_text(json.dumps(asked))
    trainer = trainer_python()
    base, adapter = chain.run.config.model.path, chain.run.adapter(3)
    command = [trainer, "-m", "tests.trainer.peft_logprobs", str(base), str(adapter)]
    done = subprocess.run(
        [*command, str(tmp_path / "request.json"), *tokens],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    gaps = [abs(a - b["logprob"]) for a, b in zip(json.loads(done.stdout), told, strict=True)]
    assert len(gaps) == 24 and max(gaps) < 0.001, gaps


def test_the_page_lets_champion_and_base_play_a_maze_of_ones_own(
    chain: Chain, browser: Browser
) -> None:
    complaints: list[str] = []
    page = browser.new_page(viewport={"width": 1000, "height": 860})
    page.set_default_timeout(60_000)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(url_of(chain).removesuffix("/v1") + "/")
    page.get_by_label("Seed").fill("123")
    page.get_by_role("button", name="Play").click()
    outcomes = page.locator(".outcome")
    expect(outcomes.nth(0)).to_have_text(re.compile("turns"))
    expect(outcomes.nth(1)).to_have_text(re.compile("turns"))
    assert page.locator("#champion .turns li").count() > 0
    page.screenshot(path=str(chain.home.root / "page.png"))

    page.locator("#champion .wall.can-change").first.click()  # one wall less: a maze of our own
    expect(outcomes.nth(0)).to_have_text("")
    page.get_by_role("button", name="Play").click()
    expect(outcomes.nth(0)).to_have_text(re.compile("turns"))
    page.get_by_label("Seed").fill("99999999999")
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_label("Seed")).to_be_focused()
    assert complaints == []
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


def test_no_attempt_was_made_while_hosting(chain: Chain) -> None:
    assert all(attempt.ended for attempt in all_attempts(chain.run.attempts))
