"""The control plane in the cluster: its manifests, and a real server set up as they set it up."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import httpx
import pytest
import yaml
from botocore import xform_name
from botocore.validate import ParamValidator

from configs.loader import ROOT, load_config
from tasks.backends.ray_manifest import persistent_volume, volume_claim
from tasks.home import Home
from tasks.ports import any_free
from tasks.services import POOL, Services
from tests.aws.profiles import FSX
from tests.kubernetes_api import schemas
from tests.kubernetes_api.rbac import read_rules
from tests.waiting import wait_until

Object = dict[str, Any]
CONFIGS = ROOT / "configs"
MANUAL = (ROOT / "docs" / "hyperpod.md").read_text()
KUSTOMIZATION: Object = yaml.safe_load((CONFIGS / "kustomization.yaml").read_text())
FILES = [CONFIGS / name for name in KUSTOMIZATION["resources"]]
OBJECTS: list[Object] = [
    each for path in FILES for each in yaml.safe_load_all(path.read_text()) if each
]


def title(each: Object) -> str:
    return f"{each['kind']}/{each['metadata']['name']}"


def named(kind: str, name: str) -> Object:
    (found,) = [each for each in OBJECTS if title(each) == f"{kind}/{name}"]
    return found


def pods() -> list[tuple[str, Object]]:
    """Every workload with the pod that it makes."""
    kinds = ("Deployment", "StatefulSet")
    return [(title(o), o["spec"]["template"]["spec"]) for o in OBJECTS if o["kind"] in kinds]


def containers(pod: Object) -> list[Object]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def variables(container: Object) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


WORKER = named("Deployment", "prefect-worker")["spec"]["template"]["spec"]
SERVER = named("Deployment", "prefect-server")["spec"]["template"]["spec"]


@pytest.mark.parametrize("each", OBJECTS, ids=title)
def test_every_object_is_one_that_kubernetes_takes_whole(each: Object) -> None:
    group, _, version = each["apiVersion"].rpartition("/")
    assert each["kind"] in schemas._MODELS
    schemas.check(each["kind"], group, version, each)


def test_a_misspelt_field_of_a_deployment_is_noticed() -> None:
    wrong = named("Deployment", "prefect-worker")
    pod = wrong["spec"]["template"]["spec"] | {"serviceAcountName": "ariadne"}
    template = wrong["spec"]["template"] | {"spec": pod}
    with pytest.raises(Exception, match="serviceAcountName"):
        schemas.check(
            "Deployment", "apps", "v1", wrong | {"spec": wrong["spec"] | {"template": template}}
        )


def test_every_file_of_the_folder_is_applied() -> None:
    assert {*(CONFIGS / "prefect").glob("*.yaml")} <= set(FILES)
    assert all(path.is_file() for path in FILES)


def test_every_image_is_one_that_the_kustomization_pins_by_digest() -> None:
    pinned = {each["name"] for each in KUSTOMIZATION["images"] if "digest" in each}
    assert {each["image"] for _, pod in pods() for each in containers(pod)} == pinned
    assert all("/" in each["newName"] for each in KUSTOMIZATION["images"]), "of no registry"


def test_the_rights_of_every_backend_of_the_profile_are_applied() -> None:
    config, rights = load_config("hyperpod"), {"kuberay-rbac.yaml", "serving-rbac.yaml"}
    assert (config.cluster.backend, config.host.backend) == ("kuberay", "vllm_deployment")
    assert {path.name for path in FILES if path.name.endswith("-rbac.yaml")} == rights


def test_every_pod_is_without_privileges_and_has_room_of_its_own() -> None:
    for name, pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["nodeSelector"], f"{name} may land on a GPU node"
        for each in containers(pod):
            context = each["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"]["drop"] == ["ALL"], name
            assert each["resources"]["limits"]["memory"] and each["resources"]["requests"]["cpu"]


def test_no_password_is_in_a_manifest() -> None:
    """Values are plain or come from a Secret; those that hold a password only refer to it."""
    for name, pod in pods():
        for container in containers(pod):
            for each in container.get("env", []):
                secret = any(word in each["name"] for word in ("PASSWORD", "AUTH_STRING", "KEY"))
                assert secret == ("valueFrom" in each), f"{name}: {each['name']}"
                if "://" in each.get("value", "") and "@" in each["value"]:
                    assert ":$(POSTGRES_PASSWORD)@" in each["value"]


def secrets() -> dict[str, set[str]]:
    """The Secrets that pods read, each with its keys."""
    found: dict[str, set[str]] = {}
    for _, pod in pods():
        for container in containers(pod):
            for each in container.get("env", []):
                if "valueFrom" in each:
                    (reference,) = each["valueFrom"].values()
                    found.setdefault(reference["name"], set()).add(reference["key"])
    return found


def test_the_documentation_makes_both_secrets_with_every_key() -> None:
    commands = re.findall(r"kubectl create secret generic (\S+)((?:.*\\\n)*.*)", MANUAL)
    made = {name: set(re.findall(r"--from-literal=([^=]+)=", rest)) for name, rest in commands}
    assert made == secrets()
    assert set(made) == {"ariadne", "maze-solver-key"}


def test_the_worker_has_the_key_that_the_profiles_endpoint_asks_for() -> None:
    pod = load_config("hyperpod").host.pod
    assert pod
    given = variables(WORKER["containers"][0])["VLLM_API_KEY"]
    assert given == {"secretKeyRef": {"name": pod.key_secret, "key": "key"}}


def shown(language: str) -> list[Any]:
    """The blocks of this language in the manual."""
    return [yaml.safe_load(each) for each in re.findall(rf"```{language}\n(.*?)```", MANUAL, re.S)]


def test_the_groups_of_machines_in_the_manual_are_what_aws_takes_and_the_pods_need() -> None:
    groups, _ = shown("json")
    sagemaker = botocore.session.get_session().get_service_model("sagemaker")
    shape = sagemaker.operation_model("CreateCluster").input_shape.members["InstanceGroups"]
    report = ParamValidator().validate(groups, shape)
    assert not report.has_errors(), report.generate_report()
    kinds = shape.member.members["InstanceType"].enum
    assert all(each["InstanceType"] in kinds for each in groups)

    config = load_config("hyperpod")
    kuberay, pod = config.cluster.kuberay, config.host.pod
    assert kuberay and pod
    counts = {each["InstanceGroupName"]: each["InstanceCount"] for each in groups}
    of = {each["InstanceGroupName"]: each["InstanceType"] for each in groups}
    assert counts == {"workers": config.cluster.num_workers, "head": 1, "serving": 1, "system": 1}
    assert of["workers"] == kuberay.worker.instance_type
    assert (of["head"], of["serving"]) == (kuberay.head.instance_type, pod.instance_type)
    place = "sagemaker.amazonaws.com/instance-group-name"
    assert {each["nodeSelector"][place] for _, each in pods()} == {"system"}
    for group, kind in of.items():
        assert f"| `{group}` | {kind} | {counts[group]} | 2 |" in MANUAL
        assert f'"{kind} for cluster usage" {counts[group]}' in MANUAL.replace("\n", " ")
    assert f'clusters" {sum(counts.values())}.' in MANUAL


def test_the_policy_in_the_manual_allows_what_is_called_and_nothing_else() -> None:
    _, policy = shown("json")
    actions = [action for rule in policy["Statement"] for action in rule["Action"]]
    allowed = {xform_name(action.split(":")[1]) for action in actions}
    code = {path.name: path.read_text() for path in (ROOT / "tasks" / "backends").glob("*.py")}
    assert {name for name in allowed if not re.search(rf"\b{name}\b", str(code))} == set()
    builds = re.findall(r"self\._(?:ecr|s3|codebuild)\.(\w+)\(", code["codebuild.py"])
    looks = re.findall(r'self\._ask\(\s*"\w+", *\s*"(\w+)"', code["hyperpod.py"])
    assert builds and looks and {*builds, *looks} <= allowed


def test_the_volume_is_given_to_the_user_that_writes_there() -> None:
    (owner,) = shown("yaml")
    schemas.check("Pod", "", "v1", owner)
    (container,) = owner["spec"]["containers"]
    (volume,), (mount,) = owner["spec"]["volumes"], container["volumeMounts"]
    number, (shared,) = WORKER["securityContext"]["runAsUser"], WORKER["volumes"]
    assert container["command"] == ["chown", f"{number}:{number}", mount["mountPath"]]
    assert volume == shared and mount in WORKER["containers"][0]["volumeMounts"]
    assert MANUAL.index("apply -f owner.yaml") < MANUAL.index("apply -k configs")


def test_only_the_worker_may_speak_to_kubernetes() -> None:
    for name, pod in pods():
        account = named("ServiceAccount", pod["serviceAccountName"])
        speaks = account.get("automountServiceAccountToken", True)
        assert speaks == (name == "Deployment/prefect-worker")
    bindings = [each for each in OBJECTS if each["kind"].endswith("RoleBinding")]
    subjects = {subject["name"] for each in bindings for subject in each["subjects"]}
    assert subjects == {WORKER["serviceAccountName"]} and len(bindings) == 3


def test_no_right_is_a_wildcard_and_no_secret_can_be_read() -> None:
    rules = [rule for path in FILES for rule in read_rules(path)]
    assert rules
    for rule in rules:
        assert "*" not in rule.verbs | rule.resources | rule.groups
        assert not rule.resources & {"secrets", "serviceaccounts", "roles", "rolebindings"}


def test_rays_pods_have_the_account_that_the_profile_names() -> None:
    kuberay = load_config("hyperpod").cluster.kuberay
    assert kuberay and named("ServiceAccount", kuberay.service_account)
    (shared,) = [each for each in WORKER["volumes"] if each["name"] == "shared"]
    assert shared["persistentVolumeClaim"]["claimName"] == kuberay.volume.claim
    for container in containers(WORKER):
        (mount,) = container["volumeMounts"]
        assert mount["mountPath"] == kuberay.volume.mount_path


def test_the_volume_is_the_one_that_a_run_would_make_of_the_profile() -> None:
    """So that a run finds the claim that the control plane was started with, and makes no other."""
    kuberay = load_config(
        "hyperpod", {f"cluster.kuberay.volume.{key}": value for key, value in FSX.items()}
    ).cluster.kuberay
    assert kuberay
    assert named("PersistentVolume", "ariadne-fsx-claim") == persistent_volume(kuberay)
    assert named("PersistentVolumeClaim", "fsx-claim") == volume_claim(kuberay)


def test_home_and_mazes_are_where_rays_pods_find_them() -> None:
    volume = Path(WORKER["containers"][0]["volumeMounts"][0]["mountPath"])
    given = variables(WORKER["containers"][0])
    assert Path(given["ARIADNE_HOME"]).is_relative_to(volume)
    copied = WORKER["initContainers"][0]["command"][-1]
    assert Path(copied).is_relative_to(volume)
    for container in containers(WORKER)[1:]:
        assert container["workingDir"] == variables(container)["PYTHONPATH"] == copied


def test_flows_run_under_the_settings_that_they_have_on_one_machine(tmp_path: Path) -> None:
    """Heartbeats, retries and logs as `make up` sets them; only addresses and folders differ."""
    there = variables(WORKER["containers"][0])
    here = Services.at(4200, 5000).environment(Home(tmp_path))
    places = {
        *("ARIADNE_HOME", "ARIADNE_CACHE", "PREFECT_HOME", "PYTHONPATH"),
        *("PREFECT_API_URL", "MLFLOW_TRACKING_URI"),
    }
    assert here.keys() <= there.keys()
    assert {key: there[key] for key in here.keys() - places} == {
        key: here[key] for key in here.keys() - places
    }


def test_services_are_found_under_the_names_that_pods_use() -> None:
    there = variables(WORKER["containers"][0])
    for url, name in (
        (there["PREFECT_API_URL"], "prefect-server"),
        (there["MLFLOW_TRACKING_URI"], "mlflow"),
    ):
        service, deployment = named("Service", name), named("Deployment", name)
        (port,) = service["spec"]["ports"]
        assert httpx.URL(url).host == name and httpx.URL(url).port == port["port"]
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
        ports = deployment["spec"]["template"]["spec"]["containers"][0]["ports"]
        assert port["port"] in [each["containerPort"] for each in ports]
    probe = named("Deployment", "mlflow")["spec"]["template"]["spec"]["containers"][0]
    hosts = probe["command"][probe["command"].index("--allowed-hosts") + 1].split(",")
    assert probe["readinessProbe"]["httpGet"]["httpHeaders"][0]["value"] in hosts


def test_a_server_or_worker_is_never_there_twice() -> None:
    for name in ("prefect-server", "prefect-worker", "mlflow"):
        spec = named("Deployment", name)["spec"]
        assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    (pool,) = [
        command[command.index("--pool") + 1] for command in (WORKER["containers"][0]["command"],)
    ]
    assert pool == POOL


def test_the_image_of_the_control_plane_is_clean_and_has_all_that_its_pods_run() -> None:
    file = ROOT / "containers" / "control" / "Dockerfile"
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, file], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    text = file.read_text()
    copied = WORKER["initContainers"][0]["command"][2]
    assert f"WORKDIR {copied}\n" in text
    assert f"USER {WORKER['securityContext']['runAsUser']}\n" in text
    for part in ("prefect.yaml", "configs/", "containers/", "tasks/", "flows/"):
        assert f"COPY {part} " in text
    # The driver and the login that the manifest of MLflow names and the lock file does not have.
    assert "psycopg2-binary==" in text and "flask-wtf==" in text


AUTH = "admin:a-password-of-this-test"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Prefect's server with the manifest's settings, on SQLite; its API's address."""
    folder, port = tmp_path_factory.mktemp("prefect"), any_free()
    container = SERVER["containers"][0]
    given = {key: value for key, value in variables(container).items() if isinstance(value, str)}
    given.pop("PREFECT_API_DATABASE_CONNECTION_URL")
    given |= {"PREFECT_SERVER_API_AUTH_STRING": AUTH, "PREFECT_HOME": str(folder)}
    command = [sys.executable, *container["command"][1:-4], "--host", "127.0.0.1"]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            env={"PATH": os.environ["PATH"]} | given,
            stdout=log,
            stderr=log,
        )
        url = f"http://127.0.0.1:{port}/api"
        try:
            wait_until(lambda: is_up(f"{url}/ready"), timeout_s=240)
            yield url
        finally:
            process.terminate()
            process.wait(60)
    shutil.rmtree(folder, ignore_errors=True)


