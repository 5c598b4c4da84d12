"""Profiles, jobs and maze sets: what is shipped loads, what is wrong gives one line saying why."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from configs import loader
from configs.digests import digest_of
from configs.jobs import TrainJob
from configs.loader import ROOT, load_config, profile_names
from configs.mazes import MazeSet, load_maze_set

RECORDED = Path(__file__).parent / "trainer" / "data" / "visgym-maze2d" / "layouts.jsonl"
MAZES = ROOT / "configs" / "mazes"


def write_profile(folder: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Make `broken` the only profile: the smoke profile with `old` replaced."""
    text = (loader.PROFILES / "smoke.toml").read_text()
    assert text.count(old) == 1
    (folder / "broken.toml").write_text(text.replace(old, new))
    monkeypatch.setattr(loader, "PROFILES", folder)


def write_set(folder: Path, change: Callable[[dict[str, Any]], None], *, sign: bool) -> Path:
    """A changed copy of a shipped set; `sign` gives it the digest of its layouts."""
    content = json.loads((MAZES / "tiny-64.json").read_text())
    change(content)
    if sign:
        canonical = json.dumps(content["mazes"], sort_keys=True)
        content["digest"] = digest_of(json.loads(canonical))
        content["digest"] = __import__("hashlib").sha256(canonical.encode()).hexdigest()
    path = folder / "changed.json"
    path.write_text(json.dumps(content))
    return path


def reason(path: Path) -> str:
    with pytest.raises(ValueError) as caught:
        load_maze_set(path)
    message = str(caught.value)
    assert message.startswith(f"mazes file {path}")
    assert "\n" not in message
    return message
