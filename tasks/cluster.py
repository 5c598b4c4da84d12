"""Stage cluster: the Ray cluster that train and evaluate submit their jobs to."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from pydantic import BaseModel, ConfigDict

from configs.digests import digest_of
from configs.schema import ClusterConfig
from tasks import records
from tasks.backends.protocols import Cluster, Image
from tasks.context import Context
from tasks.home import take_lock
from tasks.machines import have_machines
from tasks.records import ClusterRecord
from tasks.turn import Superseded

_POLL_S = 2.0


class Holder(BaseModel):
    """Written into the lock of a cluster: who holds it, or died holding it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    flow_run_id: str
    run_id: str


@contextmanager
def ray_cluster(context: Context, image: Image) -> Generator[None]:
    """The profile's cluster, for one flow at a time, released when its work is done or failed.

    Stages adopt it, and start another when it is lost. A flow that is killed leaves it
    and the job in it: whoever comes next adopts both.
    """
    with _alone(context) as holding:
        try:
            start_cluster(context, image)
            yield
        except Superseded:  # the cluster is its successor's by now
            raise
        except Exception:
            _give_back(context, holding)
            raise
        _give_back(context, holding)


def _give_back(context: Context, holding: IO[str]) -> None:
    """A cluster that could not be released keeps its holder: the sweep finds it by that."""
    release_cluster(context)
    holding.truncate(0)


@contextmanager
def _alone(context: Context) -> Generator[IO[str]]:
    """Wait until no other flow of this home works on the cluster; a dead one holds nothing.

    Yields the lock's file, which says who holds the cluster.
    """
    path = context.home.runtime / f"cluster-{context.config.name}.lock"
    with path.open("a+") as file:
        if not take_lock(file):
            get_run_logger().info("cluster: waiting for another run on %s", context.config.name)
            while not take_lock(file):
                time.sleep(_POLL_S)
        file.truncate(0)
        holder = Holder(flow_run_id=str(flow_run.id), run_id=context.run.run_id)
        file.write(holder.model_dump_json())
        file.flush()
        yield file


@task(task_run_name="cluster", cache_policy=NO_CACHE)
def start_cluster(context: Context, image: Image) -> Cluster:
    """Have a cluster before anything asks for it."""
    return ensure_cluster(context, image)


def ensure_cluster(context: Context, image: Image) -> Cluster:
    """Adopt the profile's cluster where it is alive and of this image, or start it.

    It may have fewer workers than the profile says, where cluster.repair allows that.
    """
    log = get_run_logger()
    config = context.config
    cluster = _find(context, image)
    if cluster is None:
        size = _of_size(config.cluster, have_machines(context))
        log.info("cluster: starting %s with %d workers", config.name, size.num_workers)
        cluster = context.backends.clusters.start(config.name, size, image)
        log.info("cluster: %s has %d nodes", cluster.name, cluster.num_nodes)
    inputs = digest_of([config.cluster, image])
    records.save(ClusterRecord(inputs=inputs, cluster=cluster), context.run.records)
    return cluster


def _find(context: Context, image: Image) -> Cluster | None:
    """Of the profile's size, or smaller as it may have been started for want of machines."""
    config = context.config.cluster
    fewest = config.repair.min_workers if config.repair else None
    least = fewest or config.num_workers
    for num_workers in range(config.num_workers, least - 1, -1):
        size = _of_size(config, num_workers)
        if found := context.backends.clusters.find(context.config.name, size, image):
            return found
    return None


def _of_size(config: ClusterConfig, num_workers: int) -> ClusterConfig:
    return config.model_copy(update={"num_workers": num_workers})


def give_up_cluster(context: Context) -> None:
    """End a cluster that cannot be trusted any more, with all that runs in it."""
    get_run_logger().warning("cluster: %s is given up", context.config.name)
    context.backends.clusters.stop(context.config.name)


@task(task_run_name="release cluster", cache_policy=NO_CACHE)
def release_cluster(context: Context) -> None:
    """Give back what the cluster holds; its jobs are done."""
    context.backends.clusters.stop(context.config.name)
    get_run_logger().info("cluster: %s is released", context.config.name)
