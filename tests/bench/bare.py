"""The bare training job: SkyRL on a plain Ray head, with nobody around it."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from configs.jobs import MetricsLine, TrainJob
from configs.loader import ROOT
from configs.schema import PostTrainConfig
from flows.operate import trainer_python
from tasks.ports import any_free
from tasks.run_dir import check_base_model


def train_bare(
    config: PostTrainConfig, folder: Path, environment: Mapping[str, str]
) -> list[MetricsLine]:
    """Train in a new folder; its steps. Adapters and checkpoints stay there."""
    (folder / "attempts").mkdir(parents=True)
    job = TrainJob(
        run_id="bare",
        attempt=1,
        config=config,
        base_digest=check_base_model(config.model.path),
        checkpoints=folder / "checkpoints",
        adapters=folder / "adapters",
        metrics=folder / "metrics.jsonl",
        attempts=folder / "attempts",
        scratch=folder / "scratch",
    )
    module = "containers.trainer.train_main"
    subprocess.run(
        [trainer_python(), "-m", module, str(job.write(folder / "job.json"))],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        cwd=ROOT, stdout=sys.stderr, check=True,
    )  # fmt: skip
    lines = job.metrics.read_text().splitlines()
    return [MetricsLine.model_validate_json(line) for line in lines]


@contextmanager
def ray_head(folder: Path, environment: Mapping[str, str]) -> Generator[dict[str, str]]:
    """A Ray head with room for one training process, gone on the way out.

    Yields `environment` and what a job needs to find the head.
    """
    port = any_free()
    command = [
        *(trainer_python(), "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--node-ip-address", "127.0.0.2", "--port", str(port), "--num-cpus", "4"),
        *("--num-gpus", "1", "--include-dashboard", "false", "--disable-usage-stats"),
        *("--temp-dir", tempfile.mkdtemp(prefix="ray-", dir="/tmp")),
    ]
    with (folder / "ray.log").open("w") as log:
        head = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield {**environment, "RAY_ADDRESS": f"127.0.0.2:{port}"}
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        head.wait(timeout=60)
