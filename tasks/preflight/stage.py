"""Stage preflight: all that can be known before anything is created or paid for."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from configs.schema import PostTrainConfig
from tasks.backends.wiring import make_account
from tasks.context import Context
from tasks.home import Home
from tasks.preflight.account import account_findings
from tasks.preflight.arithmetic import batch_arithmetic
from tasks.preflight.cost import cost
from tasks.preflight.findings import Finding, refuse
from tasks.preflight.image import trainer_image
from tasks.preflight.key import endpoint_key
from tasks.preflight.mazes import turn_ceiling
from tasks.preflight.paths import base_model, shared_paths
from tasks.preflight.room import disk, host_memory


@task(task_run_name="preflight", cache_policy=NO_CACHE)
def check_before(context: Context) -> None:
    """Refuse a doomed run before it costs anything.

    Raises:
        ValueError: one line with everything that is wrong, and how to mend it.
    """
    run = context.run
    findings = examine(
        context.config,
        context.home,
        folder=run.folder,
        num_kept=run.num_checkpoints(),
        done_steps=run.committed_step(),
    )
    log = get_run_logger()
    for each in findings:
        log.info("preflight: %s: %s", each.name, each.detail)
    refuse(findings)


def examine(
    config: PostTrainConfig,
    home: Home,
    *,
    folder: Path | None = None,
    num_kept: int = 0,
    done_steps: int = 0,
) -> list[Finding]:
    """Every finding that needs neither image nor cluster; makes nothing.

    `folder` is the run's, which has `num_kept` checkpoints and has trained `done_steps`; without
    one a new run of this home is meant.
    """
    base = base_model(config)
    findings = [batch_arithmetic(config), turn_ceiling(config), shared_paths(config, home), base]
    if base.ok and done_steps < config.train.steps:
        findings += [disk(config, folder or home.runs, num_kept), host_memory(config)]
    findings += [trainer_image(config), endpoint_key(config), cost(config, home, done_steps)]
    if account := make_account(config):
        findings += account_findings(config, account)
    return [each for each in findings if each]
