"""HyperPod's machines: by moto over real HTTP what it has, the rest by botocore's own models."""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber
from moto.server import ThreadedMotoServer

from configs.loader import load_config
from configs.repair import RepairConfig
from tasks.backends.hyperpod import HyperPod
from tasks.backends.kubernetes_api import KubernetesApi
from tasks.backends.protocols import Machine, MachinePool
from tasks.backends.wiring import make_backends
from tasks.home import Home
from tests.aws.profiles import cluster_config
from tests.kubernetes_api.server import KubernetesServer
from tests.kubernetes_api.store import NODE
from tests.samples import reason

Object = dict[str, Any]
WORKER, HEAD = "i-0123456789abcdef0", "i-0fedcba9876543210"
HEALTHY = {"sagemaker.amazonaws.com/node-health-status": "Schedulable"}
NAME = {"ClusterName": "mazes"}
ABOUT = {
    "ClusterArn": "arn:aws:sagemaker:us-west-2:123456789012:cluster/abcdefghijkl",
    "ClusterStatus": "InService",
    "InstanceGroups": [],
}


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as open nothing, and none of this machine's."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[KubernetesServer]:
    with KubernetesServer() as running:
        yield running


class OneClient(boto3.Session):
    """A session whose only client answers what a test has laid down."""

    def __init__(self) -> None:
        super().__init__(region_name="us-west-2")
        self._only: Any = boto3.Session.client(self, "sagemaker")

    def client(self, *_: Any, **__: Any) -> Any:
        return self._only


class Stubbed:
    """HyperPod whose SageMaker gives the answers laid down, each checked against AWS' models."""

    def __init__(self, api: KubernetesApi) -> None:
        session = OneClient()
        self.stub = Stubber(session.client())
        config = RepairConfig(hyperpod_cluster="mazes", region="us-west-2")
        self.pool = HyperPod(config, lambda: api, session)
        self.stub.activate()

    def describes(self, **about: Any) -> None:
        self.stub.add_response("describe_cluster", ABOUT | about, NAME)

    def lists(self, *instances: Object, token: str = "", then: str = "") -> None:
        asked = NAME | {"MaxResults": 100} | ({"NextToken": token} if token else {})
        page = {"NextToken": then, "ClusterNodeSummaries": list(instances)}
        self.stub.add_response("list_cluster_nodes", page, asked)


@pytest.fixture
def hyperpod(server: KubernetesServer, tmp_path: Any) -> Iterator[Stubbed]:
    api = cluster_config(kuberay__api=_access(server, tmp_path)).kuberay
    assert api is not None
    stubbed = Stubbed(KubernetesApi.connect("ariadne", api.api))
    yield stubbed
    stubbed.stub.assert_no_pending_responses()


def _access(server: KubernetesServer, folder: Any) -> Object:
    return {key: str(value) for key, value in server.access(folder).items()}


def instance(id_: str = WORKER, status: str = "Running", kind: str = "ml.g7e.12xlarge") -> Object:
    return {
        "InstanceGroupName": "gpu",
        "InstanceId": id_,
        "InstanceType": kind,
        "LaunchTime": 0,
        "InstanceStatus": {"Status": status, "Message": "said"},
    }


def add_node(
    server: KubernetesServer,
    id_: str = WORKER,
    labels: Object | None = None,
    ready: str = "True",
    closed: bool = False,
) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": f"hyperpod-{id_}",
            "labels": HEALTHY if labels is None else labels,
        },
        "spec": {"unschedulable": True} if closed else {},
    }
    server.store.create(NODE, "", body)
    status = {
        "conditions": [{"type": "Ready", "status": ready}],
        "allocatable": {"nvidia.com/gpu": "2"},
    }
    server.store.patch(NODE, "", f"hyperpod-{id_}", {"status": status}, status=True)


def only(hyperpod: Stubbed, **about: Any) -> Machine:
    hyperpod.describes(**about)
    hyperpod.lists(instance())
    (machine,) = hyperpod.pool.look().all
    return machine


