"""post-train: from a base model to a hosted adapter that was measured.

Started by a schedule, from the UI, or by `make run`. Every stage finds what an earlier run of
the same inputs left and goes on from there, so starting this flow again is always safe.
"""

from typing import Annotated

from prefect import flow
from prefect.runtime import flow_run
from prefect.states import Completed, State
from pydantic import Field

from configs.loader import load_config, profile_names
from tasks.archives import archive_run
from tasks.board_keeper import live_page
from tasks.cancel import release_cancelled
from tasks.cluster import ray_cluster
from tasks.context import begin
from tasks.evaluate import evaluate, find_evaluation
from tasks.evaluation_page import link_report, make_report
from tasks.gate import NOT_PROMOTED, judge
from tasks.host import host_adapter
from tasks.image import build_image
from tasks.preflight.probe import probe_cluster, probe_image
from tasks.preflight.stage import check_before
from tasks.publish import publish_hosted
from tasks.registry import register
from tasks.report import report_run
from tasks.track import track_results, tracked_run
from tasks.train import find_training, train

Profile = Annotated[str, Field(json_schema_extra={"enum": [*profile_names()]})]
Steps = Annotated[int | None, Field(ge=1, le=100_000)]
Seed = Annotated[int | None, Field(ge=0, le=2**31 - 1)]
LearningRate = Annotated[float | None, Field(gt=0, le=1)]
RunName = Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9-]{0,62})?$")]


def _run_name() -> str:
    given = flow_run.parameters
    steps = f" {given['steps']} steps" if given.get("steps") else ""
    seed = f" seed {given['seed']}" if given.get("seed") is not None else ""
    return (
        f"{given.get('profile', 'local')}{steps}{seed} {flow_run.scheduled_start_time:%d %b %H:%M}"
    )


@flow(name="post-train", flow_run_name=_run_name, on_cancellation=[release_cancelled])
def post_train(
    profile: Profile = "local",
    steps: Steps = None,
    seed: Seed = None,
    learning_rate: LearningRate = None,
    run_name: RunName = "",
    force_rebuild: bool = False,
) -> str | State[str]:
    """Train an adapter on mazes, evaluate it on the fixed ones and host it if the gate promotes it.

    Args:
        profile: Which machine and model: the name of a TOML file in configs.
        steps: Training steps. Empty: as the profile says.
        seed: Seed of training. Empty: as the profile says.
        learning_rate: Step size of the optimizer. Empty: as the profile says.
        run_name: Name of the run's folder. Empty: named by its configuration, so that the
            same configuration goes on where it stopped.
        force_rebuild: Build the image anew even if it is there already.

    Returns:
        The id of the run, which names its folder; or, where the gate did not promote the adapter,
        the state that says why. What served before goes on then.
    """
    overrides = {
        "train.steps": steps,
        "train.seed": seed,
        "train.learning_rate": learning_rate,
    }
    given = {key: value for key, value in overrides.items() if value is not None}
    context = begin(load_config(profile, given), run_name)
    check_before(context)
    image = build_image(context, force=force_rebuild)
    with tracked_run(context) as tracked, live_page(context, tracked):
        trained = find_training(context.run)
        scores = find_evaluation(context, trained.adapter) if trained else None
        if trained is None or scores is None:
            probe_image(context, image)
            with ray_cluster(context, image):
                probe_cluster(context, image)
                trained = trained or train(context, image)
                scores = evaluate(context, image, trained.adapter)
        decision = judge(context, scores)
        report = make_report(context, scores, decision)
        hosted = host_adapter(context, image, decision) if decision.promoted else None
        if hosted:
            publish_hosted(context, hosted)
        tracked = track_results(context, scores, decision)
        link_report(context, scores, report)
        version = register(context, decision, hosted)
        report_run(context, trained, scores, decision, hosted, version, tracked)
        archive_run(context)
    if not decision.promoted:
        return Completed(name=NOT_PROMOTED, message=decision.reason)
    return context.run.run_id
