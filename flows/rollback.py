"""rollback: put the adapter that served before back to service."""

from prefect import flow

from tasks.context import reopen
from tasks.gate import require_decision
from tasks.home import Home
from tasks.host import host_adapter
from tasks.hosted import previous, rolling_back
from tasks.image import build_image
from tasks.registry import register
from tasks.turn import turn


@flow(name="rollback")
def rollback() -> str:
    """Serve what was served before the current adapter; returns the endpoint."""
    home = Home.from_environment()
    earlier = previous(home)
    context = reopen(earlier.run_id)
    with turn(context.run):
        decision = require_decision(context.run, context.run.adapter(earlier.step))
        image = build_image(context)
        hosted = host_adapter(context, image, decision, rolling_back(home))
        register(context, decision, hosted)
    return hosted.endpoint.url
