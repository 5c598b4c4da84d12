"""What every stage is given: the run it works on and the world it works with."""

from dataclasses import dataclass

from configs.schema import PostTrainConfig
from tasks.backends.wiring import Backends, make_backends
from tasks.home import Home
from tasks.run_dir import Run, check_unchanged, create_run, open_run


@dataclass(frozen=True)
class Context:
    """One run with its home and vendors."""

    run: Run
    home: Home
    backends: Backends

    @property
    def config(self) -> PostTrainConfig:
        return self.run.config


def begin(config: PostTrainConfig, run_name: str = "") -> Context:
    """The run of this configuration, new or known.

    Raises:
        ValueError: one line, see `run_dir.create_run`.
    """
    home = Home.from_environment().create()
    backends = make_backends(config, home)
    return Context(
        create_run(home.runs, config, backends.images.digest(), run_name), home, backends
    )


def reopen(run_id: str) -> Context:
    """An existing run, by its name.

    Raises:
        ValueError: there is none, or its base model or mazes are no longer what they were.
    """
    home = Home.from_environment().create()
    run = open_run(home.runs, run_id)
    check_unchanged(run)
    return Context(run, home, make_backends(run.config, home))
