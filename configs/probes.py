"""What the probe is asked on the machines of a run, and the facts that it answers with."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from configs.jobs import Job, TrainJob


class ProbeJob(Job):
    """Look at the image and at every machine that a run will use."""

    train: TrainJob
    """The attempt that would come next."""
    num_workers: int = Field(ge=0)
    """Nodes with GPUs of the Ray cluster that are asked; 0: this machine alone, without Ray."""
    shared: Path
    """Folder that all nodes have to see alike; the probe leaves nothing in it."""
    output: Path
    """Gets the Probe, whole or not at all."""


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GpuFacts(_Facts):
    name: str
    memory_gb: float
    patch_embedding_ms: float
    """Forward and backward pass of one frame, bfloat16, with the linear replacement."""


class NodeFacts(_Facts):
    """One machine."""

    node: str
    memory_gb: float
    """Host RAM that its processes may take: the container's limit, or the machine's."""
    write_mb_per_s: float
    """To the shared folder, until the data is on the disk."""
    read_mb_per_s: float
    """Back from there, as far as the kernel lets go of what it has cached."""
    maze_digest: str
    """Of mazes drawn from fixed seeds: the same on all nodes, or groups play different mazes."""
    gpus: tuple[GpuFacts, ...]
    driver: str
    """Version of the NVIDIA driver; empty without one."""
    nccl: str
    """Version of NCCL; empty without one."""
    num_peer_pairs: int
    """Pairs of its GPUs that reach each other's memory directly."""
    num_fabric_interfaces: int
    """RDMA devices: the Elastic Fabric Adapters that a pod was given."""
    saw_after_s: dict[str, float]
    """Other node to seconds until the file that it renamed into place was read here; a file that
    was never seen, or with other words, is missing."""


class Probe(_Facts):
    """What the probe found."""

    refusal: str
    """SkyRL's word against the configuration; empty where it takes it."""
    num_adapted: int
    """Modules that the trainer gives an adapter."""
    not_served: tuple[str, ...]
    """Those of them whose adapter the inference server ignores."""
    nodes: tuple[NodeFacts, ...]
