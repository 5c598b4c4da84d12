"""The model registry: one version for each adapter, and an alias for the one that serves.

Like all of the tracker it is a view: versions are told by the adapter's digest and aliases
follow the hosting history, so everything here may be done again, in any order, after a crash.
"""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from tasks.context import Context
from tasks.host import hosting
from tasks.hosted import champion, history
from tasks.records import GateRecord, HostRecord
from tasks.track import AWAY_RETRIES, AWAY_RETRY_S, is_away
from tasks.turn import check_turn

MODEL_NAME = "ariadne-maze-solver"


@task(
    task_run_name="register",
    cache_policy=NO_CACHE,
    retries=AWAY_RETRIES,
    retry_delay_seconds=AWAY_RETRY_S,
    retry_condition_fn=is_away,
)
def register(context: Context, decision: GateRecord, hosted: HostRecord | None = None) -> str:
    """Register the adapter with what the gate decided; the version.

    Once it is `hosted`, the aliases follow: `previous`, and last of all `champion`.
    """
    tracker, run = context.backends.tracker, context.run
    check_turn(run)
    tracker.log_file(
        run.run_id, run.evaluation(decision.inputs) / "gate.json", f"gate/step_{decision.step}"
    )
    version = tracker.register(
        run.run_id, MODEL_NAME, decision.adapter_digest, decision.adapter, _tags(decision, hosted)
    )
    if hosted:
        _move_aliases(context)
    return version


def _move_aliases(context: Context) -> None:
    """Under the lock of hosting, so that no other flow changes what serves meanwhile."""
    with hosting(context.home):
        serving = history(context.home)[-1]
        before = champion(context.home, serving.adapter_digest)
        context.backends.tracker.point_aliases(
            MODEL_NAME, serving.adapter_digest, before.adapter_digest if before else None
        )
    get_run_logger().info("register: champion is adapter %s", serving.adapter_digest[:12])


def _tags(decision: GateRecord, hosted: HostRecord | None) -> dict[str, str]:
    tags = {
        "base_digest": decision.base_digest,
        "image_digest": decision.image_digest,
        "mazes_digest": decision.mazes_digest,
        "run_id": decision.run_id,
        "step": str(decision.step),
        "gate": "promoted" if decision.promoted else "rejected",
        "gate_reason": decision.reason,
        "solved": f"{decision.num_solved} of {decision.num_mazes}",
    }
    if hosted:
        tags |= {"hosted_by": hosted.promotion.who, "hosted_because": hosted.promotion.why}
    return tags
