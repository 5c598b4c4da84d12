"""What the probe finds: SkyRL's word on batches, what is adapted and served, and what nodes see."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray._common.ray_option_utils import validate_actor_options
from skyrl.train.utils import validate_cfg
from transformers import AutoConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionPatchEmbed

from configs.jobs import TrainJob
from configs.loader import ROOT, load_config
from configs.probes import Probe, ProbeJob
from configs.schema import LoraConfig
from containers.trainer import patch_embedding, preflight_main, probe
from containers.trainer.coverage import adapted_modules, not_served
from containers.trainer.probe import HeldNodes, NodeProbe, probe_nodes
from containers.trainer.skyrl_config import translate

TINY = load_config("local").model.path


def train_job(folder: Path, profile: str, **changes: Any) -> TrainJob:
    """An attempt; `train__steps=8` sets train.steps."""
    given = {key.replace("__", "."): value for key, value in changes.items()}
    return TrainJob(
        run_id="probe",
        attempt=1,
        config=load_config(profile, given),
        base_digest="0" * 64,
        checkpoints=folder / "checkpoints",
        adapters=folder / "adapters",
        metrics=folder / "metrics.jsonl",
        attempts=folder / "attempts",
        scratch=folder / "scratch",
    )


def skyrl_takes(job: TrainJob) -> None:
    validate_cfg(translate(job, Path("rows.jsonl"), None, None))


def test_skyrl_takes_the_batches_of_the_cluster_profile(tmp_path: Path) -> None:
    skyrl_takes(train_job(tmp_path, "hyperpod"))


def test_skyrl_takes_what_preflight_proposes_instead_of_the_published_batches(
    tmp_path: Path,
) -> None:
    batches = {"train__mazes_per_step": 30, "train__mini_batch_mazes": 15}
    skyrl_takes(train_job(tmp_path, "hyperpod", **batches))


def test_skyrl_refuses_the_published_batches_on_six_gpus(tmp_path: Path) -> None:
    batches = {"train__mazes_per_step": 32, "train__mini_batch_mazes": 16}
    with pytest.raises(AssertionError, match="21 should be divisible"):
        skyrl_takes(train_job(tmp_path, "hyperpod", **batches))


def test_the_server_applies_every_adapter_of_the_language_layers() -> None:
    modules = adapted_modules(TINY, LoraConfig())
    assert len(modules) == 21  # seven linear layers in each of three blocks
    assert not_served(modules) == []


def test_adapters_of_the_vision_tower_are_found_to_be_ignored() -> None:
    modules = adapted_modules(TINY, LoraConfig(exclude_modules="nothing"))
    ignored = not_served(modules)
    assert ignored and all(".visual." in name for name in ignored)
    assert len(modules) - len(ignored) == 21


@pytest.fixture
def restored() -> Any:
    forward = Qwen3VLVisionPatchEmbed.forward
    yield
    Qwen3VLVisionPatchEmbed.forward = forward  # type: ignore[method-assign]


def test_the_linear_patch_embedding_computes_what_the_convolution_does(restored: None) -> None:
    torch.manual_seed(0)
    vision = AutoConfig.from_pretrained(TINY).vision_config
    embed = Qwen3VLVisionPatchEmbed(vision)
    patches = torch.randn(12, embed.proj.weight[0].numel())
    before = embed(patches)
    before.square().sum().backward()
    weight, bias = embed.proj.weight.grad.clone(), embed.proj.bias.grad.clone()
    embed.zero_grad()
    patch_embedding.install()
    after = embed(patches)
    after.square().sum().backward()
    torch.testing.assert_close(after, before)
    torch.testing.assert_close(embed.proj.weight.grad, weight, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(embed.proj.bias.grad, bias, rtol=1e-3, atol=1e-4)
    assert patch_embedding.time_frame_ms(vision, 12, "cpu") > 0


def test_a_gpu_worker_has_the_linear_patch_embedding() -> None:
    source = (ROOT / "containers" / "trainer" / "gpu_device.py").read_text()
    assert "\npatch_embedding.install()\n" in source


def nodes(**folders: Path) -> HeldNodes:
    """Machines that look into these folders."""
    return HeldNodes(
        {name: NodeProbe(name, folder, TINY, 64, "cpu") for name, folder in folders.items()}
    )


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_SEEN_TIMEOUT_S", 0.05)
    monkeypatch.setattr(probe, "_STORAGE_MB", 1)


def test_nodes_that_share_a_folder_see_each_other_and_leave_nothing(
    tmp_path: Path, hurried: None
) -> None:
    found = probe_nodes(nodes(a=tmp_path, b=tmp_path, c=tmp_path))
    assert [sorted(each.saw_after_s) for each in found] == [["b", "c"], ["a", "c"], ["a", "b"]]
    assert len({each.maze_digest for each in found}) == 1
    assert all(each.write_mb_per_s > 0 and each.read_mb_per_s > 0 for each in found)
    assert list(tmp_path.iterdir()) == []


def test_a_node_with_a_folder_of_its_own_sees_nobody(tmp_path: Path, hurried: None) -> None:
    own, shared = tmp_path / "own", tmp_path / "shared"
    own.mkdir()
    shared.mkdir()
    found = {each.node: each for each in probe_nodes(nodes(a=shared, b=shared, c=own))}
    assert found["a"].saw_after_s.keys() == {"b"} and found["b"].saw_after_s.keys() == {"a"}
    assert found["c"].saw_after_s == {}


def test_the_container_s_memory_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(probe, "_CGROUP_LIMIT", limit)
    machine = probe.memory_bytes()
    limit.write_text("max\n")
    assert probe.memory_bytes() == machine
    limit.write_text("1048576\n")
    assert probe.memory_bytes() == 2**20


def test_a_frame_of_the_cluster_profile_has_as_many_patches_as_its_pixels_make(
    tmp_path: Path,
) -> None:
    job = ProbeJob(
        train=train_job(tmp_path, "hyperpod"),
        num_workers=3,
        shared=tmp_path,
        output=tmp_path / "probe.json",
    )
    *_, num_patches, device = preflight_main._of_all(job)
    assert (num_patches, device) == (198, "cuda")  # 225 x 225 pixels in squares of 16


def test_the_program_answers_with_the_facts_of_this_machine(
    tmp_path: Path, hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ProbeJob(
        train=train_job(tmp_path, "smoke", train__mini_batch_mazes=3),
        num_workers=0,
        shared=tmp_path / "run",
        output=tmp_path / "probe.json",
    )
    monkeypatch.setattr("sys.argv", ["preflight_main", str(job.write(tmp_path / "job.json"))])
    monkeypatch.setattr(preflight_main, "skyrls_refusal", lambda _: "it does not divide")
    preflight_main.main()
    found = Probe.model_validate(json.loads(job.output.read_text()))
    assert found.refusal == "it does not divide" and found.num_adapted == 21
    (here,) = found.nodes
    assert here.gpus == () and here.memory_gb > 0
    assert list(job.shared.iterdir()) == []


class RayOfThisProcess:
    """Ray's calls as the probe makes them; actors run here, their options are checked by Ray."""

    def __init__(self, alive: dict[str, float]) -> None:
        self._nodes = [
            {
                "NodeID": f"{number:056x}",
                "Alive": gpus >= 0,
                "NodeManagerHostname": name,
                "Resources": {"CPU": 8.0} | ({"GPU": gpus} if gpus > 0 else {}),
            }
            for number, (name, gpus) in enumerate(alive.items())
        ]
        self.placed: list[str] = []

    def nodes(self) -> list[dict[str, Any]]:
        return self._nodes

    def remote(self, kind: type) -> Any:
        return SimpleNamespace(options=lambda **options: self._actor(kind, options))

    def _actor(self, kind: type, options: dict[str, Any]) -> Any:
        validate_actor_options(options, in_options=True)
        strategy = options["scheduling_strategy"]
        assert strategy.soft is False and options["num_gpus"] == 2
        self.placed.append(strategy.node_id)

        def make(*arguments: Any) -> Any:
            made = kind(*arguments)
            methods = ("facts", "look", "write", "await_words", "forget")
            return SimpleNamespace(
                **{name: SimpleNamespace(remote=partial(getattr(made, name))) for name in methods}
            )

        return SimpleNamespace(remote=make)

    def get(self, answer: Any, timeout: float) -> Any:
        assert timeout > 0
        return answer


def test_every_node_with_gpus_that_is_alive_is_asked_through_ray(
    tmp_path: Path, hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = RayOfThisProcess({"head": 0, "w-1": 2.0, "w-2": 2.0, "gone": -1})
    for name in ("nodes", "remote", "get"):
        monkeypatch.setattr(f"ray.{name}", getattr(fake, name))
    monkeypatch.setattr(NodeProbe, "_gpus", lambda self: ((), 0, "2.28"))
    train = train_job(tmp_path, "hyperpod")
    job = ProbeJob(train=train, num_workers=3, shared=tmp_path, output=tmp_path / "probe.json")
    found = probe_nodes(preflight_main.RayNodes(job))
    assert [each.node.split("/")[0] for each in found] == ["w-1", "w-2"]
    assert fake.placed == [f"{number:056x}" for number in (1, 2)]
    first, second = found
    assert first.saw_after_s.keys() == {second.node}
