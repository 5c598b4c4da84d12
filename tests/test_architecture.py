"""The directions of imports, the places of vendors, and the house limits, read from the source."""

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("configs", "containers", "tasks", "flows")
FILES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))

ALLOWED = {
    "configs": {"configs"},
    "containers": {"configs", "containers"},
    "tasks": {"configs", "tasks"},
    "flows": {"configs", "tasks", "flows"},
}
_AWS = ("aws_account", "codebuild", "eks_token", "hyperpod", "s3_store")
AWS = {f"tasks/backends/{name}.py" for name in _AWS}
"""One file for each service."""
VENDORS = {
    "boto3": AWS,
    "botocore": AWS,
    "grafana_foundation_sdk": {"tasks/dashboards/grafana.py"},
    "kubernetes": {"tasks/backends/kubernetes_api.py"},
    "matplotlib": {"tasks/dashboards/sheet.py"},
    "mlflow": {"tasks/backends/mlflow_tracker.py"},
    "prometheus_client": {"tasks/metrics/exporter.py"},
    "supervisor": {"tasks/backends/supervisord.py"},
}


def imports(path: Path) -> set[str]:
    """Full names of all modules imported anywhere in a file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_part_imports_only_what_lies_below_it() -> None:
    wrong = [
        f"{name(path)} imports {module}"
        for path in FILES
        for module in imports(path)
        if module.split(".")[0] in PARTS
        and module.split(".")[0] not in ALLOWED[path.relative_to(ROOT).parts[0]]
    ]
    assert wrong == []


def test_configs_import_only_pydantic_and_the_standard_library() -> None:
    allowed = {*sys.stdlib_module_names, "pydantic", "configs"}
    wrong = [
        f"{name(path)} imports {module}"
        for path in FILES
        if path.is_relative_to(ROOT / "configs")
        for module in imports(path)
        if module.split(".")[0] not in allowed
    ]
    assert wrong == []


def test_each_vendor_is_spoken_to_in_one_place() -> None:
    places = defaultdict(set)
    for path in FILES:
        for module in imports(path):
            if module.split(".")[0] in VENDORS:
                places[module.split(".")[0]].add(name(path))
    assert {vendor: places[vendor] for vendor in VENDORS} == VENDORS


def test_prefect_is_known_to_flows_and_stages_but_to_no_backend() -> None:
    wrong = [
        name(path)
        for path in FILES
        if path.is_relative_to(ROOT / "tasks" / "backends")
        and any(module.split(".")[0] == "prefect" for module in imports(path))
    ]
    assert wrong == []


def test_only_the_wiring_and_the_services_pick_vendors() -> None:
    ours = "tasks.backends.object_store"  # plain files: nobody's product
    free = {"tasks.backends.protocols", "tasks.backends.wiring", ours}
    pickers = {
        "tasks/backends/wiring.py",
        "tasks/services.py",
        "flows/operate.py",
        "flows/see.py",
    }
    wrong = [
        f"{name(path)} imports {module}"
        for path in FILES
        if name(path) not in pickers and not path.is_relative_to(ROOT / "tasks" / "backends")
        for module in imports(path)
        if module.startswith("tasks.backends.") and not any(module.startswith(f) for f in free)
    ]
    assert wrong == []


def test_the_control_plane_loads_no_torch() -> None:
    code = "import sys, flows.post_train, flows.rollback; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split()[-1] == "False", done.stderr


@pytest.mark.parametrize("path", FILES, ids=name)
def test_files_say_what_they_are_for_and_stay_small(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "no module docstring"
    assert len(text.splitlines()) <= 400
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 80, f"{node.name} is too long"


def test_broad_excepts_are_few() -> None:
    broad = [
        f"{name(path)}:{node.lineno}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
    ]
    assert len(broad) <= 6, broad


def test_the_command_line_loads_no_prefect_before_it_knows_the_server() -> None:
    """It would read its settings then, find no server in them and start one of its own."""
    program = "import flows.__main__, sys; sys.exit('prefect' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0
