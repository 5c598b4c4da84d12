"""Stage host: serve an adapter that the gate has judged, and remember what was served before.

Nothing is served that was not measured: hosting takes the gate's record and nothing else. A
rejected adapter is served only on an operator's word, with a reason that stays on record.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from configs.digests import digest_of
from configs.jobs import SolveJob
from configs.serving import ServedAdapter
from tasks import records
from tasks.adapters import read_intact
from tasks.backends.protocols import Endpoint, HostedModel, Image
from tasks.backends.wiring import make_backends
from tasks.context import Context
from tasks.gate import find_decision, is_outdated
from tasks.home import Home, take_lock
from tasks.hosted import Hosted, champion, history, remember
from tasks.proof import choose_probes
from tasks.records import EvaluateRecord, GateRecord, HostRecord, Promotion
from tasks.run_dir import open_run
from tasks.turn import check_turn

_POLL_S = 0.5


@task(task_run_name="host", cache_policy=NO_CACHE)
def host_adapter(
    context: Context,
    image: Image,
    decision: GateRecord,
    promotion: Promotion | None = None,
    instead_of: str | None = None,
) -> HostRecord:
    """Serve the adapter of `decision`, or see that it is served.

    Args:
        context: The run of the adapter.
        image: What the server runs in.
        decision: The gate's record on the adapter.
        promotion: Whose word it is served on. None: the gate's.
        instead_of: Digest of the adapter that it was chosen to replace. None: of any.

    Raises:
        ValueError: the adapter is not the one that was measured, the gate rejected it, has
            judged it against another adapter than the one now serving, or another one serves
            than it was to replace.
        RuntimeError: the server does not serve it.
    """
    check_turn(context.run)
    with hosting(context.home):
        _check_decision(context, decision, promotion)
        _check_replaced(context.home, decision, instead_of)
        endpoint = _serve(context, _model(context, image, decision))
        promotion = promotion or Promotion.now("gate", "gate", decision.reason)
        hosted = Hosted(
            run_id=decision.run_id,
            step=decision.step,
            adapter_digest=decision.adapter_digest,
            promotion=promotion,
        )
        hosted = remember(context.home, hosted)
        context.backends.models.settle(decision.adapter_digest)
        record = HostRecord(
            inputs=digest_of(_model(context, image, decision)),
            endpoint=endpoint,
            adapter_name=context.config.host.adapter_name,
            adapter_digest=decision.adapter_digest,
            gate=decision.inputs,
            promotion=hosted.promotion or promotion,
        )
        records.save(record, context.run.records)
        SolveJob(config=context.config, url=endpoint.url, model=record.adapter_name).write(
            solve_job_file(context.home)
        )
    return record


@contextmanager
def hosting(home: Home) -> Generator[None]:
    """One flow at a time changes what serves, and what the registry says of it."""
    with (home.hosting / ".lock").open("a") as file:
        while not take_lock(file):
            time.sleep(_POLL_S)
        yield


def put_back(home: Home) -> str | None:
    """Undo what a flow that died in this stage has left half done; the champion served again.

    Nothing serves that the history does not know: what it names last is put back to service.
    """
    with (home.hosting / ".lock").open("a") as file:
        served = history(home) if take_lock(file) else []  # else a flow is at it
        if not served:
            return None
        digest = served[-1].adapter_digest
        config = open_run(home.runs, served[-1].run_id).config
        return digest if make_backends(config, home).models.settle(digest) else None


def solve_job_file(home: Home) -> Path:
    """How to reach what is hosted now."""
    return home.hosting / "endpoint.json"


def _check_decision(context: Context, decision: GateRecord, promotion: Promotion | None) -> None:
    which = f"adapter {decision.adapter.name} of run {decision.run_id}"
    recorded = find_decision(context.run, decision.adapter)
    if recorded != decision or recorded.run_id != context.run.run_id:
        raise ValueError(
            f"{which} is not what the gate has on record: "
            "run the deployment evaluate/evaluate for it first"
        )
    if promotion is not None:
        return
    if not decision.promoted:
        raise ValueError(
            f"the gate did not promote {which}: {decision.reason}; to serve it all the same run "
            "the deployment host/host with your name and a reason"
        )
    if is_outdated(context, decision):
        raise ValueError(
            f"{which} was judged by another policy or against another adapter than the one that "
            "serves now: run the deployment evaluate/evaluate for it, or post-train again"
        )


def _check_replaced(home: Home, decision: GateRecord, instead_of: str | None) -> None:
    """What was chosen while another adapter served may be chosen wrongly by now."""
    if instead_of is None:
        return
    if history(home)[-1].adapter_digest not in (instead_of, decision.adapter_digest):
        raise ValueError(
            f"adapter {instead_of[:12]} was to be replaced, and another one was put to service "
            "meanwhile: look at what serves now, then start the flow again if it is still wanted"
        )


def _serve(context: Context, model: HostedModel) -> Endpoint:
    """An endpoint that says itself that it serves this very adapter."""
    log = get_run_logger()
    endpoint = context.backends.models.find(model)
    if endpoint is None:
        log.info("host: loading adapter %s", model.champion.digest[:12])
        endpoint = context.backends.models.serve(model)
    served = endpoint.models.get(model.alias)
    if served != model.champion.digest:
        raise RuntimeError(
            f"{endpoint.url} serves {served} as {model.alias!r}, not the adapter "
            f"{model.champion.digest}: look into the model server's log, then start the flow again"
        )
    log.info("host: %s answers as %r", endpoint.url, model.alias)
    return endpoint


def _model(context: Context, image: Image, decision: GateRecord) -> HostedModel:
    config = context.config
    return HostedModel(
        base=config.model.path,
        base_digest=context.run.file.base_digest,
        champion=ServedAdapter(digest=decision.adapter_digest, folder=decision.adapter),
        previous=_at_hand(context, decision),
        alias=config.host.adapter_name,
        probes=choose_probes(_scores(context, decision), context.run.mazes()),
        num_replicas=config.host.num_replicas,
        port=config.host.port,
        dtype=config.evaluate.dtype,
        device=config.train.device,
        max_model_len=config.model.max_model_len,
        mazes=config.mazes,
        max_action_tokens=config.evaluate.max_action_tokens,
        lora_rank=config.train.lora.rank,
        image=image,
        timeout_s=config.host.start_timeout_s,
    )


def _scores(context: Context, decision: GateRecord) -> EvaluateRecord:
    """The evaluation that the gate has judged."""
    folder = context.run.evaluation(decision.inputs)
    scores = records.find(EvaluateRecord, decision.inputs, folder)
    if scores is None:
        raise ValueError(f"{folder} is gone: run the deployment evaluate/evaluate for the adapter")
    return scores


def _at_hand(context: Context, decision: GateRecord) -> ServedAdapter | None:
    """What served last beside this adapter, if it is still there and of the same base."""
    before = champion(context.home, decision.adapter_digest)
    if before is None:
        return None
    try:
        run = open_run(context.home.runs, before.run_id)
        folder = run.adapter(before.step)
    except ValueError:  # its run or adapter was deleted
        return None
    if run.file.base_digest != context.run.file.base_digest:
        return None
    if run.config.train.lora.rank > context.config.train.lora.rank:
        return None  # the servers make room for adapters of this run's rank
    manifest = read_intact(folder)
    if manifest is None or manifest.digest != before.adapter_digest:
        return None  # trained anew since, or damaged: what answered then is no longer there
    return ServedAdapter(digest=before.adapter_digest, folder=folder)
