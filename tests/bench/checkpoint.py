"""What it costs to digest and commit a checkpoint, against writing the same bytes."""

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from containers.trainer.checkpoints import commit, find_fault, flush
from tests.bench.clocks import best_s
from tests.bench.measures import Measure

_FILES = 4


def main() -> None:
    sizes_mb = (4,) if "--short" in sys.argv else (32, 320)
    for size_mb in sizes_mb:
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder) / "global_step_1", size_mb)


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
