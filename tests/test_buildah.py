"""Images that are really built and pushed: Debian's buildah and registry, on a base made here."""

import json
import subprocess
from pathlib import Path

import httpx
import pytest

from configs.image import RegistryConfig
from tasks.backends import buildah
from tasks.backends.buildah import CONTENT_LABEL, Buildah
from tasks.backends.image_source import ImageSource
from tests.registries import push_base
from tests.samples import reason

DOCKERFILE = f"""\
ARG BASE
FROM ${{BASE}}
COPY configs/ /opt/ariadne/configs/
RUN ["/bin/sh", "-c", "echo it runs > /proof"]
ARG CONTENT_DIGEST
LABEL {CONTENT_LABEL}="${{CONTENT_DIGEST}}"
"""
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def base(host: str, images: Path) -> str:
    return push_base(host, images)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    trainer = root / "containers" / "trainer"
    trainer.mkdir(parents=True)
    (root / "configs").mkdir()
    (root / "configs" / "schema.py").write_text(f"WHERE = {str(tmp_path)!r}\n")
    (trainer / "requirements.lock").write_text("# nothing\n")
    (trainer / "Dockerfile").write_text(DOCKERFILE)
    return root


@pytest.fixture
def config(host: str, base: str) -> RegistryConfig:
    return RegistryConfig(repository=f"{host}/ariadne/trainer", base=base)


def tags(config: RegistryConfig) -> list[str]:
    url = f"http://{config.host}/v2/ariadne/trainer/tags/list"
    return httpx.get(url, timeout=10).json()["tags"] or []


def test_the_same_content_is_built_once_and_goes_by_its_digest(
    config: RegistryConfig, project: Path
) -> None:
    builder = Buildah(config, ImageSource(root=project))
    digest = builder.digest()
    assert builder.find(digest) is None
    image = builder.build(digest, force=False)
    assert image.reference.startswith(f"{config.repository}@sha256:")
    assert builder.find(digest) == image
    # A second machine, with the same content and a Dockerfile that could not be built there.
    assert Buildah(config, ImageSource(root=project)).build(digest, force=False) == image
    assert digest[:40] in tags(config)
    told = subprocess.run(
        ["skopeo", "inspect", "--config", "--tls-verify=false", f"docker://{image.reference}"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(told.stdout)["config"]["Labels"][CONTENT_LABEL] == digest


def test_other_content_is_another_image(config: RegistryConfig, project: Path) -> None:
    first = Buildah(config, ImageSource(root=project)).digest()
    (project / "configs" / "schema.py").write_text("STEPS = 2\n")
    second = Buildah(config, ImageSource(root=project)).digest()
    other_base = config.model_copy(update={"base": config.base[:-4] + "0000"})
    assert len({first, second, Buildah(other_base, ImageSource(root=project)).digest()}) == 3
    refused = reason(lambda: Buildah(config, ImageSource(root=project)).build(first, force=False))
    assert "cannot be made again, since the code has changed" in refused


def test_a_tag_that_was_moved_to_other_content_is_not_trusted(
    config: RegistryConfig, project: Path
) -> None:
    builder = Buildah(config, ImageSource(root=project))
    image = builder.build(builder.digest(), force=False)
    (project / "configs" / "schema.py").write_text("MOVED = True\n")
    moved = builder.digest()
    pulled, tag = f"docker://{image.reference}", f"{config.repository}:{moved[:40]}"
    subprocess.run(
        ["skopeo", "copy", "--src-tls-verify=false", "--dest-tls-verify=false", pulled,
         f"docker://{tag}"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    said = reason(lambda: builder.build(moved, force=False))
    assert said.startswith(f"{tag} is of other content (") and "remove that tag" in said


def test_a_step_that_fails_says_its_last_words_and_leaves_no_tag(
    config: RegistryConfig, project: Path
) -> None:
    file = project / "containers" / "trainer" / "Dockerfile"
    failing = 'RUN ["/bin/sh", "-c", "echo no compiler here >&2; exit 3"]\n'
    file.write_text(DOCKERFILE + failing)
    builder = Buildah(config, ImageSource(root=project))
    said = reason(lambda: builder.build(builder.digest(), force=False))
    assert "was not built: buildah vfs build" in said and "no compiler here" in said
    assert builder.digest()[:40] not in tags(config)


def test_a_build_that_hangs_is_ended_with_all_that_it_started(
    config: RegistryConfig, project: Path
) -> None:
    file = project / "containers" / "trainer" / "Dockerfile"
    file.write_text(DOCKERFILE + 'RUN ["/bin/sh", "-c", "sleep 98765"]\n')
    hasty = config.model_copy(update={"build_timeout_s": 10})
    builder = Buildah(hasty, ImageSource(root=project))
    said = reason(lambda: builder.build(builder.digest(), force=False))
    assert "it took longer than 10 s" in said
    left = subprocess.run(["pgrep", "-f", "sleep 98765"], capture_output=True, check=False)
    assert left.stdout == b""


def test_a_registry_that_is_away_is_named(project: Path, base: str) -> None:
    away = RegistryConfig(repository="127.0.0.1:1/ariadne/trainer", base=base)
    said = reason(lambda: Buildah(away, ImageSource(root=project)).find("d" * 64))
    assert said.startswith("the registry 127.0.0.1:1 does not tell of ")


def test_what_is_not_installed_is_named(
    config: RegistryConfig, project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = reason(lambda: Buildah(config, ImageSource(root=project)).find("d" * 64))
    assert "skopeo is not installed (Debian: skopeo)" in said


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("repository", "registry.example.com"),
        ("repository", "registry.example.com/a:tag"),
        ("repository", "registry.example.com/../a"),
        ("repository", "--help/x"),
        ("base", "python:3.12"),
        ("base", f"--x@sha256:{'a' * 64}"),
    ],
)
def test_names_that_are_none_are_refused(config: RegistryConfig, field: str, value: str) -> None:
    with pytest.raises(ValueError, match=field):
        RegistryConfig.model_validate({**config.model_dump(), field: value})


def test_the_hidden_steps_of_a_run_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(buildah.Failed, match="it took longer than 1 s"):
        buildah._run(["sh", "-c", "sleep 30"], 1)
