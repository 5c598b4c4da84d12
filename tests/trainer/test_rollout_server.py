"""The server of the training episodes: where it is, for those who scrape its metrics."""

from pathlib import Path
from typing import Any

import pytest

from configs.jobs import TrainJob
from configs.loader import load_config
from containers.server.launch import ServerPlan
from containers.trainer import train_main


def job(folder: Path, **changes: Any) -> TrainJob:
    return TrainJob(
        run_id="run",
        attempt=1,
        config=load_config("smoke", changes),
        base_digest="b" * 64,
        checkpoints=folder / "checkpoints",
        adapters=folder / "adapters",
        metrics=folder / "metrics.jsonl",
        attempts=folder / "attempts",
        scratch=folder,
    )


def test_the_address_of_the_server_is_written_where_the_exporter_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[ServerPlan] = []
    monkeypatch.setattr(train_main, "starting_server", lambda plan, log: planned.append(plan))
    train_main.rollout_server(job(tmp_path))
    written = (tmp_path / "inference-server.address").read_text()
    assert written == f"127.0.0.1:{planned[0].listen}\n"


def test_where_skyrl_brings_its_own_servers_there_is_no_address(tmp_path: Path) -> None:
    with train_main.rollout_server(job(tmp_path, **{"train.device": "cuda"})) as server:
        assert server is None
    assert list(tmp_path.iterdir()) == []
