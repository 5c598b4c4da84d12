"""Published adapters: complete and identified before anyone can see them, or not there at all."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from configs.digests import digest_of, digest_of_file, digest_of_files
from configs.jobs import TrainJob
from configs.loader import load_config
from containers.trainer import adapters
from containers.trainer.adapters import FILES, MANIFEST, publish, read_manifest

KEY = "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight"


def make_job(folder: Path, attempt: int = 1) -> TrainJob:
    return TrainJob(
        run_id="smoke-1234",
        attempt=attempt,
        config=load_config("smoke"),
        base_digest="b" * 64,
        checkpoints=folder / "checkpoints",
        adapters=folder / "adapters",
        metrics=folder / "metrics.jsonl",
        attempts=folder / "attempts",
        scratch=folder / "scratch",
    )


def save_checkpoint(folder: Path, tensors: dict[str, torch.Tensor], step: int = 4) -> Path:
    """The adapter's part of a checkpoint, as PEFT writes it through SkyRL."""
    checkpoint = folder / "checkpoints" / f"global_step_{step}"
    source = checkpoint / "policy" / "lora_adapter"
    source.mkdir(parents=True)
    save_file(tensors, source / FILES[1])
    config = {
        "base_model_name_or_path": "/somewhere/else",
        "inference_mode": False,
        "r": 2,
        "target_modules": ["v_proj", "q_proj"],
    }
    (source / FILES[0]).write_text(json.dumps(config))
    return checkpoint


def good_tensors() -> dict[str, torch.Tensor]:
    return {KEY: torch.arange(8.0).reshape(2, 4), KEY.replace("_A", "_B"): torch.ones(4, 2)}


def published(folder: Path) -> list[str]:
    """What a reader who looks for step_N sees."""
    return sorted(path.name for path in (folder / "adapters").glob("step_*"))


def test_publishing_makes_a_complete_folder(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    manifest = publish(save_checkpoint(tmp_path, good_tensors()), 4, job)
    target = job.adapters / "step_4"
    assert sorted(path.name for path in target.iterdir()) == sorted([*FILES, MANIFEST])
    assert [path.name for path in job.adapters.iterdir()] == ["step_4"]
    assert read_manifest(target) == manifest
    assert (manifest.run_id, manifest.step, manifest.attempt) == ("smoke-1234", 4, 1)
    assert manifest.base_digest == "b" * 64
    assert torch.equal(load_file(target / FILES[1])[KEY], good_tensors()[KEY])


def test_the_manifest_holds_the_digests_of_the_files(tmp_path: Path) -> None:
    manifest = publish(save_checkpoint(tmp_path, good_tensors()), 4, make_job(tmp_path))
    target = tmp_path / "adapters" / "step_4"
    assert manifest.files == {name: digest_of_file(target / name) for name in FILES}
    assert manifest.digest == digest_of(manifest.files)
    base = load_config("smoke").model.path
    assert manifest.chat_template_digest == digest_of_files([base / "chat_template.jinja"], base)
    tokenizer = [base / "tokenizer.json", base / "tokenizer_config.json"]
    assert manifest.tokenizer_digest == digest_of_files(tokenizer, base)


def test_the_configuration_names_the_real_base_in_a_fixed_order(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    publish(save_checkpoint(tmp_path, good_tensors()), 4, job)
    config = json.loads((job.adapters / "step_4" / FILES[0]).read_text())
    assert config == {
        "base_model_name_or_path": job.config.model.path.name,
        "inference_mode": True,
        "r": 2,
        "target_modules": ["q_proj", "v_proj"],
    }
    assert list(config) == sorted(config)


def test_equal_tensors_have_one_digest_and_different_ones_two(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    first = publish(save_checkpoint(tmp_path, good_tensors(), 1), 1, job)
    same = publish(save_checkpoint(tmp_path, good_tensors(), 2), 2, job)
    changed = good_tensors()
    changed[KEY][0, 0] += 1e-6
    other = publish(save_checkpoint(tmp_path, changed, 3), 3, job)
    assert first.digest == same.digest != other.digest
    assert published(tmp_path) == ["step_1", "step_2", "step_3"]


def test_publishing_again_keeps_the_version_that_is_there(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path, good_tensors())
    first = publish(checkpoint, 4, make_job(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "adapters").rglob("*")}
    save_file({KEY: torch.zeros(2, 4)}, checkpoint / "policy" / "lora_adapter" / FILES[1])
    assert publish(checkpoint, 4, make_job(tmp_path, attempt=2)) == first
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_crash_before_the_end_leaves_nothing_visible_and_the_next_try_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = save_checkpoint(tmp_path, good_tensors())

    def fail(path: Path, text: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(adapters, "write_atomically", fail)
        with pytest.raises(KeyboardInterrupt):
            publish(checkpoint, 4, make_job(tmp_path))
    assert published(tmp_path) == []
    publish(checkpoint, 4, make_job(tmp_path, attempt=2))
    assert published(tmp_path) == ["step_4"]
    assert not (tmp_path / "adapters" / ".step_4").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    tensors = good_tensors()
    tensors[KEY][1, 2] = value
    with pytest.raises(ValueError, match=r"q_proj\.lora_A\.weight has values that are not finite"):
        publish(save_checkpoint(tmp_path, tensors), 4, make_job(tmp_path))
    assert published(tmp_path) == []


def test_layers_of_the_vision_tower_are_refused(tmp_path: Path) -> None:
    key = "base_model.model.model.visual.blocks.0.attn.qkv.lora_A.weight"
    checkpoint = save_checkpoint(tmp_path, good_tensors() | {key: torch.ones(2, 2)})
    with pytest.raises(ValueError, match=r"visual\.blocks.* adapts the vision tower"):
        publish(checkpoint, 4, make_job(tmp_path))
    assert published(tmp_path) == []


def test_an_adapter_without_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no tensors"):
        publish(save_checkpoint(tmp_path, {}), 4, make_job(tmp_path))
    assert published(tmp_path) == []


def test_a_checkpoint_without_an_adapter_publishes_nothing(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path, good_tensors())
    shutil.rmtree(checkpoint / "policy" / "lora_adapter")
    with pytest.raises(FileNotFoundError, match="adapter_model"):
        publish(checkpoint, 4, make_job(tmp_path))
    assert published(tmp_path) == []
