"""host: put the evaluated adapter of a run's step to service."""

from prefect import flow

from flows.evaluate import RunId, Step
from tasks.context import reopen
from tasks.evaluate import require_evaluation
from tasks.host import host_adapter
from tasks.image import build_image


@flow(name="host", flow_run_name="{run_id} step {step}")
def host(run_id: RunId, step: Step) -> str:
    """Serve an adapter that was evaluated.

    Args:
        run_id: Name of the run's folder.
        step: Training step of the adapter.

    Returns:
        The address of the endpoint.
    """
    context = reopen(run_id)
    scores = require_evaluation(context.run, context.run.adapter(step))
    image = build_image(context)
    return host_adapter(context, image, scores).endpoint.url