def is_up(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


def register(server: str, folder: Path, auth: str) -> subprocess.CompletedProcess[str]:
    """The worker's init container, with its own settings but for addresses and folders."""
    container = WORKER["initContainers"][1]
    given = {key: value for key, value in variables(container).items() if isinstance(value, str)}
    given |= {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "ARIADNE_HOME": str(folder / "home"),
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_API_URL": server,
        "PREFECT_API_AUTH_STRING": auth,
    }
    return subprocess.run(
        [sys.executable, *container["command"][1:]],
        cwd=ROOT,
        env=given,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.timeout(300)
def test_nobody_without_the_password_gets_in_but_the_probes(server: str) -> None:
    for path in ("health", "ready"):
        assert httpx.get(f"{server}/{path}", timeout=10).is_success
    question = {"url": f"{server}/deployments/filter", "json": {}, "timeout": 10}
    assert httpx.post(**question).status_code == 401
    assert httpx.post(**question, auth=("admin", "guess")).status_code == 401
    assert httpx.post(**question, auth=tuple(AUTH.split(":"))).json() == []


@pytest.mark.timeout(300)
def test_a_worker_with_another_password_is_told_so_in_one_line(server: str, tmp_path: Path) -> None:
    done = register(server, tmp_path, "admin:another")
    assert done.returncode == 1
    assert done.stderr.strip().split("\n")[-1] == (
        f"ariadne: Prefect at {server} answers 401: is PREFECT_API_AUTH_STRING the server's?"
    )


@pytest.mark.timeout(300)
def test_the_init_container_registers_pool_deployments_and_automations_twice_over(
    server: str, tmp_path: Path
) -> None:
    for attempt in ("one", "two"):
        done = register(server, tmp_path / attempt, AUTH)
        assert done.returncode == 0, done.stderr
    auth = tuple(AUTH.split(":"))

    def names(kind: str) -> list[str]:
        found = httpx.post(f"{server}/{kind}/filter", json={}, auth=auth, timeout=10).json()
        return sorted(each["name"] for each in found)

    assert names("work_pools") == [POOL]
    assert set(names("deployments")) >= {"post-train", "preflight", "sweep"}
    assert names("automations") == [
        "ariadne: a crashed run goes on",
        "ariadne: a silent run has crashed",
    ]
