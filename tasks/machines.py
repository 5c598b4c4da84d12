"""Machines under a cluster: waited for, repaired on request, or done without, in this order.

A profile with the section cluster.repair asks here before a cluster is started, so that a lost
machine is seen as such and not as pods that nobody takes. Every wait says its reason.
"""

import time
from dataclasses import dataclass, field

from prefect.logging import get_run_logger

from configs.repair import RepairConfig
from configs.schema import ClusterConfig, PostTrainConfig
from tasks.backends.protocols import Machine, MachinePool, Machines, Request
from tasks.context import Context

_LOOK_S = 20


def have_machines(context: Context) -> int:
    """The number of workers that there are machines for: all, or fewer once nothing else helped.

    Raises:
        RuntimeError: time is up; says what is missing and the next move.
        ValueError: the pool cannot be asked at all.
    """
    config, pool = context.config, context.backends.pool
    if config.cluster.repair is None or pool is None:
        return config.cluster.num_workers
    wait = _Wait(config.cluster, config.cluster.repair, pool)
    while missing := wait.look():
        if wait.is_over() and (fewer := _fewer(context, wait)):
            get_run_logger().warning(
                "cluster: goes on with %d of %d workers", fewer, config.cluster.num_workers
            )
            return fewer
        if wait.elapsed_s() > config.cluster.repair.timeout_s:
            raise RuntimeError(
                f"no machines for the cluster in {wait.elapsed_s():.0f} s: {missing}. Next: mend "
                "that on HyperPod, then start the same flow again"
            )
        wait.repair()
        time.sleep(_LOOK_S)
    return config.cluster.num_workers


def fits(config: PostTrainConfig, num_workers: int) -> bool:
    """Does training divide by this many workers? Checkpoints do not mind who saved them."""
    train, num_processes = config.train, processes(config, num_workers)
    episodes = train.mini_batch_mazes * train.samples_per_maze
    return (
        episodes % num_processes == 0
        and episodes // num_processes % train.micro_batch_episodes == 0
        and train.mazes_per_step * train.samples_per_maze % num_processes == 0
    )


def processes(config: PostTrainConfig, num_workers: int) -> int:
    """Training processes on a cluster of this many workers, one a GPU."""
    return min(config.train.num_processes, num_workers * config.cluster.gpus_per_worker)


def _fewer(context: Context, wait: "_Wait") -> int | None:
    """The largest smaller cluster that there are machines for and that training can go on with."""
    config, least = context.config, wait.repair_config.min_workers
    if least is None:
        return None
    sizes = range(config.cluster.num_workers - 1, least - 1, -1)
    return next((n for n in sizes if wait.has_room(n) and fits(config, n)), None)


@dataclass
class _Wait:
    """One wait: what was seen last and what was asked for."""

    cluster: ClusterConfig
    repair_config: RepairConfig
    pool: MachinePool
    began: float = field(default_factory=lambda: time.monotonic())
    seen: Machines = field(default_factory=lambda: Machines(all=(), news=""))
    told: str = ""
    asked: dict[str, list[float]] = field(default_factory=dict)
    """By machine: when each request was made."""

    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def look(self) -> str:
        """What is missing, in words; empty where nothing is."""
        try:
            self.seen = self.pool.look()
        except ConnectionError as error:
            self.seen = Machines(all=(), news=str(error))
        lack = self._lack()
        words = ", ".join(f"{num} {kind}" for kind, num in lack.items())
        trouble = [f"{each.name} {each.words}" for each in self._not_ready()]
        said = "; ".join(filter(None, [*trouble, self.seen.news])) if lack else ""
        missing = f"{words} missing: {said or 'no others are there'}" if lack else ""
        if missing and missing != self.told:
            get_run_logger().info("cluster: waiting for machines: %s", missing)
        self.told = missing
        return missing

    def has_room(self, num_workers: int) -> bool:
        return not _lack(self.cluster, num_workers, self.seen)

    def is_over(self) -> bool:
        """All that may bring machines back has had its time."""
        missing = self._not_ready()
        may_come = not missing or any(m.recovers or m.state == "coming" for m in missing)
        first_s = self._first_s(recovers=may_come)
        ill = [each for each in missing if each.state == "ill"]
        is_spent = all(self._is_due(each) and self._next(each) is None for each in ill)
        return self.elapsed_s() > first_s and is_spent

    def repair(self) -> None:
        """Make the requests that are due, of no more machines than are missing."""
        lack = self._lack()
        for machine in self._not_ready():
            what = self._next(machine)
            if machine.state == "ill" and lack[machine.instance_type] > 0:
                lack[machine.instance_type] -= 1
                if what and self._is_due(machine):
                    self._ask(machine, what)

    def _ask(self, machine: Machine, what: Request) -> None:
        self.asked.setdefault(machine.name, []).append(time.monotonic())
        refusal = self.pool.request(what, machine)
        log = get_run_logger()
        if refusal:
            log.warning("cluster: HyperPod does not %s %s: %s", what, machine.name, refusal)
        else:
            log.info("cluster: HyperPod is asked to %s %s", what, machine.name)

    def _next(self, machine: Machine) -> Request | None:
        """What it can be asked for next; None once all was asked for."""
        left = self.repair_config.requests[len(self.asked.get(machine.name, [])) :]
        return left[0] if left else None

    def _is_due(self, machine: Machine) -> bool:
        """Has what was last done about it, or left to others, had its time?"""
        if asked := self.asked.get(machine.name):
            return time.monotonic() > asked[-1] + self.repair_config.request_timeout_s
        return self.elapsed_s() > self._first_s(recovers=machine.recovers)

    def _first_s(self, *, recovers: bool) -> int:
        config = self.repair_config
        return config.recovery_timeout_s if recovers else config.unwatched_timeout_s

    def _lack(self) -> dict[str, int]:
        return _lack(self.cluster, self.cluster.num_workers, self.seen)

    def _not_ready(self) -> list[Machine]:
        """The machines of the kinds that lack."""
        lack = self._lack()
        return [m for m in self.seen.all if m.state != "ready" and m.instance_type in lack]


def _lack(cluster: ClusterConfig, num_workers: int, machines: Machines) -> dict[str, int]:
    """How many machines are missing of which kind; a large one has room for several workers."""
    assert cluster.kuberay is not None  # the schema admits no repair without it
    head, worker = cluster.kuberay.head.instance_type, cluster.kuberay.worker.instance_type
    ready = [each for each in machines.all if each.state == "ready"]
    room = sum(
        max(each.num_gpus // cluster.gpus_per_worker, 1)
        for each in ready
        if each.instance_type == worker
    )
    lack = {worker: num_workers - room} if room < num_workers else {}
    if not any(each.instance_type == head for each in ready):
        lack.setdefault(head, 1)
    return lack
