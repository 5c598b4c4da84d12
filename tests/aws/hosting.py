"""Hosting on Kubernetes: the real door in a pod, and what is served with it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
import uvicorn

from configs.hosting import ServingPodConfig
from configs.kuberay import KubeRayConfig
from configs.loader import ROOT, load_config
from configs.serving import ServedAdapter, Serving
from containers.server import door as doors
from containers.server.door import build
from tasks.backends import door_deployment, serving_manifest
from tasks.backends.door_deployment import DoorDeployment, Servers
from tasks.backends.pod_servers import PodServers
from tasks.backends.protocols import HostedModel
from tasks.backends.serving_manifest import deployment
from tasks.home import Home
from tasks.ports import any_free
from tests.aws.conftest import RBAC
from tests.aws.profiles import IMAGE, cluster_config
from tests.kubernetes_api.deployments import IsReady
from tests.kubernetes_api.rbac import read_rules
from tests.kubernetes_api.server import KubernetesServer
from tests.trainer.stand_in_replica import PROBE, StandInReplica
from tests.waiting import wait_until

SERVING_RBAC = ROOT / "configs" / "serving-rbac.yaml"
KEY = "a-key-of-the-endpoint"
POD_CONFIG = {
    "instance_type": "ml.g7e.12xlarge",
    "memory_gb": 100,
    "shared_memory_gb": 16,
    "cpus": 8,
    "key_secret": "endpoint-key",
    "url": "http://127.0.0.1:{port}",
}
Object = dict[str, Any]
MakeServers = Callable[[ServingPodConfig, KubeRayConfig], Servers]


@contextmanager
def pod_runs(template: Object, **replica: Any) -> Iterator[IsReady]:
    """The pod's containers here: the real door by its command line, stand-ins for the servers."""
    door, *servers = template["spec"]["containers"]
    with ExitStack() as stack:
        for each in servers:
            socket = Path(_argument(each, "--socket"))
            stack.enter_context(StandInReplica(socket=socket, **replica).serve())
        assert "--open" in door["command"]
        port, file = int(_argument(door, "--port")), Path(_argument(door, "--serving"))
        config = uvicorn.Config(build(file, port), port=port, log_level="critical")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        wait_until(lambda: server.started)
        (path,) = [template["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"]]
        yield lambda: httpx.get(f"http://127.0.0.1:{port}{path}", timeout=10).status_code == 200
        server.should_exit = True
        thread.join(20)


def _argument(container: Object, name: str) -> str:
    return container["command"][container["command"].index(name) + 1]


@contextmanager
def kubernetes(patch: pytest.MonkeyPatch, *rbac: Path) -> Iterator[KubernetesServer]:
    """A Kubernetes to host on, where nobody waits long, with the rights of these files."""
    patch.setattr(doors, "_LOOK_EVERY_S", 0.05)
    patch.setattr(door_deployment, "_LOOK_S", 0)
    patch.setenv("VLLM_API_KEY", KEY)
    # What is a folder of the pod there is one of this machine here; its path has to be short.
    with TemporaryDirectory(prefix="pod-") as sockets, KubernetesServer() as running:
        patch.setattr(serving_manifest, "SOCKETS", Path(sockets))
        running.rules = [rule for file in (RBAC, SERVING_RBAC, *rbac) for rule in read_rules(file)]
        yield running


def access(server: KubernetesServer, folder: Path) -> KubeRayConfig:
    """The section cluster.kuberay of a profile on this Kubernetes."""
    api = {key: str(value) for key, value in server.access(folder).items()}
    kuberay = cluster_config(kuberay__api=api).kuberay
    assert kuberay is not None
    return kuberay


class Hosting:
    """A home, a backend and models to serve with it."""

    def __init__(
        self, server: KubernetesServer, folder: Path, make_servers: MakeServers = PodServers
    ) -> None:
        self.kuberay = access(server, folder)
        self.pod = ServingPodConfig.model_validate(POD_CONFIG)
        self.home = Home(folder / "home").create()
        self.servers = make_servers(self.pod, self.kuberay)
        self.backend = DoorDeployment(self.pod, self.kuberay, self.home, self.servers)
        self._folder, self._port = folder, any_free()

    def adapter(self, letter: str) -> ServedAdapter:
        folder = self._folder / letter
        folder.mkdir(exist_ok=True)
        (folder / "adapter_config.json").write_text("{}")
        return ServedAdapter(digest=letter * 64, folder=folder)

    def model(self, letter: str = "a", **changes: Any) -> HostedModel:
        given: Object = {
            "base": Path("/shared/models/base"),
            "base_digest": "0" * 64,
            "champion": self.adapter(letter),
            "previous": None,
            "alias": "maze-solver",
            "probes": (PROBE,),
            "num_replicas": 2,
            "port": self._port,
            "dtype": "bfloat16",
            "device": "cuda",
            "max_model_len": 4096,
            "mazes": load_config("smoke").mazes,
            "max_action_tokens": 8,
            "lora_rank": 32,
            "image": IMAGE,
            "timeout_s": 20,
        }
        return HostedModel(**(given | changes))

    def deployment(self, model: HostedModel, file: Path = Path("/shared/f")) -> Object:
        """The manifest of the door's pod."""
        containers = self.servers.containers(model, file)
        machine = self.servers.machine
        return deployment(self.pod, self.kuberay, model, file, machine, containers)

    def wish(self) -> Serving:
        return Serving.read(self.home.hosting / "serving.json")

    def serves(self, letter: str) -> bool:
        """Whether it is this adapter that answers to the alias."""
        url = f"http://127.0.0.1:{self._port}/v1/chat/completions"
        body = {"model": "maze-solver", "messages": [{"role": "user", "content": "?"}]}
        headers = {"Authorization": f"Bearer {KEY}"}
        answer = httpx.post(url, json=body, headers=headers, timeout=30).raise_for_status()
        return answer.headers["x-ariadne-digest"] == self.adapter(letter).digest