def test_a_healthy_machine_is_ready_and_says_how_many_gpus_it_has(
    hyperpod: Stubbed, server: KubernetesServer
) -> None:
    add_node(server)
    machine = only(hyperpod)
    assert (machine.state, machine.recovers, machine.num_gpus) == ("ready", True, 2)
    pool: MachinePool = hyperpod.pool
    assert pool is hyperpod.pool and machine.name == WORKER


@pytest.mark.parametrize(
    ("labels", "state", "words"),
    [
        ({"node-health-status": "Unschedulable"}, "coming", "is under a health check"),
        (
            {"node-health-status": "UnschedulablePendingReplacement"},
            "coming",
            "is about to be replaced",
        ),
        ({"node-health-status": "UnschedulablePendingReboot"}, "coming", "about to be restarted"),
        (
            {"node-health-status": "Schedulable", "deep-health-check-status": "InProgress"},
            "coming",
            "is under a deep health check",
        ),
    ],
)
def test_what_the_health_agent_has_found_is_told(
    hyperpod: Stubbed, server: KubernetesServer, labels: Object, state: str, words: str
) -> None:
    add_node(server, labels={f"sagemaker.amazonaws.com/{k}": v for k, v in labels.items()})
    machine = only(hyperpod)
    assert machine.state == state and words in machine.words


@pytest.mark.parametrize(
    "status",
    ["Pending", "ShuttingDown", "SystemUpdating", "DeepHealthCheckInProgress", "NotFound"],
)
def test_an_instance_that_is_not_running_yet_is_on_its_way(hyperpod: Stubbed, status: str) -> None:
    hyperpod.describes()
    hyperpod.lists(instance(status=status))
    (machine,) = hyperpod.pool.look().all
    assert machine.state == "coming" and machine.words.startswith(("is ", "gets "))


def test_a_failed_instance_does_not_come_back_by_itself(hyperpod: Stubbed) -> None:
    hyperpod.describes()
    hyperpod.lists(instance(status="Failure"))
    (machine,) = hyperpod.pool.look().all
    assert (machine.state, machine.recovers) == ("ill", False)
    assert machine.words == "has failed: said"


def test_a_silent_machine_is_ill_and_one_closed_by_a_person_is_left_alone(
    hyperpod: Stubbed, server: KubernetesServer
) -> None:
    add_node(server, ready="Unknown")
    add_node(server, HEAD, closed=True)
    hyperpod.describes()
    hyperpod.lists(instance(), instance(HEAD))
    silent, closed = hyperpod.pool.look().all
    assert (silent.state, silent.recovers) == ("ill", True)
    assert closed.state == "closed"


def test_a_machine_without_the_health_agent_recovers_by_nobody(
    hyperpod: Stubbed, server: KubernetesServer
) -> None:
    """The head's: without an accelerator, so HyperPod puts no agent and no label there."""
    add_node(server, labels={}, ready="Unknown")
    machine = only(hyperpod)
    assert (machine.state, machine.recovers) == ("ill", False)
    assert "no health agent" in machine.words


def test_with_recovery_off_no_machine_recovers(hyperpod: Stubbed, server: KubernetesServer) -> None:
    add_node(server, ready="False")
    assert only(hyperpod, NodeRecovery="None").recovers is False


def test_a_machine_that_kubernetes_does_not_know_is_ill(hyperpod: Stubbed) -> None:
    machine = only(hyperpod)
    assert (machine.state, machine.words) == ("ill", "is not in Kubernetes")


def test_all_pages_are_read(hyperpod: Stubbed) -> None:
    hyperpod.describes()
    hyperpod.lists(instance(), then="more")
    hyperpod.lists(instance(HEAD), token="more")
    assert [each.name for each in hyperpod.pool.look().all] == [WORKER, HEAD]


