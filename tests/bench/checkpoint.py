"""What it costs to digest and commit a checkpoint, and to record a step with all its checks."""

import json
import shutil
import sys
import tempfile
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from configs.jobs import TrainJob
from configs.loader import load_config
from containers.trainer.checkpoints import commit, find_fault, flush
from containers.trainer.notice import Notice
from containers.trainer.recorder import Recorder
from tests.bench.clocks import best_s
from tests.bench.measures import Measure

_FILES = 4


def main() -> None:
    sizes_mb = (4,) if "--short" in sys.argv else (32, 320)
    for size_mb in sizes_mb:
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder) / "global_step_1", size_mb)
    with tempfile.TemporaryDirectory() as folder:
        measure_recording(Path(folder), (10,) if "--short" in sys.argv else (10, 1000))


def measure_recording(root: Path, num_attempts: tuple[int, ...]) -> None:
    """A step of the local profile, with a checkpoint of its size: the mechanisms' whole cost.

    That is the look at the attempts taken, the line of metrics, the hashes, the flushing, the
    marker, the adapter's publication and the retention.
    """
    for number in num_attempts:
        job = _job(root / str(number))
        for taken in range(1, number + 1):
            (job.attempts / f"{taken}.json").write_text("{}")
        job = job.model_copy(update={"attempt": number})
        recorder: Any = Recorder(job, Notice())
        steps = count(1)

        def record(recorder: Any = recorder, steps: Any = steps, job: TrainJob = job) -> None:
            step = next(steps)
            _write_checkpoint(job.checkpoints / f"global_step_{step}")

            def said(**more: Any) -> SimpleNamespace:
                return SimpleNamespace(global_step=step, **more)

            recorder.on_save(None, said(ckpt_path=job.checkpoints / f"global_step_{step}"), None)
            recorder.on_log(None, said(logs={"environment/success": 0.5}), None)

        whole_s = best_s(record)
        write_s = best_s(lambda job=job: _write_checkpoint(job.scratch / "global_step_1"))
        name = f"record a step with its checkpoint, {number} attempts"
        value = (whole_s - write_s) * 1000
        Measure(part="checkpoint", what=name, value=value, unit="ms").say()


def _job(folder: Path) -> TrainJob:
    parts = {name: folder / name for name in ("checkpoints", "adapters", "attempts", "scratch")}
    for part in parts.values():
        part.mkdir(parents=True)
    return TrainJob(
        run_id="bench",
        attempt=1,
        config=load_config("local"),
        base_digest="0" * 64,
        metrics=folder / "metrics.jsonl",
        **parts,
    )


def _write_checkpoint(folder: Path) -> None:
    """As large as the tiny model's: 196,608 weights, two moments of each, and a copy for PEFT."""
    adapter = folder / "policy" / "lora_adapter"
    adapter.mkdir(parents=True, exist_ok=True)
    weights = np.ones(196_608, dtype=np.float32)
    save_file({"layer.lora_A.weight": weights}, adapter / "adapter_model.safetensors")
    config = {"base_model_name_or_path": "", "target_modules": ["q_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    save_file(dict.fromkeys("abc", weights), folder / "policy" / "tensors.safetensors")


def measure(folder: Path, size_mb: int) -> None:
    """Files of `size_mb` in all."""
    content = np.random.default_rng(1).bytes(size_mb * 2**20 // _FILES)

    def write() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for number in range(_FILES):
            (folder / f"part-{number}.pt").write_bytes(content)
            flush(folder / f"part-{number}.pt")

    write_s = best_s(write)
    commit_s = best_s(lambda: commit(folder, 1, 1, 1))
    verify_s = best_s(lambda: find_fault(folder))
    for what, seconds in (("commit", commit_s), ("verify", verify_s)):
        name = f"{what} / write, {size_mb} MiB"
        Measure(part="checkpoint", what=name, value=seconds / write_s, unit="ratio").say()


if __name__ == "__main__":
    main()
