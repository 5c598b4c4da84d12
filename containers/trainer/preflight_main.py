"""Look at the image and at the machines of a run before it is started.

    python -m containers.trainer.preflight_main JOB.json

Alone it looks at the machine it runs on; as a job of a Ray cluster at every node with GPUs. The
facts go into the job's output file; what to think of them is the control plane's business.
"""

import math
import os
import sys
from pathlib import Path
from typing import Any

from configs.mazes import load_maze_set
from configs.probes import NodeFacts, Probe, ProbeJob
from containers.trainer.probe import HeldNodes, NodeProbe, probe_nodes

_NODE_TIMEOUT_S = 300
"""For a node to answer a question: its first one loads torch from shared storage."""

_PATCH_PX = 16
"""Qwen3-VL's patches; a frame that does not divide is resized to about as many."""


def main() -> None:
    """Ask everything, then write the answers."""
    job = ProbeJob.read(Path(sys.argv[1]))
    job.shared.mkdir(parents=True, exist_ok=True)
    refusal = skyrls_refusal(job)
    from containers.trainer.coverage import adapted_modules, not_served

    config = job.train.config
    modules = adapted_modules(config.model.path, config.train.lora)
    probe = Probe(
        refusal=refusal,
        num_adapted=len(modules),
        not_served=tuple(not_served(modules)),
        nodes=nodes_of_the_cluster(job) if job.num_workers else this_node(job),
    )
    hidden = job.output.with_name(f".{job.output.name}")
    hidden.write_text(probe.model_dump_json(indent=1) + "\n")
    hidden.replace(job.output)


def skyrls_refusal(job: ProbeJob) -> str:
    """Why SkyRL would not take the configuration, in one line; empty where it would."""
    if job.train.config.train.device == "cpu":
        import containers.trainer.cpu_device  # noqa: F401  before SkyRL
    from skyrl.train.utils import validate_cfg

    from containers.trainer.skyrl_config import translate

    try:
        validate_cfg(translate(job.train, Path("rows.jsonl"), "http://127.0.0.1:1", None))
    except (AssertionError, ValueError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def this_node(job: ProbeJob) -> tuple[NodeFacts, ...]:
    name = os.uname().nodename
    return probe_nodes(HeldNodes({name: NodeProbe(name, *_of_all(job))}))


def nodes_of_the_cluster(job: ProbeJob) -> tuple[NodeFacts, ...]:
    """Every node with GPUs that is alive, through an actor that holds all GPUs of a worker."""
    import ray

    ray.init(address="auto", log_to_driver=False)
    try:
        return probe_nodes(RayNodes(job))
    finally:
        ray.shutdown()


class RayNodes:
    """Implements `Nodes` with one actor on each node."""

    def __init__(self, job: ProbeJob) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._get = ray.get
        actor = ray.remote(NodeProbe)
        self._actors: dict[str, Any] = {}
        for node in ray.nodes():
            if node["Alive"] and node["Resources"].get("GPU", 0):
                name = f"{node['NodeManagerHostname']}/{node['NodeID'][:6]}"
                self._actors[name] = actor.options(
                    num_cpus=0,
                    num_gpus=job.train.config.cluster.gpus_per_worker,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
                ).remote(name, *_of_all(job))

    @property
    def names(self) -> list[str]:
        return sorted(self._actors)

    def ask(self, name: str, method: str, *arguments: object) -> Any:
        asked = getattr(self._actors[name], method).remote(*arguments)
        return self._get(asked, timeout=_NODE_TIMEOUT_S)

    def ask_all(self, method: str, *arguments: object) -> dict[str, Any]:
        asked = {name: getattr(a, method).remote(*arguments) for name, a in self._actors.items()}
        answers = self._get([*asked.values()], timeout=_NODE_TIMEOUT_S)
        return dict(zip(asked, answers, strict=True))


def _of_all(job: ProbeJob) -> tuple[Path, Path, int, str]:
    """What every node is told: the shared folder, the base model, the patches of a frame, the
    device."""
    config = job.train.config
    mazes = load_maze_set(config.mazes.test_set)
    multiple = config.mazes.frame_multiple_px
    sides = (mazes.height * config.mazes.cell_px, mazes.width * config.mazes.cell_px)
    num_pixels = math.prod(math.ceil(side / multiple) * multiple for side in sides)
    num_patches = math.ceil(num_pixels / _PATCH_PX**2)
    return job.shared, config.model.path, num_patches, config.train.device


if __name__ == "__main__":
    main()
