"""host: put an adapter that was evaluated to service; an operator may overrule the gate."""

from typing import Annotated

from prefect import flow
from pydantic import Field

from flows.evaluate import RunId, Step
from tasks.context import reopen
from tasks.gate import require_decision
from tasks.host import host_adapter
from tasks.hosted import on_word_of
from tasks.image import build_image
from tasks.publish import publish_hosted
from tasks.registry import register
from tasks.turn import turn

Operator = Annotated[str, Field(pattern=r"^(\S.{0,98}\S)?$")]
Reason = Annotated[str, Field(pattern=r"^(\S.{8,498}\S)?$")]


@flow(name="host", flow_run_name="{run_id} step {step}")
def host(run_id: RunId, step: Step, operator: Operator = "", reason: Reason = "") -> str:
    """Serve an adapter that the gate promoted, or another one on your word.

    Args:
        run_id: Name of the run's folder.
        step: Training step of the adapter.
        operator: Your name; needed with a reason.
        reason: Why it shall serve although the gate did not promote it, in 10 to 500 characters.
            It stays on record. Empty: only if the gate promoted it.

    Returns:
        The address of the endpoint.
    """
    context = reopen(run_id)
    with turn(context.run):
        decision = require_decision(context.run, context.run.adapter(step))
        image = build_image(context)
        hosted = host_adapter(context, image, decision, on_word_of(operator, reason))
        publish_hosted(context, hosted)
        register(context, decision, hosted)
    return hosted.endpoint.url
