"""Adapters on their way out: a PEFT folder with a manifest, complete before it is visible."""

import json
import shutil
from pathlib import Path

from safetensors import safe_open

from configs.digests import digest_of, digest_of_file, digest_of_files
from configs.jobs import AdapterManifest, TrainJob
from containers.trainer.checkpoints import flush, step_of, write_atomically

FILES = ("adapter_config.json", "adapter_model.safetensors")
MANIFEST = "manifest.json"


def publish(checkpoint: Path, step: int, job: TrainJob) -> AdapterManifest:
    """Copy the adapter of a checkpoint to adapters/step_N; a version already there is kept.

    Raises:
        ValueError: the adapter is not usable, with the reason.
    """
    target = job.adapters / f"step_{step}"
    if (target / MANIFEST).is_file():
        return read_manifest(target)
    source = checkpoint / "policy" / "lora_adapter"
    unfinished = job.adapters / f".step_{step}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    shutil.copyfile(source / FILES[1], unfinished / FILES[1])
    (unfinished / FILES[0]).write_text(
        _adapter_config(source / FILES[0], job.config.model.path.name)
    )
    check_tensors(unfinished / FILES[1])
    files = {name: digest_of_file(unfinished / name) for name in FILES}
    manifest = AdapterManifest(
        digest=digest_of(files),
        base_digest=job.base_digest,
        tokenizer_digest=_digest_of_parts(job.config.model.path, "tokenizer*"),
        chat_template_digest=_digest_of_parts(job.config.model.path, "chat_template*"),
        run_id=job.run_id,
        step=step,
        attempt=job.attempt,
        files=files,
    )
    for name in FILES:
        flush(unfinished / name)
    write_atomically(unfinished / MANIFEST, manifest.model_dump_json(indent=1))
    unfinished.rename(target)
    flush(job.adapters)
    return manifest


def drop_newer(adapters: Path, step: int) -> None:
    """Remove adapters of steps that will be trained anew: they belong to no checkpoint."""
    for folder in adapters.glob("step_*"):
        if step_of(folder) > step:
            (folder / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(folder)


def read_manifest(folder: Path) -> AdapterManifest:
    return AdapterManifest.model_validate_json((folder / MANIFEST).read_text())


def check_tensors(path: Path) -> None:
    """Refuse an adapter with numbers that are not finite or with layers of the vision tower."""
    with safe_open(path, "pt") as tensors:
        names = list(tensors.keys())
        if not names:
            raise ValueError(f"{path} holds no tensors")
        for name in names:
            if "visual" in name:
                raise ValueError(f"{path}: {name} adapts the vision tower, which vLLM ignores")
            if not tensors.get_tensor(name).isfinite().all():
                raise ValueError(f"{path}: {name} has values that are not finite")


def _digest_of_parts(model: Path, pattern: str) -> str:
    """Of the base's files of one kind; a template may also stand in the tokenizer's settings."""
    return digest_of_files(model.glob(pattern), model)


def _adapter_config(source: Path, base: str) -> str:
    """PEFT's configuration as SkyRL saved it, in a fixed order and naming the real base.

    By its name and not by its path: the same training gives the same adapter in any folder.
    """
    config = json.loads(source.read_text())
    config["base_model_name_or_path"] = base
    config["target_modules"] = sorted(config["target_modules"])
    config["inference_mode"] = True
    return json.dumps(config, indent=1, sort_keys=True) + "\n"
