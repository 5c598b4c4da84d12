"""Real Ray under a strict Kubernetes API: a RayCluster that trains, loses a node, and ends."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks import services
from tasks.backends.kuberay import KubeRay
from tasks.backends.protocols import Image
from tasks.backends.ray_jobs import RayJobs
from tasks.backends.ray_nodes import count_nodes
from tasks.backends.supervisord import Supervisord
from tasks.home import Home
from tasks.run_dir import Run, open_run
from tests.aws.conftest import RBAC
from tests.aws.fleet import Fleet, running_fleet
from tests.aws.on_kuberay import image_here, smoke_on_kuberay
from tests.aws.profiles import claim
from tests.aws.real_ray import RealRay
from tests.homes import ROOT, kill
from tests.kubernetes_api.rbac import read_rules
from tests.kubernetes_api.server import KubernetesServer
from tests.kubernetes_api.store import CLAIM, POD, RAY_CLUSTER
from tests.waiting import wait_until

pytestmark = pytest.mark.pipeline


@pytest.fixture(scope="module")
def image() -> Image:
    return image_here()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Home]:
    """Where the raylets are kept that stand for machines."""
    home = Home(tmp_path / "nodes").create()
    yield home
    Supervisord(home).shutdown()


@pytest.fixture
def server(nodes: Home, image: Image) -> Iterator[KubernetesServer]:
    with KubernetesServer(RealRay(nodes, image)) as running:
        running.rules = read_rules(RBAC)
        running.store.create(CLAIM, "ariadne", claim())
        yield running


@pytest.fixture
def fleet(server: KubernetesServer, nodes: Home, image: Image, tmp_path: Path) -> Iterator[Fleet]:
    """The machines of that Kubernetes, which pods wait for."""
    cluster = smoke_on_kuberay(Path(server.access(tmp_path)["kubeconfig"]), tmp_path).cluster
    assert cluster.kuberay
    with running_fleet(server.store, cluster.kuberay, cluster.num_workers) as fleet:
        server.operators.operator = RealRay(nodes, image, fleet.has_all)
        yield fleet


def test_a_raycluster_is_a_real_ray_cluster_that_runs_jobs_and_ends(
    server: KubernetesServer, fleet: Fleet, nodes: Home, image: Image, tmp_path: Path
) -> None:
    config = smoke_on_kuberay(Path(server.access(tmp_path)["kubeconfig"]), tmp_path).cluster
    backend = KubeRay(config)
    cluster = backend.start("smoke", config, image)
    assert cluster.num_nodes == 2 and backend.find("smoke", config, image) == cluster
    jobs = RayJobs(cluster.dashboard_url)
    program = "import ray; ray.init(); print('CPUs:', ray.cluster_resources()['CPU'])"
    jobs.submit_or_adopt("asks", [image.python, "-c", program], {"PYTHONPATH": image.app})
    wait_until(lambda: jobs.status("asks") in ("succeeded", "failed"), timeout_s=120)
    assert "CPUs: 4.0" in jobs.logs("asks"), "one worker with the CPUs of the manifest"
    (machine,) = fleet.workers()
    fleet.lose(machine)
    kill(nodes, "--address")
    wait_until(lambda: backend.find("smoke", config, image) is None, timeout_s=60)
    wait_until(lambda: count_nodes(cluster.dashboard_url) == 1, timeout_s=120)
    fleet.replace(machine)
    assert backend.start("smoke", config, image) == cluster, "KubeRay mends it"
    assert len(server.made("create", "rayclusters")) == 1
    backend.stop("smoke")
    assert server.store.items(RAY_CLUSTER) == server.store.items(POD) == []
    kept = [state.name for state in Supervisord(nodes).states() if state.name.startswith("ray-")]
    assert kept == []
    with pytest.raises(httpx.HTTPError):
        httpx.get(cluster.dashboard_url, timeout=5)


def test_the_smoke_profile_trains_on_a_raycluster_and_outlives_a_lost_node(
    server: KubernetesServer, fleet: Fleet, nodes: Home, tmp_path: Path
) -> None:
    """The whole flow; the machine of its node fails after the first checkpoint. The flow waits for
    HyperPod to replace it, and training goes on on the mended RayCluster or on a new one, by what
    the job saw of it."""
    home = Home(tmp_path / "shared" / "home")
    home.root.parent.mkdir()
    kubeconfig = Path(server.access(tmp_path)["kubeconfig"])
    command = [sys.executable, "-m", "tests.aws.on_kuberay", str(kubeconfig)]
    log = tmp_path / "flow.log"
    try:
        environment = os.environ | services.up(home).environment(home)
        with log.open("wb") as output:
            flow = subprocess.Popen(
                [*command, str(home.root.parent)],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        markers = "*/checkpoints/global_step_1/COMMITTED.json"
        wait_until(lambda: any(home.runs.glob(markers)) or flow.poll() is not None, timeout_s=480)
        assert flow.poll() is None, log.read_text()[-3000:]
        (machine,) = fleet.workers()
        fleet.lose(machine)
        kill(nodes, "--address")
        waits = f"1 ml.t3.xlarge missing: {machine} has failed"
        wait_until(lambda: waits in log.read_text() or flow.poll() is not None, timeout_s=300)
        assert flow.poll() is None, log.read_text()[-3000:]
        fleet.replace(machine)
        flow.wait(timeout=900)
        assert flow.returncode == 0, log.read_text()[-3000:]
    finally:
        Supervisord(home).shutdown()
    run = _only_run(home)
    first, last = _attempts(run)[0], _attempts(run)[-1]
    assert last["reason"] == "succeeded"
    is_new = {"lost node": True, "lost cluster": True, "lost worker": False}[first["cause"]]
    assert last["start_step"] >= 1 and run.committed_step() == run.config.train.steps
    assert len(_attempts(run)) == 2 and len(server.made("create", "rayclusters")) == 1 + is_new
    assert server.store.items(RAY_CLUSTER) == []
    assert json.loads((run.records / "host.json").read_text())["adapter_name"] == "maze-solver"


def _only_run(home: Home) -> Run:
    (folder,) = home.runs.iterdir()
    return open_run(home.runs, folder.name)


def _attempts(run: Run) -> list[dict[str, Any]]:
    files = sorted(run.attempts.glob("*.json"), key=lambda path: int(path.stem))
    return [json.loads(file.read_text()) for file in files]
