"""prefect.yaml, which Prefect reads without complaint about what it does not know."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.cli.deploy._models import DeploymentConfig, PrefectYamlModel
from prefect.utilities.callables import parameter_schema

from configs.loader import profile_names

ROOT = Path(__file__).parents[1]
FILE = yaml.safe_load((ROOT / "prefect.yaml").read_text())
DEPLOYMENTS: list[dict[str, Any]] = FILE["deployments"]


def flow_of(deployment: dict[str, Any]) -> Flow[..., Any]:
    path, _, name = deployment["entrypoint"].partition(":")
    return getattr(import_module(path.removesuffix(".py").replace("/", ".")), name)


def test_the_deployments_are_those_operators_know() -> None:
    names = [each["name"] for each in DEPLOYMENTS]
    assert names == ["post-train", "preflight", "evaluate", "host", "rollback", "sweep"]


def test_no_key_is_unknown_to_prefect() -> None:
    allowed = {*PrefectYamlModel.model_fields, "definitions"}
    known = {field.alias or name for name, field in PrefectYamlModel.model_fields.items()}
    assert set(FILE) <= allowed | known
    for deployment in DEPLOYMENTS:
        assert set(deployment) <= set(DeploymentConfig.model_fields), deployment["name"]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda each: each["name"])
def test_every_entrypoint_is_a_flow_with_the_deployments_name(deployment: dict[str, Any]) -> None:
    flow = flow_of(deployment)
    assert isinstance(flow, Flow)
    assert flow.name == deployment["name"]
    assert deployment["enforce_parameter_schema"] is True


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda each: each["name"])
def test_preset_parameters_are_valid_for_the_flow(deployment: dict[str, Any]) -> None:
    preset = deployment.get("parameters", {})
    properties = parameter_schema(flow_of(deployment)).properties
    assert set(preset) <= set(properties)
    flow_of(deployment).validate_parameters({**_smallest(deployment["name"]), **preset})


def _smallest(name: str) -> dict[str, Any]:
    return {"run_id": "local-0123456789", "step": 1} if name in ("evaluate", "host") else {}


def test_the_schedule_is_paused_and_survives_a_new_registration() -> None:
    (schedule,) = DEPLOYMENTS[0]["schedules"]
    assert schedule["slug"] == "nightly"
    assert schedule["active"] is False


def test_the_sweep_is_on_from_the_start() -> None:
    (schedule,) = DEPLOYMENTS[-1]["schedules"]
    assert (schedule["interval"], schedule["active"]) == (1800, True)


def test_the_form_shows_described_and_bounded_parameters() -> None:
    properties = parameter_schema(flow_of(DEPLOYMENTS[0])).properties
    assert properties["profile"]["enum"] == profile_names()
    assert properties["steps"]["anyOf"][0]["minimum"] == 1
    assert properties["seed"]["anyOf"][0]["minimum"] == 0
    assert all(each.get("description") for each in properties.values()), properties
