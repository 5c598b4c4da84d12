"""What is done about lost machines, in which order and for how long. Time is looks at the pool."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from configs.jobs import TrainJob
from tasks import machines
from tasks.attempts import all_attempts
from tasks.backends.protocols import Cluster, Machine, Machines, Request
from tasks.cluster import ensure_cluster
from tasks.context import Context
from tasks.machines import fits, have_machines
from tasks.run_dir import Run
from tasks.train import train
from tests.aws.profiles import cluster_config
from tests.fakes import IMAGE, FakeBackends, FakeClusters, FakeJobs
from tests.samples import make_context, reason, trains, without_waiting

GPU, HEAD = "ml.g7e.12xlarge", "ml.r5d.16xlarge"


def machine(name: str, state: Any = "ready", **changes: Any) -> Machine:
    kind = HEAD if name.startswith("head") else GPU
    known = {"recovers": True, "words": f"is {state}", "num_gpus": 0 if kind == HEAD else 2}
    return Machine(name=name, instance_type=kind, state=state, **(known | changes))


WELL = tuple(machine(name) for name in ("head", "gpu-1", "gpu-2", "gpu-3"))


def with_(other: Machine) -> tuple[Machine, ...]:
    return tuple(other if each.name == other.name else each for each in WELL)


@dataclass
class FakePool:
    """Implements `MachinePool`: shows what `shows` says at this time; nothing is asked twice of a
    machine that is not ill."""

    shows: Callable[["FakePool"], tuple[Machine, ...]]
    now_s: float = 1000.0
    requests: list[tuple[float, Request, str]] = field(default_factory=list)
    refuses: str = ""
    news: str = ""
    away: int = 0
    """So many next looks get no answer."""

    @property
    def waited_s(self) -> float:
        return self.now_s - 1000

    def asked(self, what: Request) -> bool:
        return any(each == what for _, each, _ in self.requests)

    def look(self) -> Machines:
        if self.away:
            self.away -= 1
            raise ConnectionError("Rate exceeded")
        return Machines(all=self.shows(self), news=self.news)

    def request(self, what: Request, machine: Machine) -> str:
        assert machine.state == "ill"
        self.requests.append((self.waited_s, what, machine.name))
        return self.refuses

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(frozen=True)
class OfAnySize(FakeBackends):
    """Jobs on clusters of the size that was asked for."""

    def jobs(self, cluster: Cluster) -> FakeJobs:
        return self.fake_jobs


class SizedClusters(FakeClusters):
    """One cluster, found only by whoever asks for its size."""

    size = 0

    def find(self, name: str, config: Any, image: Any) -> Cluster | None:
        is_it = super().find(name, config, image) and config.num_workers == self.size
        return self._cluster() if is_it else None

    def start(self, name: str, config: Any, image: Any) -> Cluster:
        super().start(name, config, image)
        self.size = config.num_workers
        return self._cluster()

    def _cluster(self) -> Cluster:
        return Cluster(name="maze", dashboard_url="http://ray", num_nodes=1 + self.size)


def on(pool: FakePool, folder: Path, monkeypatch: Any, **repair: Any) -> Context:
    """A run of the HyperPod profile's cluster on this pool; batches divide by six, four and two."""
    monkeypatch.setattr(machines, "time", pool)
    given = {"hyperpod_cluster": "mazes", "region": "us-west-2", **repair}
    cluster = cluster_config(repair=given)
    batches = {"mazes_per_step": 24, "mini_batch_mazes": 12, "samples_per_maze": 8}
    sizes = {f"train__{key}": value for key, value in batches.items()}
    plain = make_context(folder, **sizes, train__micro_batch_episodes=4, train__num_processes=6)
    config = plain.config.model_copy(update={"cluster": cluster})
    run = Run(plain.run.file.model_copy(update={"config": config}), plain.run.folder)
    jobs = FakeJobs()
    known = plain.backends
    backends = OfAnySize(
        known.images, SizedClusters(jobs), known.models, known.tracker, jobs, pool=pool
    )
    return replace(plain, run=run, backends=backends)


@pytest.fixture(autouse=True)
def no_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "get_run_logger", lambda: logging.getLogger("machines"))


Make = Callable[..., tuple[FakePool, Context]]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(shows: Callable[[FakePool], tuple[Machine, ...]], **repair: Any) -> Any:
        pool = FakePool(shows)
        return pool, on(pool, tmp_path, monkeypatch, **repair)

    return make


