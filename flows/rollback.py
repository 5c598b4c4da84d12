"""rollback: put the adapter that served before back to service."""

from prefect import flow

from tasks.context import reopen
from tasks.evaluate import require_evaluation
from tasks.home import Home
from tasks.host import host_adapter, previous
from tasks.image import build_image


@flow(name="rollback")
def rollback() -> str:
    """Serve what was served before the current adapter; returns the endpoint."""
    earlier = previous(Home.from_environment())
    context = reopen(earlier.run_id)
    scores = require_evaluation(context.run, context.run.adapter(earlier.step))
    image = build_image(context)
    return host_adapter(context, image, scores).endpoint.url