def test_missing_machines_and_the_clusters_trouble_are_news(hyperpod: Stubbed) -> None:
    group = {"InstanceGroupName": "gpu", "CurrentCount": 2, "TargetCount": 3}
    hyperpod.describes(
        ClusterStatus="Failed",
        FailureMessage="no capacity",
        InstanceGroups=[group],
        NodeProvisioningMode="Continuous",
    )
    hyperpod.lists()
    base = {
        "EventId": "00000000-0000-0000-0000-000000000000",
        "ClusterArn": ABOUT["ClusterArn"],
        "ClusterName": "mazes",
        "ResourceType": "InstanceGroup",
        "EventTime": 0,
    }
    events = [
        base | {"EventLevel": "Info", "Description": "fine"},
        base | {"EventLevel": "Error", "Description": "insufficient capacity for ml.g7e.12xlarge"},
        base | {"EventLevel": "Error", "Description": "older"},
    ]
    asked = NAME | {
        "EventTimeAfter": ANY,
        "SortBy": "EventTime",
        "SortOrder": "Descending",
        "MaxResults": 100,
    }
    hyperpod.stub.add_response("list_cluster_events", {"Events": events}, asked)
    assert hyperpod.pool.look().news == (
        "the HyperPod cluster is Failed no capacity; group gpu has 2 of 3; "
        "HyperPod says: insufficient capacity for ml.g7e.12xlarge"
    )


def test_events_that_may_not_be_seen_are_no_failure(hyperpod: Stubbed) -> None:
    hyperpod.describes(NodeProvisioningMode="Continuous")
    hyperpod.lists()
    hyperpod.stub.add_client_error("list_cluster_events", "AccessDeniedException", "not authorized")
    assert hyperpod.pool.look().news.endswith("the credentials need sagemaker:ListClusterEvents")


@pytest.mark.parametrize("what", ["reboot", "replace"])
def test_a_request_names_the_instance(hyperpod: Stubbed, what: Any) -> None:
    method, asked = f"batch_{what}_cluster_nodes", NAME | {"NodeIds": [WORKER]}
    machine = Machine(name=WORKER, instance_type="t", state="ill", recovers=False, words="")
    hyperpod.stub.add_response(method, {"Successful": [WORKER]}, asked)
    assert hyperpod.pool.request(what, machine) == ""
    failed = {"NodeId": WORKER, "ErrorCode": "InvalidInstanceStatus", "Message": "patch it first"}
    hyperpod.stub.add_response(method, {"Failed": [failed]}, asked)
    assert hyperpod.pool.request(what, machine) == "InvalidInstanceStatus: patch it first"
    hyperpod.stub.add_client_error(method, "ResourceLimitExceeded", "your quota is 3 ml.g7e")
    assert "your quota is 3 ml.g7e" in hyperpod.pool.request(what, machine)
    hyperpod.stub.add_client_error(method, "AccessDeniedException", "not authorized")
    right = f"sagemaker:Batch{what.capitalize()}ClusterNodes"
    assert hyperpod.pool.request(what, machine).endswith(f"the credentials need {right}")


def test_throttling_may_pass_and_a_missing_right_may_not(hyperpod: Stubbed) -> None:
    hyperpod.stub.add_client_error("describe_cluster", "ThrottlingException", "Rate exceeded")
    with pytest.raises(ConnectionError, match="Rate exceeded"):
        hyperpod.pool.look()
    hyperpod.stub.add_client_error("describe_cluster", "AccessDeniedException", "not authorized")
    assert reason(hyperpod.pool.look).endswith("the credentials need sagemaker:DescribeCluster")
    hyperpod.stub.add_client_error("describe_cluster", "ResourceNotFound", "no such cluster")
    assert "cluster.repair.hyperpod_cluster" in reason(hyperpod.pool.look)


