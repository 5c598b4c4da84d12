"""Stage host: serve an adapter that was evaluated, and remember what was served before."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from pydantic import BaseModel, ConfigDict

from configs.digests import digest_of
from configs.jobs import SolveJob
from configs.serving import ServedAdapter
from tasks import records
from tasks.backends.protocols import HostedModel, Image
from tasks.context import Context
from tasks.home import Home
from tasks.proof import choose_probes
from tasks.records import EvaluateRecord, HostRecord, write_whole
from tasks.run_dir import open_run
from tasks.turn import check_turn


class Hosted(BaseModel):
    """One line of hosting/history.jsonl: an adapter that was put to service."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    step: int
    adapter_digest: str


@task(task_run_name="host", cache_policy=NO_CACHE)
def host_adapter(context: Context, image: Image, scores: EvaluateRecord) -> HostRecord:
    """Serve the adapter of `scores`, or see that it is served."""
    log = get_run_logger()
    check_turn(context.run)
    model = _model(context, image, scores)
    endpoint = context.backends.models.find(model)
    if endpoint is None:
        log.info("host: loading adapter %s", scores.adapter_digest[:12])
        endpoint = context.backends.models.serve(model)
    log.info("host: %s answers as %r", endpoint.url, model.alias)
    record = HostRecord(
        inputs=digest_of(model),
        endpoint=endpoint,
        adapter_name=model.alias,
        adapter_digest=scores.adapter_digest,
    )
    records.save(record, context.run.records)
    SolveJob(config=context.config, url=endpoint.url, model=model.alias).write(
        solve_job_file(context.home)
    )
    _remember(
        context.home,
        Hosted(run_id=context.run.run_id, step=scores.step, adapter_digest=scores.adapter_digest),
    )
    return record


def solve_job_file(home: Home) -> Path:
    """How to reach what is hosted now."""
    return home.hosting / "endpoint.json"


def history(home: Home) -> list[Hosted]:
    """What was put to service, oldest first."""
    file = home.hosting / "history.jsonl"
    lines = file.read_text().splitlines() if file.is_file() else []
    return [Hosted.model_validate_json(line) for line in lines]


def previous(home: Home) -> Hosted:
    """What served before the adapter that serves now.

    Raises:
        ValueError: nothing did.
    """
    served = history(home)
    earlier = [each for each in served if each.adapter_digest != served[-1].adapter_digest]
    if not earlier:
        raise ValueError("nothing to roll back to: no other adapter was hosted before")
    return earlier[-1]


def _remember(home: Home, hosted: Hosted) -> None:
    served = history(home)
    if not served or served[-1] != hosted:
        lines = [each.model_dump_json() for each in [*served, hosted]]
        write_whole(home.hosting / "history.jsonl", "\n".join(lines) + "\n")


def _model(context: Context, image: Image, scores: EvaluateRecord) -> HostedModel:
    config = context.config
    return HostedModel(
        base=config.model.path,
        base_digest=context.run.file.base_digest,
        champion=ServedAdapter(digest=scores.adapter_digest, folder=scores.adapter),
        previous=_at_hand(context, scores),
        alias=config.host.adapter_name,
        probes=choose_probes(scores, context.run.mazes()),
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


def _at_hand(context: Context, scores: EvaluateRecord) -> ServedAdapter | None:
    """What served last beside this adapter, if it is still there and of the same base."""
    others = [h for h in history(context.home) if h.adapter_digest != scores.adapter_digest]
    if not others:
        return None
    try:
        run = open_run(context.home.runs, others[-1].run_id)
        folder = run.adapter(others[-1].step)
    except ValueError:  # its run or adapter was deleted
        return None
    if run.file.base_digest != context.run.file.base_digest:
        return None
    return ServedAdapter(digest=others[-1].adapter_digest, folder=folder)
