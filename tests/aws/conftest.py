"""What tests of the kuberay backend share: a Kubernetes with KubeRay, its Ray, and a profile."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from configs.loader import ROOT
from tasks.backends import kuberay, kubernetes_api
from tests.aws.dashboard import Dashboard
from tests.aws.profiles import Setting, claim
from tests.kubernetes_api.operators import comes_up
from tests.kubernetes_api.rbac import read_rules
from tests.kubernetes_api.server import KubernetesServer
from tests.kubernetes_api.store import CLAIM

RBAC = ROOT / "configs" / "kuberay-rbac.yaml"


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at every few seconds is looked at at once."""
    monkeypatch.setattr(kuberay, "_LOOK_S", 1)
    monkeypatch.setattr(kubernetes_api, "_RETRY_FOR_S", 5)
    monkeypatch.setattr("tasks.backends.ray_nodes.count_surely.retry.wait", lambda state: 0)


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    with Dashboard(num_nodes=4) as running:
        yield running


@pytest.fixture
def kuberay_server(dashboard: Dashboard, hurried: None) -> Iterator[KubernetesServer]:
    """KubeRay on machines that have room at once, with the rights that the file gives."""
    with KubernetesServer(comes_up(dashboard.port)) as running:
        running.rules = read_rules(RBAC)
        running.store.create(CLAIM, "ariadne", claim())
        yield running


@pytest.fixture
def make(kuberay_server: KubernetesServer, tmp_path: Path) -> Callable[..., Setting]:
    return lambda **changes: Setting(kuberay_server, tmp_path, **changes)
