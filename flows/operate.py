"""What an operator does from a terminal: set up, start the pipeline and follow it, let it solve.

These are the same steps that the UI and the schedule take: a deployment is started through the
API and its run is watched; interrupting the watching leaves the run alone.
"""

import os
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import httpx

from configs.jobs import SolveJob
from configs.loader import load_config
from configs.mazes import load_maze_set
from tasks import services
from tasks.backends.environment import EnvironmentBuilder
from tasks.home import Home, cache_folder
from tasks.jobs import job_environment
from tasks.metrics.services import HOW_TO_GET_PROMETHEUS, MetricsServices
from tasks.run_dir import check_base_model, check_run_id, check_turn_limit

Say = Callable[[str], None]
Watching = Callable[[str], AbstractContextManager[None]]
_OVERRIDES = {
    "steps": "train.steps",
    "seed": "train.seed",
    "learning_rate": "train.learning_rate",
}
_SOLVE_TIMEOUT_S = 600


def setup(say: Say) -> None:
    """Make the trainer environment if it is missing."""
    builder = EnvironmentBuilder(cache_folder())
    digest = builder.digest()
    if builder.find(digest) is None:
        say(f"making image {digest[:12]} (the first time this installs about 7 GB)")
        builder.build(digest, force=False)
    say(f"image {digest[:12]} is ready")


def trainer_python() -> str:
    """The interpreter of the trainer environment; `setup` makes it."""
    builder = EnvironmentBuilder(cache_folder())
    image = builder.find(builder.digest())
    if image is None:
        raise RuntimeError("the trainer environment is missing: `make setup` installs it")
    return image.python


def bring_up(home: Home, say: Say) -> services.Services:
    """Start the services and register the deployments; this process then speaks to them."""
    found = services.up(home)
    # Whoever watches notices soon that the server is gone; flows are given half an hour.
    os.environ.update(found.environment(home) | {"PREFECT_CLIENT_MAX_RETRIES": "2"})
    # Prefect reads its settings when it is imported
    from tasks import automations, deployments

    deployments.register(home.services)
    automations.ensure()
    say(f"Prefect {found.prefect_ui_url}   MLflow {found.mlflow_url}")
    metrics = MetricsServices.recorded(home)
    prometheus = metrics.prometheus_url if metrics else ""
    say(f"Prometheus {prometheus}" if prometheus else HOW_TO_GET_PROMETHEUS)
    return found


def register(home: Home, say: Say) -> None:
    """Tell a Prefect server that others keep, as in a cluster, what Ariadne has for it.

    Raises:
        RuntimeError: PREFECT_API_URL is not set, or the server is away or refuses.
    """
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        raise RuntimeError("set PREFECT_API_URL to the Prefect server's; on one machine: `make up`")
    from prefect.exceptions import PrefectHTTPStatusError

    from tasks import automations, deployments

    try:
        deployments.ensure_pool()
        deployments.register(home.create().services)
        automations.ensure()
    except PrefectHTTPStatusError as error:
        status = error.response.status_code
        raise RuntimeError(
            f"Prefect at {url} answers {status}: is PREFECT_API_AUTH_STRING the server's?"
        ) from None
    except httpx.HTTPError as error:
        raise RuntimeError(f"Prefect at {url} is away: {error}: try again later") from None
    say(f"registered at {url}")


class Left(Exception):
    """Whoever followed a run has left; the run goes on. Says how to find it again."""


def run(
    home: Home, parameters: dict[str, Any], say: Say, watching: Watching = nullcontext
) -> list[dict[str, str]]:
    """Start post-train and follow it; returns the rows of its summary.

    An adapter that the gate does not promote is an outcome, not an error. `watching` gets the
    flow run's id and may show more of it while it is followed.

    Raises:
        ValueError: a parameter or an input is unusable; nothing was started.
        RuntimeError: the run did not complete.
        Left: interrupted; the run goes on.
    """
    check_inputs(parameters)
    found = bring_up(home, say)
    from tasks import deployments
    from tasks.gate import NOT_PROMOTED

    run_id, name = deployments.start("post-train/post-train", parameters)
    page = f"{found.prefect_ui_url}/runs/flow-run/{run_id}"
    say(f"flow run {name!r}: {page}")
    try:
        with watching(str(run_id)):
            ended = deployments.follow(run_id, say)
    except KeyboardInterrupt:
        raise Left(
            f"the run goes on without this terminal: `make status` shows it, {page} cancels it, "
            "the same `make run` follows it to its end"
        ) from None
    except httpx.HTTPError as error:
        raise RuntimeError(
            f"the Prefect server is away ({error}): `make run` again goes on where it stopped"
        ) from None
    if ended not in ("Completed", NOT_PROMOTED):
        raise RuntimeError(f"the run is {ended}; starting it again goes on where it stopped")
    return deployments.summary(run_id)


def check_inputs(parameters: dict[str, Any]) -> None:
    """Refuse a name, a profile, a base model or mazes that cannot work, before anything starts."""
    if parameters.get("run_name"):
        check_run_id(parameters["run_name"])
    overrides = {
        key: parameters[name]
        for name, key in _OVERRIDES.items()
        if parameters.get(name) is not None
    }
    config = load_config(parameters["profile"], overrides)
    check_base_model(config.model.path)
    check_turn_limit(config, load_maze_set(config.mazes.test_set))


def solve(home: Home, seed: int, picture: Path) -> None:
    """Let the hosted adapter play the maze of `seed`; it prints its moves.

    Raises:
        RuntimeError: nothing is hosted, or the server does not answer.
    """
    from tasks.host import solve_job_file

    file = solve_job_file(home)
    if not file.is_file():
        raise RuntimeError("no adapter is hosted yet: `make run` hosts one")
    SolveJob.read(file)
    builder = EnvironmentBuilder(cache_folder())
    image = builder.build(builder.digest(), force=False)
    command = [image.python, "-m", "containers.trainer.solve_main", str(file)]
    done = subprocess.run(
        [*command, "--seed", str(seed), "--out", str(picture)],
        env={**os.environ, **job_environment(image)},
        timeout=_SOLVE_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError("the maze was not played; the line above says why")
