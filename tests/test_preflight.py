"""What is known before a run is paid for: each doomed run is refused, with the way out."""

import json
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from configs.loader import ROOT, load_config
from configs.schema import PostTrainConfig
from flows.show import show_findings
from tasks.home import Home
from tasks.preflight.account import account_findings
from tasks.preflight.arithmetic import batch_arithmetic
from tasks.preflight.cost import cost, estimate
from tasks.preflight.findings import Finding, refuse
from tasks.preflight.image import trainer_image
from tasks.preflight.mazes import turn_ceiling
from tasks.preflight.paths import base_model, shared_paths
from tasks.preflight.room import disk, host_memory
from tasks.preflight.stage import examine
from tasks.run_dir import create_run
from tests.fakes import IMAGE
from tests.samples import make_config, reason

BASE = f"docker.io/nvidia/cuda@sha256:{'b' * 64}"
Usage = namedtuple("Usage", "total used free")


def hyperpod(**changes: Any) -> PostTrainConfig:
    """The shipped profile; `train__steps=8` sets train.steps."""
    return load_config("hyperpod", {key.replace("__", "."): v for key, v in changes.items()})


def write_shapes(folder: Path, **shapes: list[int]) -> Path:
    """A checkpoint of these tensors, of which only the header is there."""
    folder.mkdir(parents=True)
    header = {name: {"dtype": "F32", "shape": shape} for name, shape in shapes.items()}
    data = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(data).to_bytes(8, "little") + data)
    return folder


def test_the_published_batches_fail_on_six_gpus_and_those_that_are_proposed_do_not() -> None:
    published = hyperpod(train__mazes_per_step=32, train__mini_batch_mazes=16)
    found = batch_arithmetic(published)
    assert not found.ok
    assert found.detail == ("32 mazes of 8 samples in a step do not divide among 6 processes")
    assert found.fix == "try train.mazes_per_step = 30 and train.mini_batch_mazes = 15"
    assert batch_arithmetic(hyperpod(train__mazes_per_step=30, train__mini_batch_mazes=15)).ok


@pytest.mark.parametrize("profile", ["hyperpod", "local", "smoke"])
def test_the_batches_of_every_profile_divide(profile: str) -> None:
    assert batch_arithmetic(load_config(profile)).ok


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"mazes_per_step": 30, "mini_batch_mazes": 12}, "30 mazes is no multiple of 12"),
        ({"micro_batch_episodes": 5}, "16 episodes of a mini batch in each process are no multip"),
        ({"mini_batch_mazes": 8}, "8 mazes of 8 samples in a mini batch do not divide among 6"),
        ({"num_processes": 5}, "5 processes do not fill workers of 2 GPUs"),
    ],
)
def test_batches_that_do_not_divide_name_the_numbers(changes: dict[str, int], detail: str) -> None:
    found = batch_arithmetic(hyperpod(**{f"train__{key}": v for key, v in changes.items()}))
    assert not found.ok and detail in found.detail and found.fix


@pytest.mark.parametrize("gpus", [1, 2, 4, 6])
@pytest.mark.parametrize("micro", [1, 4, 7])
def test_the_batches_that_are_proposed_divide(gpus: int, micro: int) -> None:
    changes = {"mazes_per_step": 35, "mini_batch_mazes": 17, "micro_batch_episodes": micro}
    config = hyperpod(
        train__num_processes=gpus,
        cluster__gpus_per_worker=1,
        cluster__num_workers=6,
        **{f"train__{key}": value for key, value in changes.items()},
    )
    words = batch_arithmetic(config).fix.split()
    step, mini = int(words[3]), int(words[-1])
    assert batch_arithmetic(
        config.model_copy(
            update={
                "train": config.train.model_copy(
                    update={"mazes_per_step": step, "mini_batch_mazes": mini}
                )
            }
        )
    ).ok


def test_fifteen_turns_can_solve_fifty_of_the_sixty_four() -> None:
    found = turn_ceiling(hyperpod(mazes__max_turns=15))
    assert not found.ok
    assert found.detail == "15 turns can solve at most 50 of the 64 mazes"
    assert found.fix == "give mazes.max_turns = 17"
    assert turn_ceiling(hyperpod(mazes__max_turns=17)).ok


