"""Ask SkyRL whether it would take this configuration, before a cluster is started for it.

    python -m containers.trainer.check_main JOB.json

Prints one line and ends with 1 where it would not.
"""

import sys
from pathlib import Path

from configs.jobs import TrainJob


def main() -> None:
    """Translate and validate."""
    job = TrainJob.read(Path(sys.argv[1]))
    if job.config.train.device == "cpu":
        import containers.trainer.cpu_device  # noqa: F401  before SkyRL
    from skyrl.train.utils import validate_cfg

    from containers.trainer.skyrl_config import translate

    try:
        validate_cfg(translate(job, Path("rows.jsonl"), "http://127.0.0.1:1", None))
    except (AssertionError, ValueError) as error:
        sys.exit(f"SkyRL refuses the configuration: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()
