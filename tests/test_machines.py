"""What a probe of the machines leads to: each bad machine is named, with the way out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from configs.loader import load_config
from configs.probes import GpuFacts, NodeFacts, Probe, ProbeJob
from configs.schema import PostTrainConfig
from tasks import attempts
from tasks.backends.object_store import FileStore
from tasks.backends.protocols import JobStatus
from tasks.context import Context
from tasks.jobs import job_environment, program
from tasks.preflight import machines, probe
from tasks.preflight.findings import Finding
from tasks.preflight.machines import judge
from tasks.preflight.probe import probe_cluster
from tasks.run_dir import Run
from tests.fakes import CLUSTER, IMAGE, FakeJobs, Program
from tests.samples import commit_checkpoint, make_context, reason, without_waiting

GPU = GpuFacts(name="RTX PRO 6000", memory_gb=95, patch_embedding_ms=0.5)
WORKERS = ("a", "b", "c")


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> PostTrainConfig:
    """The profile of the cluster, whose workers need 200 GB of RAM and here an EFA each."""
    monkeypatch.setattr(machines, "memory_needed_gb", lambda _: 200.0)
    return load_config("hyperpod", {"cluster.kuberay.worker.efa_interfaces": 1})


def node(name: str, **changes: Any) -> NodeFacts:
    """A good worker among the three."""
    good = NodeFacts(
        node=name,
        memory_gb=440,
        write_mb_per_s=500,
        read_mb_per_s=900,
        maze_digest="d",
        gpus=(GPU, GPU),
        driver="580.95",
        nccl="2.28.3",
        num_peer_pairs=0,
        num_fabric_interfaces=1,
        saw_after_s={other: 0.1 for other in WORKERS if other != name},
    )
    return good.model_copy(update=changes)


def facts(*nodes: NodeFacts, **changes: Any) -> Probe:
    good = Probe(refusal="", num_adapted=252, not_served=(), nodes=nodes)
    return good.model_copy(update=changes)


GOOD = facts(*map(node, WORKERS))


def wrong(config: PostTrainConfig, found: Probe) -> Finding:
    """The one finding that is not ok."""
    (only,) = [each for each in judge(config, found) if not each.ok]
    assert only.fix
    return only


def test_good_machines_pass_every_check(config: PostTrainConfig) -> None:
    found = {each.name: each for each in judge(config, GOOD)}
    assert all(each.ok for each in found.values())
    assert found["GPUs"].detail == "6 of RTX PRO 6000"
    assert found["driver and NCCL"].detail == "driver 580.95, NCCL 2.28.3"
    assert "between 0 of 3 pairs" in found["network"].detail
    assert found["adapter path"].detail.endswith("after 0.10 s at most")


@pytest.mark.parametrize(
    ("changes", "name", "words"),
    [
        ({"memory_gb": 199}, "memory of nodes", "needs 200 GB and the smallest has 199 GB"),
        ({"write_mb_per_s": 99}, "storage", "c is the slowest: writes 99, reads 900 MB/s"),
        ({"read_mb_per_s": 20}, "storage", "reads 20 MB/s"),
        ({"maze_digest": "e"}, "mazes", "2 different mazes on 3 nodes"),
        ({"gpus": (GPU,)}, "GPUs", "c has 1 GPUs of 2"),
        ({"gpus": ()}, "GPUs", "c has 0 GPUs of 2"),
        ({"driver": "570.1"}, "driver and NCCL", "driver 570.1 and 580.95"),
        ({"nccl": "2.27.7"}, "driver and NCCL", "NCCL 2.27.7 and 2.28.3"),
        ({"num_fabric_interfaces": 0}, "network", "0 fabric interfaces a node of 1"),
        ({"saw_after_s": {"a": 0.1}}, "adapter path", "c does not see what b writes"),
        ({"saw_after_s": {"a": 0.1, "b": 2.5}}, "adapter path", "after 2.50 s at most"),
        (
            {"gpus": (GPU, GPU.model_copy(update={"patch_embedding_ms": 48_000}))},
            "patch embedding",
            "48000.00 ms a frame on the slowest GPU, on c",
        ),
        ({"gpus": (GPU, GPU.model_copy(update={"name": "L4"}))}, "GPUs", "6 of L4 and RTX"),
    ],
)
def test_one_bad_machine_is_named(
    config: PostTrainConfig, changes: dict[str, Any], name: str, words: str
) -> None:
    found = wrong(config, facts(node("a"), node("b"), node("c", **changes)))
    assert found.name == name and words in found.detail


def test_a_worker_that_does_not_answer_is_missed(config: PostTrainConfig) -> None:
    a = node("a", saw_after_s={"b": 0.1})
    found = wrong(config, facts(a, node("b", saw_after_s={"a": 0.1})))
    assert found.detail == "2 of 3 workers answered"


def test_no_machine_at_all_passes_nothing_that_asks_for_one(config: PostTrainConfig) -> None:
    bad = {each.name for each in judge(config, facts()) if not each.ok}
    assert bad >= {"nodes", "mazes", "storage", "GPUs", "driver and NCCL", "patch embedding"}


def test_adapters_that_the_server_ignores_are_named(config: PostTrainConfig) -> None:
    ignored = tuple(f"visual.blocks.{n}.attn.qkv" for n in range(5))
    found = wrong(config, GOOD.model_copy(update={"not_served": ignored}))
    assert "ignores 5 of 252 adapters" in found.detail and found.detail.endswith(", ...")
    assert wrong(config, GOOD.model_copy(update={"num_adapted": 0})).name == "adapter layers"


def test_skyrls_refusal_comes_with_its_words(config: PostTrainConfig) -> None:
    found = wrong(config, GOOD.model_copy(update={"refusal": "21 should be divisible by 4"}))
    assert found.detail == "SkyRL refuses the configuration: 21 should be divisible by 4"


def test_a_machine_without_gpus_is_asked_for_none() -> None:
    here = node("here", gpus=(), driver="", nccl="", num_fabric_interfaces=0, saw_after_s={})
    found = judge(load_config("smoke"), facts(here, num_adapted=21))
    assert [each.name for each in found] == ["SkyRL", "adapter layers", "mazes", "storage"]
    assert all(each.ok for each in found)


@pytest.fixture
def context(tmp_path: Path, config: PostTrainConfig, monkeypatch: pytest.MonkeyPatch) -> Context:
    """A run of the cluster's profile, whose jobs are fakes."""
    without_waiting(monkeypatch)
    plain = make_context(tmp_path)
    mixed = plain.config.model_copy(
        update={"cluster": config.cluster, "preflight": config.preflight}
    )
    run = Run(plain.run.file.model_copy(update={"config": mixed}), plain.run.folder)
    return Context(run, plain.home, plain.backends)