def test_room_is_looked_for_where_a_folder_will_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = write_shapes(tmp_path / "base", linear=[1000, 1000])
    config = make_config(tmp_path, train__keep_checkpoints=1, train__lora__rank=10)
    config = config.model_copy(update={"model": config.model.model_copy(update={"path": base})})
    asked = []
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: asked.append(path) or Usage(0, 0, 3 * 320_000 - 1)
    )
    found = disk(config, tmp_path / "not" / "yet", num_kept=0)
    assert not found.ok and asked == [tmp_path]
    assert disk(config, tmp_path, num_kept=1).ok


def test_engines_that_sleep_in_ram_need_a_large_enough_pod(tmp_path: Path) -> None:
    """Two engines of 16 GiB, a third of 32 GiB offloaded, 128 GiB shared, 16 GiB for the rest."""
    base = write_shapes(tmp_path / "base", embed_tokens=[2**33, 1])
    enough = hyperpod(model__path=str(base), cluster__kuberay__worker__memory_gb=187)
    found = host_memory(enough)
    assert found and found.ok and "needs 187 GB" in found.detail
    found = host_memory(hyperpod(model__path=str(base), cluster__kuberay__worker__memory_gb=186))
    assert found and not found.ok
    assert found.fix.startswith("give cluster.kuberay.worker.memory_gb = 187")
    assert host_memory(load_config("local")) is None


def test_a_run_over_its_budget_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path)
    config = hyperpod(train__steps=33, preflight__step_s=100)
    hourly = 3 * config.cost.worker_usd_per_hour + config.cost.head_usd_per_hour
    found = estimate(config, home)
    assert found.hours == pytest.approx(0.5 + 36 * 100 / 3600)
    assert found.usd == pytest.approx(1.5 * hourly)
    assert found.basis == f"100 s a step, assumed; {hourly:.2f} USD an hour"
    assert cost(config, home).ok
    over = cost(hyperpod(train__steps=33, preflight__step_s=100, preflight__max_usd=20), home)
    assert not over.ok and over.fix == "lower train.steps, or raise preflight.max_usd = 20"
    assert cost(hyperpod(preflight__max_usd=20, preflight__step_s=1), home, done_steps=160).ok


def test_machines_without_prices_are_pointed_out_and_ones_own_cost_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path)
    free = hyperpod(cost__worker_usd_per_hour=0, cost__head_usd_per_hour=0)
    found = estimate(free, home)
    assert found.usd is None and "the section cost of the profile has no prices" in found.basis
    assert estimate(load_config("local"), home).usd is None


def test_a_measured_step_is_believed_before_an_assumed_one(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.runs.mkdir(parents=True)
    (home.runs / "old").mkdir()
    (home.runs / "old" / "run.json").write_text('{"run_id": "of another version"}')
    run = create_run(home.runs, make_config(tmp_path, train__seed=7), IMAGE.digest)
    lines = [
        {"step": n, "attempt": 1, "wall_time_ms": n, "values": {"timing/step": took}}
        for n, took in ((1, 50.0), (2, 10.0), (3, 12.0))
    ]
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = estimate(make_config(tmp_path, train__seed=8), home)
    assert found.basis == f"12 s a step, measured in {run.run_id}"
    other = estimate(make_config(tmp_path, train__samples_per_maze=8), home)
    assert other.basis.endswith("assumed")


def test_paths_that_pods_would_not_find_are_refused(tmp_path: Path) -> None:
    found = shared_paths(hyperpod(), Home(tmp_path))
    assert found and not found.ok
    assert found.detail.startswith("ARIADNE_HOME: ") and found.fix.startswith("put it there")
    assert shared_paths(load_config("local"), Home(tmp_path)) is None


def test_a_base_model_that_is_missing_or_damaged_is_refused(tmp_path: Path) -> None:
    missing = base_model(hyperpod(model__path=str(tmp_path)))
    assert not missing.ok and "has no *.safetensors weights" in missing.detail
    (tmp_path / "model.safetensors").write_bytes(b"\5\0\0\0\0\0\0\0{nope")
    damaged = base_model(hyperpod(model__path=str(tmp_path)))
    assert not damaged.ok and "are damaged" in damaged.detail


class Account:
    """An account that allows two machines of each kind, or lists no quota."""

    def __init__(self, refusal: str = "", allowed: float | None = 2) -> None:
        self._refusal, self._allowed = refusal, allowed

    def identity(self) -> str:
        if self._refusal:
            raise RuntimeError(self._refusal)
        return "arn:aws:iam::123456789012:role/ariadne"

    def quota(self, instance_type: str) -> float | None:
        return self._allowed


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({}, "placeholder for its digest"),
        ({"image__registry__base": BASE}, "of 123456789012, AWS's example account"),
        ({"image": {"backend": "environment"}}, "flash-attention is compiled"),
    ],
)
def test_an_image_that_cannot_be_built_is_told_before(changes: Any, detail: str) -> None:
    found = trainer_image(hyperpod(**changes))
    assert found and not found.ok and detail in found.detail and found.fix


