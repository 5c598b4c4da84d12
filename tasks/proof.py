"""What an adapter has to say again before it is let to answer: turns of its own evaluation."""

import json
from pathlib import Path

from configs.mazes import MazeLayout, MazeSet
from configs.serving import Probe
from tasks.records import EvaluateRecord

_NUM_PROBES = 3


def choose_probes(scores: EvaluateRecord, mazes: MazeSet) -> tuple[Probe, ...]:
    """Mazes that the adapter solved by other answers than the base's, the quickest first.

    Raises:
        ValueError: it plays every maze as the base does, so nothing could prove that it is served.
    """
    adapter, base = _read(scores.results), _read(scores.base_results)
    candidates = [
        (not theirs["solved"], len(_replies(theirs)), _probe(layout, theirs, bases))
        for layout, theirs, bases in zip(mazes.mazes, adapter, base, strict=True)
        if _replies(theirs) != _replies(bases)
    ]
    if not candidates:
        raise ValueError(
            f"adapter {scores.adapter_digest[:12]} plays every maze as the base does: there is "
            "nothing to serve it for, and nothing that could prove that it is served"
        )
    return tuple(probe for _, _, probe in sorted(candidates, key=lambda each: each[:2]))[
        :_NUM_PROBES
    ]


def _probe(layout: MazeLayout, theirs: dict, bases: dict) -> Probe:
    return Probe(layout=layout, replies=_replies(theirs), base_replies=_replies(bases))


def _replies(episode: dict) -> tuple[str, ...]:
    return tuple(turn["reply"] for turn in episode["turns"])


def _read(results: Path) -> list[dict]:
    text = (results / "episodes.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]
