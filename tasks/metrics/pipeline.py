"""Samples of a run's way through the pipeline: stages, attempts, what failures cost, the gate."""

import time
from collections import Counter
from collections.abc import Iterator

from tasks.attempts import fruitless
from tasks.failures import CANCELLED, CAUSES
from tasks.metrics import catalogue as m
from tasks.metrics.catalogue import Sample
from tasks.metrics.followed import STAGES, FollowedRun
from tasks.metrics.ledger import Ledger, reckon
from tasks.records import GateRecord

_OTHER = "other"
"""The cause of a failure whose class this version does not know."""
_S_PER_HOUR = 3600


def pipeline_samples(followed: FollowedRun) -> Iterator[Sample]:
    """Everything that run.json, the records and the attempts say."""
    file, config = followed.run.file, followed.run.config
    name = (file.run_id,)
    digests = [d[:12] for d in (file.base_digest, file.image_digest, file.mazes_digest)]
    yield Sample(m.RUN_INFO, (*name, config.name, config.train.device, *digests), 1)
    active = followed.is_active
    yield Sample(m.ACTIVE, name, active)
    yield Sample(m.GAVE_UP, name, _has_failed(followed) and not active)
    for stage in [*(kind.stage for kind in STAGES), "done"]:
        yield Sample(m.STAGE, (*name, stage), stage == followed.stage)
    for stage, seconds in followed.stage_times_s.items():
        yield Sample(m.STAGE_TIME, (*name, stage), seconds)
    yield from _attempts(followed)
    yield from _costs(followed)
    if followed.gate:
        yield from _gate(followed.run.run_id, followed.gate)


def _has_failed(followed: FollowedRun) -> bool:
    last = followed.attempts[-1] if followed.attempts else None
    return bool(last and last.cause and last.cause != CANCELLED.cause)


def _attempts(followed: FollowedRun) -> Iterator[Sample]:
    attempts, name = followed.attempts, (followed.run.run_id,)
    yield Sample(m.ATTEMPTS, name, len(attempts))
    yield Sample(m.ATTEMPT_OPEN, name, followed.is_open)
    yield Sample(m.FRUITLESS, name, len(fruitless(attempts)))
    failed = Counter(a.cause if a.cause in CAUSES else _OTHER for a in attempts if a.cause)
    for cause in (*CAUSES, _OTHER):
        yield Sample(m.FAILURES, (*name, cause), failed[cause])


def _costs(followed: FollowedRun) -> Iterator[Sample]:
    config, name = followed.run.config, (followed.run.run_id,)
    ledger = reckon(followed.attempts, followed.trained, time.time() * 1000)
    yield Sample(m.LOST_S, name, ledger.lost_s)
    yield Sample(m.RECOVERIES, name, len(ledger.recoveries_s))
    yield Sample(m.RECOVERIES_S, name, sum(ledger.recoveries_s))
    if ledger.recoveries_s:
        yield Sample(m.RECOVERY_S, name, ledger.recoveries_s[-1])
    cluster = config.cluster
    on_gpu = config.train.device == "cuda"
    device = (*name, "gpu" if on_gpu else "core")
    each = cluster.gpus_per_worker if on_gpu else cluster.cpus_per_worker
    num_devices = cluster.num_workers * each
    yield Sample(m.DEVICE_S, device, ledger.held_s * num_devices)
    yield Sample(m.DEVICE_LOST_S, device, ledger.held_lost_s * num_devices)
    yield from _dollars(followed, ledger)


def _dollars(followed: FollowedRun, ledger: Ledger) -> Iterator[Sample]:
    config, name = followed.run.config, (followed.run.run_id,)
    per_hour = config.cost.usd_per_hour(config.cluster.num_workers)
    if per_hour:
        yield Sample(m.DOLLARS, name, ledger.held_s / _S_PER_HOUR * per_hour)
        yield Sample(m.DOLLARS_LOST, name, ledger.held_lost_s / _S_PER_HOUR * per_hour)


def _gate(run_id: str, gate: GateRecord) -> Iterator[Sample]:
    name = (run_id,)
    yield Sample(m.GATE_STEP, name, gate.step)
    yield Sample(m.GATE_SUCCESS, name, gate.num_solved / gate.num_mazes)
    for bound, share in zip(("low", "high"), gate.interval, strict=True):
        yield Sample(m.GATE_INTERVAL, (*name, bound), share)
    yield Sample(m.GATE_BASE, name, gate.base.num_solved / gate.num_mazes)
    yield Sample(m.GATE_PROMOTED, name, gate.promoted)
    for held_out in gate.held_out:
        if held_out.num_mazes:
            share = held_out.num_solved / held_out.num_mazes
            yield Sample(m.HELD_OUT, (*name, held_out.name), share)