def test_an_image_that_can_be_built_says_where_it_goes() -> None:
    name = "registry.example.com/ariadne/trainer"
    found = trainer_image(hyperpod(image__registry__base=BASE, image__registry__repository=name))
    assert found and found.ok and found.detail == f"codebuild builds for {name}"
    assert trainer_image(load_config("local")) is None


def test_a_quota_that_is_too_small_says_how_many_and_where_to_ask() -> None:
    who, workers, hosting, head = account_findings(hyperpod(), Account())
    assert who.ok and hosting.ok and head.ok and not workers.ok
    assert workers.detail == "the run needs 3 and the account may have 2"
    assert '"ml.g7e.12xlarge for cluster usage"' in workers.fix
    assert all(each.ok for each in account_findings(hyperpod(), Account(allowed=None)))


def test_the_machine_of_the_endpoint_is_asked_for_before_training_is_paid_for() -> None:
    found = {each.name: each for each in account_findings(hyperpod(), Account(allowed=0))}
    hosting = found["quota of ml.g7e.2xlarge"]
    assert not hosting.ok and hosting.detail == "the run needs 1 and the account may have 0"
    # Its servers are in one pod; machines of one kind are asked for together.
    several = hyperpod(host__num_replicas=2, host__pod__instance_type="ml.g7e.12xlarge")
    found = {each.name: each for each in account_findings(several, Account())}
    assert found["quota of ml.g7e.12xlarge"].detail.startswith("the run needs 4 ")
    assert len(found) == 3


def test_without_credentials_nothing_else_is_asked() -> None:
    (only,) = account_findings(hyperpod(), Account("AWS refuses the credentials: none: log in"))
    assert not only.ok
    assert (only.detail, only.fix) == ("AWS refuses the credentials: none", "log in")


def test_a_refusal_has_all_that_is_wrong_in_one_line() -> None:
    good = Finding(name="a", ok=True, detail="x")
    bad = [Finding(name=name, ok=False, detail="y", fix="z") for name in "bc"]
    refuse([good])
    assert reason(lambda: refuse([good, *bad])) == ("preflight refuses the run: b: y: z; c: y: z")


def test_the_cpu_profiles_pass_and_nothing_is_made(tmp_path: Path) -> None:
    for profile in ("local", "smoke"):
        refuse(examine(load_config(profile), Home(tmp_path / "home")))
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_gets_plain_lines_and_a_terminal_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [
        Finding(name="disk", ok=True, detail="room [enough]"),
        Finding(name="quota", ok=False, detail="too small", fix="ask for more"),
    ]
    show_findings(findings, Console(soft_wrap=True))
    assert capsys.readouterr().out == (
        "pass  disk: room [enough]\nFAIL  quota: too small -> ask for more\n"
    )
    show_findings(findings, Console(force_terminal=True, width=100))
    shown = capsys.readouterr().out
    assert "room [enough]" in shown and "-> ask for more" in shown and "FAIL" in shown


def test_the_command_ends_with_1_where_the_run_is_doomed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flows", "preflight", "--profile", "hyperpod"],
        cwd=ROOT,
        env={
            "ARIADNE_HOME": str(tmp_path),
            "AWS_EC2_METADATA_DISABLED": "true",
            "HOME": "/nowhere",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("pass  batch arithmetic: 24 mazes") for line in lines)
    assert any(line.startswith("FAIL  credentials: ") for line in lines)
    assert list(tmp_path.iterdir()) == []
