"""preflight: everything that can be known of a run before it is paid for. Creates nothing.

    make preflight PROFILE=hyperpod

From the UI it is the deployment preflight/preflight. It is also the first step of post-train,
which asks the machines themselves as well, once the cluster is there.
"""

from prefect import flow
from prefect.logging import get_run_logger

from configs.loader import load_config
from flows.post_train import Profile, Steps
from tasks.home import Home
from tasks.preflight.findings import refuse
from tasks.preflight.stage import examine


@flow(name="preflight", flow_run_name="preflight {profile}")
def preflight(profile: Profile = "local", steps: Steps = None) -> None:
    """Check a profile against its machines, its account and its budget.

    Args:
        profile: Which machine and model: the name of a TOML file in configs.
        steps: Training steps. Empty: as the profile says.
    """
    config = load_config(profile, {"train.steps": steps} if steps else {})
    findings = examine(config, Home.from_environment())
    for each in findings:
        get_run_logger().info("preflight: %s: %s", each.name, each.detail)
    refuse(findings)
