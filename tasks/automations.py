"""Prefect automations: a flow run that died goes on by itself.

A run whose process is gone is reported as crashed by its worker; one whose whole machine is gone
sends no heartbeat any more and is declared crashed. A crashed run is scheduled again as the same
run, a few times. A false alarm is harmless: the cluster has one holder and a run one writer.

The worker reports a crash twice: when the process ends, and seconds later, after it looked for
hooks. Scheduled in between, the run would be declared crashed once more while it already goes on,
so that it waits until the reports have ended.
"""

from datetime import timedelta

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

RESUMES = "resumes"
"""Tag of deployments whose flows may be started again at any point."""
_RUN_COUNTS = ["1", "2", "3", "4"]
"""Runs that were started so often are started once more; one that never ran is left alone."""
_SILENCE = timedelta(seconds=180)
"""Six heartbeats."""
_SETTLED = timedelta(seconds=30)
"""Longer than a worker takes from its first report of a crash to its second."""
_OURS = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{RESUMES}"}


def wanted() -> list[AutomationCore]:
    """The automations that a home shall have."""
    run = "prefect.flow-run.*"
    moved = ("Crashed", "AwaitingRetry", "Scheduled", "Pending", "Running", "Cancelled")
    crashed = EventTrigger(
        after={"prefect.flow-run.Crashed"},
        expect={f"prefect.flow-run.{state}" for state in moved},
        match={"prefect.resource.id": run, "prefect.run-count": _RUN_COUNTS},
        match_related=_OURS,
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=_SETTLED,
    )
    silent = EventTrigger(
        after={"prefect.flow-run.heartbeat"},
        expect={run},
        match={"prefect.resource.id": run},
        match_related=_OURS,
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=_SILENCE,
    )
    again = ChangeFlowRunState(
        state=StateType.SCHEDULED,
        name="AwaitingRetry",
        message="its process died: it goes on from its newest checkpoint",
    )
    declare = ChangeFlowRunState(
        state=StateType.CRASHED,
        name="Crashed",
        message=f"no heartbeat for {_SILENCE.seconds} s: its machine or process is gone",
    )
    return [
        AutomationCore(name="ariadne: a crashed run goes on", trigger=crashed, actions=[again]),
        AutomationCore(name="ariadne: a silent run has crashed", trigger=silent, actions=[declare]),
    ]


def ensure() -> None:
    """Create what is missing and bring the rest up to date; names say which is which."""
    with get_client(sync_client=True) as client:
        for automation in wanted():
            known = client.read_automations_by_name(automation.name)
            if known:
                client.update_automation(known[0].id, automation)
            else:
                client.create_automation(automation)
