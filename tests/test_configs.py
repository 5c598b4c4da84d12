"""Profiles and jobs: what is shipped loads, what is wrong gives one line that says why."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from configs import loader
from configs.jobs import TrainJob
from configs.loader import ROOT, load_config, profile_names
from configs.mazes import load_maze_set


def write_profile(folder: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Make `broken` the only profile: the smoke profile with `old` replaced."""
    text = (loader.PROFILES / "smoke.toml").read_text()
    assert text.count(old) == 1
    (folder / "broken.toml").write_text(text.replace(old, new))
    monkeypatch.setattr(loader, "PROFILES", folder)


def smoke_job(folder: Path) -> TrainJob:
    return TrainJob(
        run_id="smoke-0",
        attempt=2,
        config=load_config("smoke", {"train.steps": 7, "train.lora.rank": 4}),
        base_digest="0" * 64,
        checkpoints=folder / "checkpoints",
        adapters=folder / "adapters",
        metrics=folder / "metrics.jsonl",
        attempts=folder / "attempts",
        scratch=folder / "scratch",
    )


@pytest.mark.parametrize("profile", profile_names())
def test_every_shipped_profile_loads_and_names_files_that_exist(profile: str) -> None:
    config = load_config(profile)
    assert config.name == profile
    assert config.model.path.is_absolute()
    assert load_maze_set(config.mazes.test_set).num_solvable(config.mazes.max_turns) > 0


def test_the_profiles_that_the_pipeline_needs_are_shipped() -> None:
    assert {"local", "smoke", "hyperpod"} <= set(profile_names())
    assert (load_config("smoke").model.path / "config.json").is_file()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "steps = 3",
            "steps = 0",
            "train.steps: Input should be greater than or equal to 1, not 0",
        ),
        ("steps = 3", "stepps = 3", "train.steps: Field required"),
        ("steps = 3", "steps = 3\nstepps = 3", "train.stepps: Extra inputs are not permitted"),
        (
            "steps = 3",
            'steps = "many"',
            "train.steps: Input should be a valid integer, unable to parse string as an integer, "
            "not 'many'",
        ),
        ("steps = 3", "steps = [3]", "train.steps: Input should be a valid integer, not [3]"),
        ('"cpu"', '"tpu"', "train.device: Input should be 'cpu' or 'cuda', not 'tpu'"),
        ('"smoke"', "[1]", "name: Input should be a valid string, not [1]"),
        (
            "mini_batch_mazes = 2",
            "mini_batch_mazes = 5",
            "train: Value error, mini_batch_mazes is 5, more than the 4 mazes of a step",
        ),
        ("[cluster]", "[clusters]", "clusters: Extra inputs are not permitted"),
        ("cell_px = 8", "cell_px = 3", "mazes.cell_px: Input should be greater than or equal to 4"),
        ("steps = 3", "steps =", "Invalid value"),
    ],
)
def test_a_wrong_profile_gives_one_line_with_file_key_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    write_profile(tmp_path, monkeypatch, old, new)
    with pytest.raises(ValueError) as caught:
        load_config("broken")
    assert str(caught.value).startswith(f"configs/broken.toml: {message}")
    assert "\n" not in str(caught.value)


def test_an_unknown_profile_gives_one_line_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"^no profile 'lokal': choose one of .*local, .*smoke$"):
        load_config("lokal")


def test_overrides_change_what_they_name_and_nothing_else() -> None:
    plain = load_config("smoke").model_dump()
    changed = load_config("smoke", {"train.steps": 9, "train.lora.rank": 8, "host.port": 9000})
    plain["train"]["steps"] = 9
    plain["train"]["lora"]["rank"] = 8
    plain["host"]["port"] = 9000
    assert changed.model_dump() == plain


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("train.steps", -1, "train.steps: Input should be greater than or equal to 1, not -1"),
        ("train.stepps", 1, "train.stepps: Extra inputs are not permitted"),
        ("training.steps", 1, "training: Extra inputs are not permitted"),
        ("train", 3, "train: Input should be a valid dictionary"),
    ],
)
def test_a_wrong_override_gives_one_line_with_file_key_and_reason(
    key: str, value: int, message: str
) -> None:
    with pytest.raises(ValueError) as caught:
        load_config("smoke", {key: value})
    assert str(caught.value).startswith(f"configs/smoke.toml: {message}")
    assert "\n" not in str(caught.value)


def test_a_relative_path_starts_at_the_root_and_an_absolute_one_stays(tmp_path: Path) -> None:
    assert load_config("smoke").mazes.test_set == ROOT / "configs/mazes/tiny-64.json"
    elsewhere = load_config("smoke", {"model.path": str(tmp_path)})
    assert elsewhere.model.path == tmp_path


def test_a_configuration_cannot_be_changed_after_it_was_checked() -> None:
    config = load_config("smoke")
    with pytest.raises(ValidationError, match="frozen"):
        config.train.steps = 5


def test_a_job_file_reads_back_as_the_job_that_was_written(tmp_path: Path) -> None:
    job = smoke_job(tmp_path)
    again = TrainJob.read(job.write(tmp_path / "job.json"))
    assert again == job
    assert again.config.train.steps == 7
    assert again.write(tmp_path / "again.json").read_text() == (tmp_path / "job.json").read_text()


def test_a_job_file_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    path = smoke_job(tmp_path).write(tmp_path / "job.json")
    path.write_text(path.read_text().replace('"attempt"', '"atempt": 1, "attempt"'))
    with pytest.raises(ValidationError, match="atempt"):
        TrainJob.read(path)


def test_importing_configs_loads_only_pydantic_and_the_standard_library() -> None:
    program = """
import sys
before = set(sys.modules)
import configs.digests, configs.jobs, configs.loader, configs.mazes, configs.schema
configs.loader.load_config("smoke")
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - sys.stdlib_module_names))
"""
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    foreign = {name for name in answer.stdout.split() if not name.startswith("_sysconfigdata")}
    of_pydantic = {"annotated_types", "pydantic_core", "typing_extensions", "typing_inspection"}
    assert foreign <= {"configs", "pydantic"} | of_pydantic
    assert {"configs", "pydantic"} <= foreign
