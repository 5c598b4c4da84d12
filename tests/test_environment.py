"""The image of a machine without containers: named by its content, whole or made anew.

The project is a small one and its lock is empty, so uv installs nothing.
"""

import shutil
import subprocess
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks.backends import environment
from tasks.backends.environment import EnvironmentBuilder
from tasks.backends.protocols import Image
from tests.samples import reason

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    trainer = root / "containers" / "trainer"
    trainer.mkdir(parents=True)
    (root / "configs").mkdir()
    (root / "configs" / "schema.py").write_text("STEPS = 1\n")
    (trainer / "train_main.py").write_text("from configs.schema import STEPS; print(STEPS)\n")
    (trainer / "requirements.lock").write_text("# nothing\n")
    return root


@pytest.fixture
def builder(tmp_path: Path, project: Path) -> EnvironmentBuilder:
    """With a cache that does not exist yet."""
    return EnvironmentBuilder(tmp_path / "cache", project)


@pytest.fixture
def installs(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The environments that were installed, without installing them."""
    made: list[Path] = []

    def install(folder: Path, lock: Path) -> None:
        made.append(folder)
        (folder / "bin").mkdir(parents=True)

    monkeypatch.setattr(environment, "_install", install)
    return made


def build(builder: EnvironmentBuilder, *, force: bool = False) -> Image:
    return builder.build(builder.digest(), force=force)


def edit(path: Path) -> None:
    path.write_text(path.read_text() + "# edited\n")


def test_an_image_runs_its_own_copy_of_the_code(project: Path, builder: EnvironmentBuilder) -> None:
    image = build(builder)
    (project / "configs" / "schema.py").write_text("STEPS = 2\n")
    done = subprocess.run(
        [image.python, "-m", "containers.trainer.train_main"],
        cwd=image.app,
        env={"PYTHONPATH": image.app},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "1\n"
    assert builder.find(image.digest) == image


@pytest.mark.parametrize(
    "name",
    [
        "configs/schema.py",
        "containers/trainer/train_main.py",
        "containers/trainer/requirements.lock",
    ],
)
def test_a_change_of_code_or_lock_is_another_image(
    project: Path, builder: EnvironmentBuilder, name: str
) -> None:
    before = builder.digest()
    edit(project / name)
    assert builder.digest() != before


def test_a_new_program_is_another_image_and_a_text_is_not(
    project: Path, builder: EnvironmentBuilder
) -> None:
    before = builder.digest()
    for name in ("README.md", "configs/README.md", "containers/trainer/notes.txt"):
        (project / name).write_text("A text.\n")
    assert builder.digest() == before
    (project / "containers" / "trainer" / "maze.py").touch()
    assert builder.digest() != before


def test_an_image_that_is_there_is_found_and_not_built_again(
    builder: EnvironmentBuilder, installs: list[Path]
) -> None:
    assert builder.find(builder.digest()) is None
    image = build(builder)
    assert builder.find(image.digest) == image == build(builder)
    assert len(installs) == 1


def test_code_that_changed_shares_the_environment_of_its_lock(
    project: Path, builder: EnvironmentBuilder, installs: list[Path]
) -> None:
    first = build(builder)
    edit(project / "configs" / "schema.py")
    second = build(builder)
    assert (second.python, len(installs)) == (first.python, 1)
    edit(project / "containers" / "trainer" / "requirements.lock")
    assert build(builder).python != first.python and len(installs) == 2


def test_an_earlier_image_keeps_the_environment_it_was_built_with(
    project: Path, builder: EnvironmentBuilder, installs: list[Path]
) -> None:
    first = build(builder)
    edit(project / "containers" / "trainer" / "requirements.lock")
    build(builder)
    assert builder.find(first.digest) == first


def test_todays_code_is_never_built_under_the_name_of_earlier_code(
    project: Path, builder: EnvironmentBuilder, installs: list[Path]
) -> None:
    earlier = build(builder)
    edit(project / "configs" / "schema.py")
    shutil.rmtree(earlier.app)
    assert builder.find(earlier.digest) is None
    line = reason(lambda: builder.build(earlier.digest, force=False))
    assert line.startswith(f"image {earlier.digest[:12]} is gone and cannot be made again")
    assert not Path(earlier.app).exists()


@pytest.mark.parametrize("half", ["app", "environment"])
def test_a_half_made_image_is_not_found_and_is_made_anew(
    builder: EnvironmentBuilder, installs: list[Path], half: str
) -> None:
    image = build(builder)
    folder = Path(image.app) if half == "app" else Path(image.python).parents[1]
    (folder / ".complete").unlink()
    (folder / "torn.py").touch()
    assert builder.find(image.digest) is None
    assert build(builder) == image == builder.find(image.digest)
    assert not (folder / "torn.py").exists()
    assert len(installs) == (1 if half == "app" else 2)


def test_an_install_that_fails_leaves_no_image_and_says_why(
    project: Path, builder: EnvironmentBuilder
) -> None:
    lock = project / "containers" / "trainer" / "requirements.lock"
    lock.write_text("./no-such-folder\n")
    assert reason(lambda: build(builder)).startswith("uv pip failed: ")
    assert builder.find(builder.digest()) is None


def test_two_builds_at_the_same_time_make_one_image(
    tmp_path: Path, project: Path, installs: list[Path]
) -> None:
    builders = [EnvironmentBuilder(tmp_path / "cache", project) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(build, builders)
    assert first == second
    assert len(installs) == 1


def test_force_makes_both_parts_from_nothing(
    builder: EnvironmentBuilder, installs: list[Path]
) -> None:
    image = build(builder)
    leftovers = [Path(image.app) / "left.py", Path(image.python).parent / "left"]
    for path in leftovers:
        path.touch()
    assert build(builder, force=True) == image
    assert len(installs) == 2
    assert not any(path.exists() for path in leftovers)


def test_a_rebuild_that_is_killed_leaves_no_image_that_counts(
    builder: EnvironmentBuilder, installs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def be_killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    image = build(builder)
    with monkeypatch.context() as killed:
        killed.setattr(shutil, "rmtree", be_killed)
        with pytest.raises(KeyboardInterrupt):
            build(builder, force=True)
    assert builder.find(image.digest) is None
    assert build(builder) == image == builder.find(image.digest)


def test_too_little_disk_gives_one_line_and_installs_nothing(
    tmp_path: Path, builder: EnvironmentBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, 10**9))
    assert reason(lambda: build(builder)) == (
        f"the trainer environment needs 9 GB and {tmp_path}/cache/envs has 1.0 GB free: "
        "make room, or set ARIADNE_CACHE to another disk"
    )
    assert list((tmp_path / "cache" / "envs").iterdir()) == []
    assert builder.find(builder.digest()) is None
