"""Do the credentials work, and may the account have the machines that the profile asks for?"""

from collections import Counter

from configs.schema import PostTrainConfig
from tasks.backends.protocols import Account
from tasks.preflight.findings import Finding


def account_findings(config: PostTrainConfig, account: Account) -> list[Finding]:
    """The credentials, and where they work one finding for each kind of machine."""
    try:
        who = account.identity()
    except RuntimeError as error:
        return [_refused("credentials", error)]
    findings = [Finding(name="credentials", ok=True, detail=who)]
    if wanted := _machines(config):
        findings += [_quota(account, kind, count) for kind, count in sorted(wanted.items())]
    return findings


def _machines(config: PostTrainConfig) -> Counter[str]:
    """How many of each kind training and hosting have at the same time."""
    kinds: Counter[str] = Counter()
    if kuberay := config.cluster.kuberay:
        kinds[kuberay.head.instance_type] += 1
        kinds[kuberay.worker.instance_type] += config.cluster.num_workers
    if pod := config.host.pod:
        kinds[pod.instance_type] += 1  # one pod, with all its servers
    return kinds


def _quota(account: Account, kind: str, count: int) -> Finding:
    name = f"quota of {kind}"
    try:
        allowed = account.quota(kind)
    except RuntimeError as error:
        return _refused(name, error)
    known = "AWS lists none" if allowed is None else f"the account may have {allowed:g}"
    return Finding(
        name=name,
        ok=allowed is None or allowed >= count,
        detail=f"the run needs {count} and {known}",
        fix=f'ask AWS for more in Service Quotas, "{kind} for cluster usage" of SageMaker',
    )


def _refused(name: str, error: RuntimeError) -> Finding:
    detail, _, fix = str(error).rpartition(": ")
    return Finding(name=name, ok=False, detail=detail, fix=fix)
