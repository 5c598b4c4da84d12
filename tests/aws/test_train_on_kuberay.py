"""Training on Kubernetes: a lost machine costs a RayCluster and no step that was saved."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from tasks import attempts
from tasks.backends import kuberay
from tasks.backends.protocols import Cluster, Image
from tasks.backends.wiring import Backends
from tasks.context import Context
from tasks.records import TrainRecord
from tasks.run_dir import Run
from tasks.train import train
from tests import fakes
from tests.aws.profiles import IMAGE, Setting
from tests.fakes import FakeJobs, Program
from tests.kubernetes_api.server import KubernetesServer
from tests.kubernetes_api.store import POD, RAY_CLUSTER
from tests.samples import make_context, reason, trains, without_waiting

ON_KUBERNETES = fakes.IMAGE.model_copy(update={"reference": IMAGE.reference})


@dataclass(frozen=True)
class OnKubernetes(Backends):
    """Real RayClusters of a strict API; their jobs are fakes."""

    fake_jobs: FakeJobs

    def jobs(self, cluster: Cluster) -> FakeJobs:
        assert cluster.num_nodes == 4
        return self.fake_jobs


@pytest.fixture
def context(
    make: Callable[..., Setting], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Context:
    without_waiting(monkeypatch)
    setting = make()
    plain = make_context(tmp_path)
    config = plain.config.model_copy(update={"cluster": setting.config})
    file = plain.run.file.model_copy(update={"config": config})
    run = Run(file, plain.run.folder)
    given = plain.backends
    jobs = FakeJobs()
    backends = OnKubernetes(given.images, setting.backend, given.models, given.tracker, jobs)
    return Context(run, plain.home, backends)


def train_with(context: Context, *programs: Program, image: Image = ON_KUBERNETES) -> TrainRecord:
    backends: Any = context.backends
    backends.fake_jobs.programs = list(programs)
    with disable_run_logger():
        return train.fn(context, image)


def test_a_lost_node_costs_a_cluster_and_training_goes_on_from_the_checkpoint(
    context: Context, kuberay_server: KubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends: Any = context.backends
    backends.fake_jobs.output = "ray.exceptions.NodeDiedError: the node died\n"
    kuberay_server.store.dead_nodes.add("smoke-worker-3-n")
    monkeypatch.setattr(kuberay, "_FAREWELL_S", 1)
    short = backends.clusters._kuberay.model_copy(update={"stop_timeout_s": 0})
    monkeypatch.setattr(backends.clusters, "_kuberay", short)
    record = train_with(context, trains(to=5, then="failed"), trains(to=6))
    assert record.step == 6 and record.attempts == 2
    first, second = attempts.all_attempts(context.run.attempts)
    assert first.cause == "lost node" and second.start_step == 4
    assert len(kuberay_server.made("create", "rayclusters")) == 2
    assert [call.name for call in kuberay_server.made("delete", "pods")] == ["smoke-worker-3"]


def test_an_image_without_a_registry_stops_before_anything_is_made(
    context: Context, kuberay_server: KubernetesServer
) -> None:
    told = reason(lambda: train_with(context, image=fakes.IMAGE))
    assert "it needs a registry and its digest there" in told
    assert kuberay_server.store.items(RAY_CLUSTER) == kuberay_server.store.items(POD) == []