def test_machines_that_are_well_are_not_waited_for(make: Make) -> None:
    pool, context = make(lambda pool: WELL)
    assert have_machines(context) == 3
    assert pool.waited_s == 0 and pool.requests == []


def test_without_repairs_nobody_is_asked(make: Make) -> None:
    _, context = make(lambda pool: pytest.fail("asked"))
    cluster = context.config.cluster.model_copy(update={"repair": None})
    config = context.config.model_copy(update={"cluster": cluster})
    file = context.run.file.model_copy(update={"config": config})
    assert have_machines(replace(context, run=Run(file, context.run.folder))) == 3


def test_hyperpods_own_replacement_is_waited_for_and_each_reason_is_told_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def shows(pool: FakePool) -> tuple[Machine, ...]:
        if pool.waited_s < 400:
            return with_(machine("gpu-2", "coming", words="is about to be replaced"))
        return (
            WELL
            if pool.waited_s > 900
            else (*WELL[:2], WELL[3], machine("gpu-9", "coming", words="is being started"))
        )

    pool, context = make(shows, requests=["reboot", "replace"])
    assert have_machines(context) == 3
    assert 900 < pool.waited_s < 950 and pool.requests == []
    assert [record.message for record in caplog.records] == [
        f"cluster: waiting for machines: 1 {GPU} missing: gpu-2 is about to be replaced",
        f"cluster: waiting for machines: 1 {GPU} missing: gpu-9 is being started",
    ]


def test_a_machine_that_does_not_recover_is_rebooted_then_replaced(make: Make) -> None:
    def shows(pool: FakePool) -> tuple[Machine, ...]:
        return WELL if pool.asked("replace") else with_(machine("gpu-2", "ill"))

    pool, context = make(shows, requests=["reboot", "replace"])
    assert have_machines(context) == 3
    (first, reboot, name), (second, replacement, _) = pool.requests
    assert (reboot, replacement, name) == ("reboot", "replace", "gpu-2")
    assert 1800 <= first < 1830 and 1800 <= second - first < 1830


def test_the_heads_machine_that_nobody_watches_is_not_left_to_hyperpod(make: Make) -> None:
    def shows(pool: FakePool) -> tuple[Machine, ...]:
        return WELL if pool.requests else with_(machine("head", "ill", recovers=False))

    pool, context = make(shows, requests=["reboot"])
    assert have_machines(context) == 3
    ((when, what, name),) = pool.requests
    assert (what, name) == ("reboot", "head") and 300 <= when < 330


def test_without_requests_people_are_waited_for_until_time_is_up(make: Make) -> None:
    pool, context = make(lambda pool: with_(machine("head", "ill", recovers=False)))
    told = reason(lambda: have_machines(context))
    assert told.startswith("no machines for the cluster in 72")
    assert f"1 {HEAD} missing: head is ill" in told and "start the same flow again" in told
    assert pool.requests == []