def jobs_of(context: Context) -> FakeJobs:
    return context.backends.jobs(CLUSTER)  # ty: ignore


def answers(found: Probe, then: JobStatus = "succeeded") -> Program:
    """The probe: writes what it found, unless it fails."""

    def program(file: Path) -> Iterator[JobStatus]:
        job = ProbeJob.read(file)
        assert job.num_workers == 3 and not job.output.exists()
        yield "running"
        if then == "succeeded":
            job.output.write_text(found.model_dump_json())
        yield then

    return program


def probe_with(context: Context, *programs: Program) -> None:
    jobs_of(context).programs = list(programs)
    with disable_run_logger():
        probe_cluster.fn(context, IMAGE)


def test_the_cluster_is_asked_by_one_job_and_asked_anew_the_next_time(context: Context) -> None:
    probe_with(context, answers(GOOD), answers(GOOD))
    probe_with(context, answers(GOOD))
    names = jobs_of(context).submitted
    assert len(names) == 2 and set(names) == {f"{context.run.run_id}-preflight"}


def test_a_bad_cluster_is_refused_before_training(context: Context) -> None:
    bad = facts(node("a"), node("b"), node("c", maze_digest="e"))
    told = reason(lambda: probe_with(context, answers(bad)))
    assert told.startswith("preflight refuses the run: mazes: one seed draws 2 different mazes")


def test_a_probe_that_fails_names_its_log(context: Context) -> None:
    jobs_of(context).output = "RuntimeError: CUDA error\n"
    told = reason(lambda: probe_with(context, answers(GOOD, then="failed")))
    log = context.run.scratch("preflight") / "job.log"
    assert told.endswith(f"failed: see {log}") and "CUDA error" in log.read_text()


def test_what_a_probe_of_before_has_left_is_not_believed(context: Context) -> None:
    """A flow died after its probe had ended: its job is still known, its answer lies there."""
    probe_with(context, answers(GOOD))
    left = context.run.scratch("preflight") / "probe.json"
    assert left.is_file()
    told = reason(lambda: probe_with(context, answers(GOOD, then="failed")))
    assert "failed: see" in told and not left.exists()


def test_a_probe_that_never_ends_is_stopped(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(file: Path) -> Iterator[JobStatus]:
        while True:
            yield "running"

    monkeypatch.setattr(probe, "_CLUSTER_TIMEOUT_S", 0)
    told = reason(lambda: probe_with(context, hangs))
    assert "did not answer in 0 s" in told
    assert jobs_of(context).status(f"{context.run.run_id}-preflight") == "stopped"


def test_machines_that_train_already_or_have_nothing_to_train_are_left_alone(
    context: Context,
) -> None:
    def trains(file: Path) -> Iterator[JobStatus]:
        while True:
            yield "running"

    run, jobs = context.run, jobs_of(context)
    attempt = attempts.take_next(FileStore(run.attempts), run.run_id, "flow", 0)
    jobs.programs = [trains]
    job = run.scratch("attempt-1") / "job.json"
    job.write_text("{}")
    command = program(IMAGE, "containers.trainer.train_main", job)
    jobs.submit_or_adopt(attempt.submission_id, command, job_environment(IMAGE))
    probe_with(context)
    jobs.stop(attempt.submission_id)
    commit_checkpoint(run.checkpoints, run.config.train.steps, attempt=1)
    probe_with(context)
    assert jobs.submitted == [attempt.submission_id]
