"""Load on what this home hosts: requests a second, waiting times, a switch there and back.

make load

It needs an endpoint (`make run`) and, for the switch, an adapter that served before. The load is
bounded, and on this machine only.
"""

import json
import sys
import threading
import time

import httpx

from configs.serving import DoorStatus
from tasks import services
from tasks.home import Home
from tasks.hosted import history
from tests.homes import run_deployment
from tests.load.asking import Load, authorisation, steady_load

_SECONDS = 20
_NUM_CLIENTS = 8


def main() -> None:
    """Print a line for each phase."""
    home = Home.from_environment()
    endpoint = home.hosting / "endpoint.json"
    if not endpoint.is_file():
        sys.exit("ariadne: nothing is hosted yet: `make run` hosts an adapter")
    services.up(home)
    given = json.loads(endpoint.read_text())
    url, alias = given["url"], given["model"]
    for name, models in (("base", ("base",)), ("adapter", (alias,)), ("both", ("base", alias))):
        with steady_load(url, models, _NUM_CLIENTS) as load:
            time.sleep(_SECONDS)  # the length of the measurement
        say(name, load)
    if len({hosted.adapter_digest for hosted in history(home)}) < 2:
        sys.stdout.write("no other adapter was hosted before: no switch was measured\n")
        return
    for name in ("rollback", "rollback of the rollback"):
        with steady_load(url, ("base", alias), _NUM_CLIENTS) as load:
            seconds = roll_back(home, url)
        say(f"{name}, {seconds:.1f} s until it answers", load)


def roll_back(home: Home, url: str) -> float:
    """Seconds from the wish for the other adapter to its first answers, under load."""
    before, asked_at, answers_at = status(url), 0.0, 0.0
    flow = threading.Thread(target=run_deployment, args=(home, "rollback/rollback", {}))
    flow.start()
    while not answers_at:
        now = status(url)
        if not asked_at and now.wanted != before.wanted:
            asked_at = time.monotonic()
        if now.serving != before.serving:
            answers_at = time.monotonic()
        time.sleep(0.05)
    flow.join()
    return answers_at - asked_at


def status(url: str) -> DoorStatus:
    address = url.removesuffix("/v1") + "/status"
    answer = httpx.get(address, timeout=30, headers=authorisation()).raise_for_status()
    return DoorStatus.model_validate_json(answer.text)


def say(name: str, load: Load) -> None:
    failed = ", ".join(f"{count} x {status}" for status, count in load.failures.items()) or "none"
    sys.stdout.write(
        f"{name:<45} {load.per_second:6.1f} requests/s   p50 {load.percentile_ms(50):6.0f} ms   "
        f"p99 {load.percentile_ms(99):6.0f} ms   failed: {failed}\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