def test_kubernetes_that_refuses_or_is_away_is_told_apart(
    hyperpod: Stubbed, server: KubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.backends.kubernetes_api._RETRY_FOR_S", 0)
    server.rules = []
    hyperpod.describes()
    hyperpod.lists()
    assert "configs/kuberay-rbac.yaml" in reason(lambda: [*hyperpod.pool.look().all])
    server.rules = None
    server.faults.append((503, ""))
    hyperpod.describes()
    hyperpod.lists()
    with pytest.raises(ConnectionError, match="503"):
        hyperpod.pool.look()


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[boto3.Session]:
    """SageMaker over HTTP on this machine, with one cluster of two groups."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", f"http://{host}:{port}")
    session = boto3.Session(region_name="us-west-2")
    scripts = {"SourceS3Uri": "s3://sagemaker-mazes/scripts", "OnCreate": "on_create.sh"}
    groups = [
        {
            "InstanceGroupName": name,
            "InstanceCount": count,
            "InstanceType": kind,
            "LifeCycleConfig": scripts,
            "ExecutionRole": "arn:aws:iam::123456789012:role/hyperpod",
            "ThreadsPerCore": 1,
        }
        for name, count, kind in (("gpu", 3, "ml.p4d.24xlarge"), ("head", 1, "ml.c5.xlarge"))
    ]
    session.client("sagemaker").create_cluster(ClusterName="mazes", InstanceGroups=groups)
    yield session
    session.client("sagemaker").delete_cluster(ClusterName="mazes")
    server.stop()


def test_machines_are_listed_over_the_wire(
    moto: boto3.Session, server: KubernetesServer, tmp_path: Any
) -> None:
    add_node(server, "gpu-1")
    kuberay = cluster_config(kuberay__api=_access(server, tmp_path)).kuberay
    assert kuberay is not None
    config = RepairConfig(hyperpod_cluster="mazes", region="us-west-2")
    pool = HyperPod(config, lambda: KubernetesApi.connect("ariadne", kuberay.api), moto)
    machines = pool.look()
    kinds = [each.instance_type for each in machines.all]
    assert sorted(kinds) == ["ml.c5.xlarge", *["ml.p4d.24xlarge"] * 3]
    assert [each.name for each in machines.all if each.state == "ready"] == ["gpu-1"]


def test_a_cluster_that_is_not_there_is_named_over_the_wire(
    moto: boto3.Session, server: KubernetesServer
) -> None:
    config = RepairConfig(hyperpod_cluster="others", region="us-west-2")
    told = reason(HyperPod(config, lambda: pytest.fail("not asked"), moto).look)
    assert "HyperPod cluster others in us-west-2" in told
    assert "is cluster.repair.hyperpod_cluster right?" in told


def test_an_address_without_a_server_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", "http://127.0.0.1:9")
    monkeypatch.setattr("time.sleep", lambda _: None)
    config = RepairConfig(hyperpod_cluster="mazes", region="us-west-2")
    with pytest.raises(ConnectionError):
        HyperPod(config, lambda: pytest.fail("not asked")).look()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("repair.hyperpod_cluster", "a/b", "cluster.repair.hyperpod_cluster: String should match"),
        ("repair.hyperpod_cluster", "-a", "cluster.repair.hyperpod_cluster: String should match"),
        ("repair.region", "west", "cluster.repair.region: String should match"),
        ("repair.requests", ["destroy"], "cluster.repair.requests.0"),
        ("repair.min_workers", 4, "repair.min_workers is more than num_workers"),
        ("repair.timeout_s", 600, "timeout_s is 600: waiting and requests alone may take 1800 s"),
    ],
)
def test_what_makes_no_sense_is_refused(key: str, value: Any, said: str) -> None:
    assert said in reason(lambda: load_config("hyperpod", {f"cluster.{key}": value}))


def test_only_a_profile_with_repairs_has_a_pool(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nobody asks it
    home = Home(tmp_path)
    assert isinstance(make_backends(load_config("hyperpod"), home).pool, HyperPod)
    assert make_backends(load_config("smoke"), home).pool is None
