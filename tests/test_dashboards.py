"""The dashboards' files, their way into a managed Grafana, and their pictures."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.backends.managed_grafana import ManagedGrafana
from tasks.backends.ray_manifest import CLUSTER_LABEL, ray_cluster
from tasks.dashboards.files import DASHBOARDS, FOLDER, file_of, filled_in, queries
from tasks.dashboards.grafana import to_json
from tasks.dashboards.plan import REASONS, Dashboard
from tasks.metrics.catalogue import CATALOGUE
from tests.aws.profiles import IMAGE, cluster_config
from tests.grafana_api import EDITOR, VIEWER, GrafanaApi, grafana_api
from tests.samples import reason

ROOT = Path(__file__).parents[1]
each_dashboard = pytest.mark.parametrize("plan", DASHBOARDS, ids=lambda plan: plan.uid)


def panels(plan: Dashboard) -> list[dict[str, Any]]:
    return json.loads(file_of(plan).read_text())["panels"]


@each_dashboard
def test_the_files_are_what_the_plans_make(plan: Dashboard) -> None:
    assert file_of(plan).read_text() == to_json(plan), (
        "write them: python -m flows dashboards write"
    )


def test_there_is_no_file_without_a_plan() -> None:
    assert set(FOLDER.glob("*.json")) == {file_of(plan) for plan in DASHBOARDS}


@each_dashboard
def test_panels_lie_beside_each_other_on_the_grid(plan: Dashboard) -> None:
    places = [panel["gridPos"] for panel in panels(plan)]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for a, b in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or above, f"{a} and {b}"


@each_dashboard
def test_every_query_of_a_plan_is_in_its_file(plan: Dashboard) -> None:
    planned = [query.expression for panel in plan.panels for query in panel.queries]
    assert [asked.expression for asked in queries(plan)] == planned
    assert {asked.needs for asked in queries(plan)} - {""} <= REASONS.keys()


def asked_metrics() -> set[str]:
    alerts = (ROOT / "configs" / "prometheus" / "alerts.yml").read_text()
    expressions = [asked.expression for plan in DASHBOARDS for asked in queries(plan)]
    return set(re.findall(r"\bariadne_\w+", " ".join([alerts, *expressions])))


def test_what_is_asked_for_is_in_the_catalogue() -> None:
    assert asked_metrics() <= {metric.name for metric in CATALOGUE}


def test_every_metric_is_shown_or_told_somewhere() -> None:
    unshown = {metric.name for metric in CATALOGUE} - asked_metrics()
    assert unshown == {
        # For questions that come up: when was it, what was it.
        "ariadne_checkpoint_timestamp_seconds",
        "ariadne_gate_promoted",
        "ariadne_gate_step",
        "ariadne_run_info",
        "ariadne_run_stage_timestamp_seconds",
        "ariadne_runs",
        "ariadne_runs_unreadable",
        "ariadne_train_steps_trained_total",
    }


def test_a_variable_that_nobody_fills_in_is_told() -> None:
    filled = filled_in('rate(x{run=~"$run"}[$__rate_interval])', run="a", rate="2m")
    assert filled == 'rate(x{run=~"a"}[2m])'
    assert "$__interval" in reason(lambda: filled_in("rate(x[$__interval])"))


def test_grafana_finds_the_dashboards_and_prometheus_by_its_provisioning_files() -> None:
    folder = FOLDER / "provisioning"
    source = yaml.safe_load((folder / "datasources" / "ariadne.yml").read_text())["datasources"][0]
    local = yaml.safe_load((ROOT / "configs" / "prometheus" / "local.yml").read_text())
    assert source["type"] == "prometheus" and source["url"] == "$ARIADNE_PROMETHEUS_URL"
    assert source["jsonData"]["timeInterval"] == local["global"]["scrape_interval"]
    provider = yaml.safe_load((folder / "dashboards" / "ariadne.yml").read_text())["providers"][0]
    assert provider["options"]["path"] == "$ARIADNE_DASHBOARDS"


@pytest.fixture
def api() -> Iterator[GrafanaApi]:
    with grafana_api() as api:
        yield api


def upload_all(api: GrafanaApi, token: str = EDITOR) -> list[str]:
    grafana = ManagedGrafana(api.url, token, wait_s=0)
    grafana.ensure_folder("ariadne", "Ariadne")
    return [grafana.upload(file_of(plan).read_text(), "ariadne") for plan in DASHBOARDS]


def test_an_upload_creates_all_and_a_second_one_changes_nothing(api: GrafanaApi) -> None:
    assert upload_all(api) == ["created"] * 5
    assert api.folders == {"ariadne": "Ariadne"} and set(api.places.values()) == {"ariadne"}
    assert upload_all(api) == ["unchanged"] * 5
    assert {each["version"] for each in api.dashboards.values()} == {1}


def test_what_somebody_changed_there_or_moved_is_put_back(api: GrafanaApi) -> None:
    upload_all(api)
    api.dashboards["ariadne-cost"]["title"] = "Mine"
    api.folders["elsewhere"] = "Elsewhere"
    api.places["ariadne-training"] = "elsewhere"
    outcomes = dict(zip([plan.uid for plan in DASHBOARDS], upload_all(api), strict=True))
    assert {uid for uid, outcome in outcomes.items() if outcome == "updated"} == {
        "ariadne-cost",
        "ariadne-training",
    }
    assert api.dashboards["ariadne-cost"]["title"] == "Ariadne: cost"
    assert api.places["ariadne-training"] == "ariadne"


def test_a_busy_grafana_is_asked_again_and_a_dead_one_three_times(api: GrafanaApi) -> None:
    api.busy_times = 2
    assert upload_all(api) == ["created"] * 5
    api.busy_times, api.asked = 99, []
    assert "503" in reason(lambda: upload_all(api))
    assert len(api.asked) == 3


def test_a_key_that_is_not_valid_or_may_not_write_is_told_in_one_line(api: GrafanaApi) -> None:
    assert "make another one" in reason(lambda: upload_all(api, "glsa_ended"))
    assert "needs the role Editor" in reason(lambda: upload_all(api, VIEWER))
    assert len(api.asked) == 3 and api.dashboards == {}


def test_without_address_or_key_and_without_https_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GRAFANA_URL", raising=False)
    monkeypatch.setenv("GRAFANA_TOKEN", "glsa_secret")
    assert "set GRAFANA_URL" in reason(ManagedGrafana.from_environment)
    monkeypatch.setenv("GRAFANA_URL", "http://grafana.example.com")
    said = reason(ManagedGrafana.from_environment)
    assert "https://" in said and "glsa_secret" not in said


def test_the_command_uploads_with_the_key_of_the_environment(
    api: GrafanaApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFANA_URL", api.url)
    monkeypatch.setenv("GRAFANA_TOKEN", EDITOR)
    done = command("upload")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "Ariadne: run overview: created"
    assert len(api.dashboards) == 5 and EDITOR not in done.stdout + done.stderr


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows", "dashboards", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_without_a_prometheus_the_sheet_names_the_next_move(tmp_path: Path) -> None:
    done = command("sheet", "--out", str(tmp_path), "--url", "http://127.0.0.1:1")
    assert done.returncode == 1 and "`make up` starts one" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_pod_monitor_finds_the_ports_that_our_ray_pods_have() -> None:
    monitor = yaml.safe_load((ROOT / "configs" / "prometheus" / "podmonitor.yaml").read_text())
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    cluster = ray_cluster("maze", cluster_config(), IMAGE)["spec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert str(ports[endpoint["port"]]) == group["rayStartParams"]["metrics-export-port"]
    label = re.sub(r"\W", "_", CLUSTER_LABEL)
    assert endpoint["relabelings"][0]["sourceLabels"] == [f"__meta_kubernetes_pod_label_{label}"]
