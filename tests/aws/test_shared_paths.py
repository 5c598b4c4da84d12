"""A run on a cluster elsewhere lies where its pods see it, or is refused before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from configs.loader import ROOT, load_config
from configs.schema import PostTrainConfig
from tasks.run_dir import create_run
from tests.samples import reason, write_base_model

MAZES = ROOT / "configs" / "mazes" / "visgym-easy-64.json"


def config_on(shared: Path, **changes: Any) -> PostTrainConfig:
    """The shipped profile with its volume at `shared`, base model and mazes on it."""
    if not (shared / "base").exists():
        write_base_model(shared / "base")
        (shared / "mazes.json").write_text(MAZES.read_text())
    given = {
        "cluster.kuberay.volume.mount_path": str(shared),
        "model.path": str(shared / "base"),
        "mazes.test_set": str(shared / "mazes.json"),
    }
    return load_config("hyperpod", given | changes)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


def test_a_run_on_the_shared_volume_begins(shared: Path) -> None:
    run = create_run(shared / "home" / "runs", config_on(shared), "0" * 64)
    assert run.folder.is_relative_to(shared)


@pytest.mark.parametrize("key", ["model.path", "mazes.test_set"])
def test_inputs_that_pods_do_not_see_are_refused(shared: Path, tmp_path: Path, key: str) -> None:
    config = config_on(shared, **{key: str(tmp_path / "elsewhere")})
    told = reason(lambda: create_run(shared / "home" / "runs", config, "0" * 64))
    assert told.startswith(f"{key}: {tmp_path}/elsewhere is not on the volume")
    assert f"at {shared}: put it there" in told
    assert not (shared / "home").exists()


def test_a_home_that_pods_do_not_see_is_refused(shared: Path, tmp_path: Path) -> None:
    told = reason(lambda: create_run(tmp_path / "home" / "runs", config_on(shared), "0" * 64))
    assert told.startswith(f"ARIADNE_HOME: {tmp_path}/home is not on the volume")


def test_a_local_run_may_lie_anywhere(tmp_path: Path) -> None:
    write_base_model(tmp_path / "base")
    config = load_config("smoke", {"model.path": str(tmp_path / "base")})
    assert create_run(tmp_path / "runs", config, "0" * 64).folder.is_dir()


@pytest.mark.parametrize(
    "path", ["/shared/../etc", "/shared/..", "/.hidden", "/dev/shm", "/tmp/ray/x", "/proc", "/"]
)
def test_a_volume_is_mounted_where_nothing_else_is(path: str) -> None:
    key = "cluster.kuberay.volume.mount_path"
    told = reason(lambda: load_config("hyperpod", {key: path}))
    assert "String should match" in told or "is taken in every pod" in told
