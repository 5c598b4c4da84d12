"""The Dockerfiles: the linter has no complaint, and what they promise stands in them."""

import subprocess
import sys
from pathlib import Path

import pytest

from configs.loader import ROOT
from tasks.backends.buildah import CONTENT_LABEL
from tasks.backends.image_source import APP, PYTHON

TRAINER = ROOT / "containers" / "trainer" / "Dockerfile"
SERVER = ROOT / "containers" / "server" / "Dockerfile"
CONTROL = ROOT / "containers" / "control" / "Dockerfile"


@pytest.mark.parametrize("file", [TRAINER, SERVER, CONTROL], ids=lambda file: file.parent.name)
def test_hadolint_has_no_complaint(file: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, "--failure-threshold", "style", file],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_image_has_what_its_backend_says_of_it() -> None:
    text = TRAINER.read_text()
    assert f"uv venv --no-python-downloads {Path(PYTHON).parents[1]}" in text
    assert f"WORKDIR {APP}\n" in text and f"PYTHONPATH={APP} " in text
    assert f'LABEL {CONTENT_LABEL}="${{CONTENT_DIGEST}}"' in text
    assert "RAY_ENABLE_UV_RUN_RUNTIME_ENV=0" in text and "--require-hashes" in text


def test_no_image_runs_as_root_or_from_a_tag() -> None:
    assert TRAINER.read_text().index("USER 1000") > TRAINER.read_text().rindex("RUN ")
    for file in (TRAINER, SERVER):
        (start,) = [line for line in file.read_text().splitlines() if line.startswith("FROM ")]
        assert start in ("FROM ${BASE}", "FROM ${TRAINER}")
