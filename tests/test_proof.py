"""Proof of serving: what an adapter has to say again, and what stays at hand beside it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.context import Context
from tasks.proof import choose_probes
from tasks.records import EvaluateRecord
from tests.samples import make_context, reason


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return make_context(tmp_path)


def results(folder: Path, replies: list[list[str]], solved: set[int]) -> Path:
    folder.mkdir()
    episodes = [
        {"solved": number in solved, "turns": [{"reply": reply} for reply in said]}
        for number, said in enumerate(replies)
    ]
    text = "".join(json.dumps(episode) + "\n" for episode in episodes)
    (folder / "episodes.jsonl").write_text(text)
    return folder


def scores(context: Context, base: list[list[str]], adapter: list[list[str]], solved: set[int]):
    root = context.home.root
    given: dict[str, Any] = {
        "inputs": "0",
        "step": 6,
        "adapter": root / "a",
        "adapter_digest": "a" * 64,
        "mazes_digest": "m",
        "num_mazes": 64,
        "num_solved_base": 28,
        "num_solved": 62,
        "champion": None,
        "held_out": (),
    }
    return EvaluateRecord(
        **given,
        base_results=results(root / "base", base, set()),
        results=results(root / "adapter", adapter, solved),
    )


def test_probes_are_solved_mazes_that_the_base_plays_otherwise_the_quickest_first(
    context: Context,
) -> None:
    base, adapter = [["stop"]] * 64, [["stop"]] * 64
    adapter[3], adapter[9], adapter[20] = ["up", "up", "stop"], ["up"], ["up", "stop"]
    adapter[30], adapter[31] = ["left"] * 9, ["up"] * 4
    chosen = choose_probes(scores(context, base, adapter, {0, 3, 20, 30, 31}), context.run.mazes())
    assert [probe.replies for probe in chosen] == [
        ("up", "stop"),
        ("up", "up", "stop"),
        ("up",) * 4,
    ]
    assert chosen[0].layout == context.run.mazes().mazes[20]
    assert {probe.base_replies for probe in chosen} == {("stop",)}


def test_an_adapter_that_plays_as_the_base_cannot_be_proven(context: Context) -> None:
    same = [["stop"]] * 64
    line = reason(lambda: choose_probes(scores(context, same, same, set()), context.run.mazes()))
    assert line.startswith("adapter aaaaaaaaaaaa plays every maze as the base does")