def test_a_refused_repair_is_told_and_the_next_one_is_tried(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    pool, context = make(lambda pool: with_(machine("gpu-1", "ill")), requests=["reboot"] * 2)
    pool.refuses = "InvalidInstanceStatus: patch the cluster first"
    assert f"1 {GPU} missing: gpu-1 is ill" in reason(lambda: have_machines(context))
    assert len(pool.requests) == 2
    assert "HyperPod does not reboot gpu-1: InvalidInstanceStatus" in caplog.text


def test_a_machine_that_a_person_closed_or_is_coming_is_never_repaired(make: Make) -> None:
    def shows(pool: FakePool) -> tuple[Machine, ...]:
        return (WELL[0], WELL[1], machine("gpu-2", "closed"), machine("gpu-3", "coming"))

    pool, context = make(shows, requests=["reboot", "replace"])
    assert f"2 {GPU} missing" in reason(lambda: have_machines(context))
    assert pool.requests == []


def test_an_ill_machine_of_a_kind_that_is_not_lacking_is_left_alone(make: Make) -> None:
    pool, context = make(lambda pool: (*WELL, machine("gpu-4", "ill")), requests=["replace"])
    assert have_machines(context) == 3 and pool.requests == []


def test_no_more_machines_are_repaired_than_are_missing(make: Make) -> None:
    ill = [machine(f"gpu-{number}", "ill", recovers=False) for number in (3, 4, 5)]
    pool, context = make(lambda pool: (*WELL[:3], *ill), requests=["replace"])
    assert f"1 {GPU} missing" in reason(lambda: have_machines(context))
    assert [name for _, _, name in pool.requests] == ["gpu-3"]


def test_a_machine_that_may_recover_has_its_time_beside_one_that_does_not(make: Make) -> None:
    def shows(pool: FakePool) -> tuple[Machine, ...]:
        doomed = machine("gpu-2", "ill", recovers=False)
        back = machine("gpu-3") if pool.waited_s > 1000 else machine("gpu-3", "ill")
        return (*WELL[:2], doomed, back)

    pool, context = make(shows, min_workers=1)
    assert have_machines(context) == 2
    assert 1000 < pool.waited_s < 1100


def test_silence_of_the_pool_is_waited_out_within_the_time(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    pool, context = make(lambda pool: WELL)
    pool.away = 3
    assert have_machines(context) == 3 and pool.waited_s == 60
    assert "Rate exceeded" in caplog.text
    pool.away = 10_000
    assert "Rate exceeded" in reason(lambda: have_machines(context))


def test_missing_capacity_is_told_in_the_pools_own_words(make: Make) -> None:
    pool, context = make(lambda pool: WELL[:3])
    pool.news = "HyperPod says: insufficient capacity"
    told = reason(lambda: have_machines(context))
    assert f"1 {GPU} missing: HyperPod says: insufficient capacity" in told


def test_large_machines_have_room_for_several_workers(make: Make) -> None:
    big = machine("gpu-1", num_gpus=8)
    _, context = make(lambda pool: (WELL[0], big))
    assert have_machines(context) == 3


def test_fewer_workers_come_last_and_training_is_cut_to_them(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_waiting(monkeypatch)
    pool, context = make(
        lambda pool: with_(machine("gpu-3", "ill")), requests=["reboot"], min_workers=2
    )
    seen: list[TrainJob] = []
    backends: Any = context.backends

    def program(file: Path) -> Any:
        seen.append(TrainJob.read(file))
        yield from trains(to=6)(file)

    backends.fake_jobs.programs = [program]
    with disable_run_logger():
        assert train.fn(context, IMAGE).step == 6
    assert [what for _, what, _ in pool.requests] == ["reboot"]
    assert 3600 < pool.waited_s < 3700
    assert seen[0].config.train.num_processes == 4


def test_a_smaller_cluster_that_runs_is_adopted_and_no_machine_is_waited_for(make: Make) -> None:
    pool, context = make(lambda pool: WELL[:3], min_workers=2)
    backends: Any = context.backends
    with disable_run_logger():
        first = ensure_cluster(context, IMAGE)
        waited_s = pool.waited_s
        assert ensure_cluster(context, IMAGE) == first
    assert first.num_nodes == 3 and waited_s == pool.waited_s > 1800
    assert backends.clusters.started == 1


def test_a_node_lost_in_training_costs_no_step_that_was_saved(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: full size, a lost node, a wait, a request, and on with two of three."""
    without_waiting(monkeypatch)
    lost: list[bool] = []

    def shows(pool: FakePool) -> tuple[Machine, ...]:
        return with_(machine("gpu-3", "ill")) if lost else WELL

    pool, context = make(shows, requests=["replace"], min_workers=2)
    backends: Any = context.backends
    seen: list[TrainJob] = []

    def full(file: Path) -> Any:
        seen.append(TrainJob.read(file))
        backends.fake_jobs.output = "ray.exceptions.NodeDiedError: the node died\n"
        yield from trains(to=4, then="running")(file)
        lost.append(True)
        yield "failed"

    def smaller(file: Path) -> Any:
        seen.append(TrainJob.read(file))
        yield from trains(to=6)(file)

    backends.fake_jobs.programs = [full, smaller]
    with disable_run_logger():
        assert train.fn(context, IMAGE).attempts == 2
    first, second = all_attempts(context.run.attempts)
    assert first.cause == "lost node" and second.start_step == 4
    assert [job.config.train.num_processes for job in seen] == [6, 4]
    assert [what for _, what, _ in pool.requests] == ["replace"]


def test_fewer_processes_have_to_divide_the_batches(make: Make) -> None:
    _, context = make(lambda pool: WELL)
    config = context.config
    assert [num for num in (1, 2, 3) if fits(config, num)] == [1, 2, 3]
    odd = config.train.model_copy(update={"mini_batch_mazes": 1, "micro_batch_episodes": 2})
    assert not fits(config.model_copy(update={"train": odd}), 3)
