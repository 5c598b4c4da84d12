"""Jobs from outside of the cluster: HyperPod's connection, its token, its session, their ends."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from configs.loader import ROOT, load_config
from tasks.backends.dashboard_connection import DashboardConnection, NotOpen
from tasks.backends.kuberay import KubeRay
from tasks.backends.protocols import Cluster
from tasks.backends.ray_jobs import RayJobs
from tasks.backends.ray_nodes import count_nodes
from tasks.backends.wiring import make_backends
from tasks.home import Home
from tests.aws.conftest import RBAC
from tests.aws.profiles import IMAGE, Setting
from tests.aws.ray_endpoint import Endpoint
from tests.kubernetes_api.rbac import read_rules
from tests.kubernetes_api.server import KubernetesServer
from tests.kubernetes_api.store import RAY_CLUSTER
from tests.samples import reason

OUTSIDE: dict[str, Any] = {"kuberay__dashboard_url": "sagemaker_ray://"}
CONNECTION_RBAC = ROOT / "configs" / "connection-rbac.yaml"


@pytest.fixture
def endpoint(kuberay_server: KubernetesServer) -> Iterator[Endpoint]:
    with Endpoint(kuberay_server.store, num_nodes=4) as running:
        kuberay_server.connect = running.connect
        kuberay_server.rules = [*read_rules(RBAC), *read_rules(CONNECTION_RBAC)]
        yield running


@pytest.fixture
def setting(kuberay_server: KubernetesServer, endpoint: Endpoint, tmp_path: Path) -> Setting:
    return Setting(kuberay_server, tmp_path, **OUTSIDE)


@pytest.fixture
def session(setting: Setting) -> DashboardConnection:
    """Of a RayCluster that is there."""
    setting.start()
    assert setting.config.kuberay is not None
    made = DashboardConnection.of(setting.config.kuberay, "maze")
    assert made is not None
    return made


def test_a_cluster_is_reached_through_the_endpoint_with_one_session(
    setting: Setting, endpoint: Endpoint
) -> None:
    made = setting.start()
    url = f"http://127.0.0.1:{endpoint.port}"
    assert made == Cluster(name="maze", dashboard_url=url, num_nodes=4)
    assert setting.find() == made
    assert len(endpoint.given) == len(endpoint.sessions) == 1


def test_without_a_session_nothing_is_told(session: DashboardConnection) -> None:
    assert httpx.get(f"{session.url()}/api/jobs/", timeout=10).status_code == 401
    assert count_nodes(session.url()) == 0 and count_nodes(session.url(), session) == 4


@pytest.mark.parametrize("refusal", [401, 302])
def test_a_session_that_has_ended_is_opened_anew(
    session: DashboardConnection, endpoint: Endpoint, refusal: int
) -> None:
    jobs = RayJobs(session.url(), session)
    endpoint.jobs.append({"submission_id": "a", "status": "RUNNING", "metadata": None})
    endpoint.refusal = refusal
    endpoint.sessions.clear()
    endpoint.jobs[0]["metadata"] = {"submitted_by": "ariadne"}
    jobs.stop_ours()
    assert endpoint.stopped == ["a"]
    assert len(endpoint.sessions) == 1, "one for all calls after"


def test_only_who_has_created_the_cluster_may(
    session: DashboardConnection, endpoint: Endpoint
) -> None:
    endpoint.caller = "somebody else"
    told = reason(session.url)
    assert "no way to the dashboard of RayCluster maze" in told
    assert told.endswith("only who has created the RayCluster may: run under that role")


def test_a_right_taken_away_while_a_job_runs_is_no_lost_cluster(
    session: DashboardConnection, endpoint: Endpoint
) -> None:
    """`unknown` would cost the cluster and its job."""
    jobs = RayJobs(session.url(), session)
    endpoint.sessions.clear()
    endpoint.caller = "somebody else"
    assert "only who has created" in reason(lambda: jobs.status("a"))


def test_an_api_that_is_away_while_a_session_ends_is_no_refusal(
    session: DashboardConnection,
    endpoint: Endpoint,
    kuberay_server: KubernetesServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tasks.backends.kubernetes_api._RETRY_FOR_S", 0)
    monkeypatch.setattr("tasks.backends.ray_jobs._ask.retry.wait", lambda state: 0)
    jobs = RayJobs(session.url(), session)
    endpoint.sessions.clear()
    kuberay_server.faults.extend([(503, "")] * 3)
    assert jobs.status("a") == "unknown"


def test_expired_credentials_are_named(
    session: DashboardConnection, kuberay_server: KubernetesServer
) -> None:
    kuberay_server.token = "another"
    assert reason(session.url).endswith("its credentials have expired: log in again")


@pytest.mark.parametrize(("status", "said"), [(401, "log in again"), (403, "under that role")])
def test_a_token_that_is_refused_says_what_to_do(
    session: DashboardConnection, endpoint: Endpoint, status: int, said: str
) -> None:
    endpoint.swap_status = status
    told = reason(session.url)
    assert f"answers {status}" in told and told.endswith(said)


def test_an_operator_that_is_not_installed_is_named(
    session: DashboardConnection, kuberay_server: KubernetesServer
) -> None:
    kuberay_server.connect = None
    assert "is HyperPod's Ray endpoint operator installed?" in reason(session.url)


def test_what_may_come_later_is_waited_for_with_its_reason(
    session: DashboardConnection, setting: Setting, endpoint: Endpoint
) -> None:
    endpoint.gives_address = False
    with pytest.raises(NotOpen, match="has no address yet"):
        session.url()
    other = KubeRay(setting.config)
    assert other.find("maze", setting.config, IMAGE) is None
    hurry = setting.config.model_copy(update={"start_timeout_s": 1})
    told = reason(lambda: other.start("maze", hurry, IMAGE))
    assert "the pods run; the dashboard of RayCluster maze has no address yet" in told
    endpoint.gives_address = True
    endpoint.gives_cookie = False
    with pytest.raises(NotOpen, match="gives no session"):
        session.url()
    endpoint.swap_status = 502
    with pytest.raises(NotOpen, match="answers 502"):
        session.url()


def test_a_cluster_made_anew_under_its_name_gets_a_session_of_its_own(
    setting: Setting, endpoint: Endpoint
) -> None:
    setting.start()
    setting.stop()
    setting.start()
    assert len(endpoint.given) == 2


def test_neither_token_nor_session_is_ever_logged(
    setting: Setting, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    setting.start()
    assert "HTTP Request: GET" in caplog.text, "else this would prove nothing"
    secrets = [*endpoint.given, *endpoint.sessions]
    assert len(secrets) == 2 and not any(each in caplog.text for each in secrets)


def test_the_right_in_the_file_is_the_one_that_is_used(
    setting: Setting, kuberay_server: KubernetesServer
) -> None:
    setting.start()
    ((right),) = {right for rule in read_rules(CONNECTION_RBAC) for right in rule.rights()}
    assert right in kuberay_server.rights_used()
    kuberay_server.rules = read_rules(RBAC)
    other = KubeRay(setting.config)
    assert "raydashboardconnections" in reason(lambda: other.find("maze", setting.config, IMAGE))
    assert kuberay_server.store.items(RAY_CLUSTER) != []


def test_jobs_of_the_wiring_carry_the_session(
    setting: Setting, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nobody asks it
    cluster = setting.start()
    given = {"cluster.kuberay": setting.config.model_dump(mode="json")["kuberay"]}
    backends = make_backends(load_config("hyperpod", given), Home(tmp_path))
    jobs: Any = backends.jobs(cluster)
    endpoint.jobs.append(
        {"submission_id": "a", "status": "RUNNING", "metadata": {"submitted_by": "ariadne"}}
    )
    jobs.stop_ours()
    assert endpoint.stopped == ["a"]


def test_a_connection_needs_the_endpoint() -> None:
    given = {
        "cluster.kuberay.dashboard_url": "sagemaker_ray://",
        "cluster.kuberay.remote_endpoint": False,
    }
    assert "needs remote_endpoint = true" in reason(lambda: load_config("hyperpod", given))
