"""The benchmark itself runs: its light parts, tiny. What it measures is nobody's test."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("maze", "checkpoint", "episodes", "folders")


def bench(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.bench", *arguments],
        cwd=ROOT,
        env={**os.environ, "ARIADNE_HOME": str(home), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_light_parts_say_their_numbers_and_keep_them(tmp_path: Path) -> None:
    done = bench(tmp_path, *PARTS, "--short")
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "bench").glob("*.json")
    report = json.loads(file.read_text())
    assert {measure["part"] for measure in report["measures"]} == set(PARTS)
    assert all(measure["value"] > 0 for measure in report["measures"])
    assert all(measure["what"] in done.stdout for measure in report["measures"])


@pytest.mark.parametrize("part", ["speed", ""])
def test_an_unknown_part_is_refused_before_anything_is_measured(tmp_path: Path, part: str) -> None:
    done = bench(tmp_path, "maze", part)
    assert done.returncode == 2
    assert f"no part {part}" in done.stderr
    assert not (tmp_path / "bench").exists()
