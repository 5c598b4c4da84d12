"""rollback: put the adapter that served before back to service."""

from prefect import flow

from tasks.context import reopen
from tasks.gate import require_decision
from tasks.home import Home
from tasks.host import host_adapter
from tasks.hosted import choose_rollback
from tasks.image import build_image
from tasks.publish import publish_hosted
from tasks.registry import register
from tasks.turn import turn


@flow(name="rollback")
def rollback() -> str:
    """Serve what was served before the current adapter; returns the endpoint."""
    home = Home.from_environment()
    chosen = choose_rollback(home)
    context = reopen(chosen.to.run_id)
    with turn(context.run):
        decision = require_decision(context.run, context.run.adapter(chosen.to.step))
        image = build_image(context)
        hosted = host_adapter(
            context, image, decision, chosen.promotion, chosen.instead_of.adapter_digest
        )
        publish_hosted(context, hosted)
        register(context, decision, hosted)
    return hosted.endpoint.url
