"""The configuration of a run: everything a profile may say, checked once, then frozen.

A profile is a TOML file beside this one. Paths in it are relative to the project's root.
"""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from configs.hosting import RayServeConfig, ServingPodConfig
from configs.image import ImageConfig
from configs.kuberay import KubeRayConfig, ServiceName
from configs.preflight import PreflightConfig
from configs.repair import RepairConfig
from configs.section import Section
from configs.store import StoreConfig

_MAX_RAY_SERVICE = 38
"""KubeRay names services after a RayService, whose own name has a digest behind it."""


class ModelConfig(Section):
    path: Path
    """Folder of the base model, a complete Hugging Face checkpoint."""
    max_model_len: int = Field(ge=128, le=262_144)
    """Tokens the inference server makes room for; a whole episode must fit."""


class MazeConfig(Section):
    test_set: Path
    """The fixed mazes of the evaluation. Their size is the size of the training mazes."""
    cell_px: int = Field(25, ge=4, le=64)
    """Pixels a cell is drawn with; VisGym draws 25."""
    frame_multiple_px: int = Field(1, ge=1, le=64)
    """Frames are padded to a multiple of this many pixels; 1 leaves them alone."""
    max_turns: int = Field(ge=1, le=200)
    """Answers a player may give in one episode, the final stop included."""


class ClusterConfig(Section):
    backend: Literal["local_ray", "kuberay"] = "local_ray"
    """`local_ray`: a head and worker raylets as processes of this machine. `kuberay`: a RayCluster
    on Kubernetes, as the section kuberay says."""
    num_workers: int = Field(1, ge=1, le=64)
    cpus_per_worker: int = Field(2, ge=1, le=512)
    gpus_per_worker: int = Field(1, ge=1, le=16)
    """On a CPU these are logical: one training process each."""
    object_store_mb: int = Field(256, ge=80, le=1_000_000)
    """Shared memory of each node for Ray objects."""
    start_timeout_s: int = Field(180, ge=10, le=7200)
    kuberay: KubeRayConfig | None = None
    """With the backend of this name, and only with it."""
    repair: RepairConfig | None = None
    """With kuberay on HyperPod. None: lost machines are only waited for, start_timeout_s long."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.backend == "kuberay") != (self.kuberay is not None):
            raise ValueError("the section kuberay and backend = 'kuberay' belong together")
        if self.repair and not self.kuberay:
            raise ValueError("the section repair belongs to backend = 'kuberay'")
        if self.repair and (self.repair.min_workers or 0) > self.num_workers:
            raise ValueError("repair.min_workers is more than num_workers")
        if self.kuberay:
            for pod in (self.kuberay.head, self.kuberay.worker):
                if self.object_store_mb >= pod.shared_memory_gb * 1024:
                    raise ValueError("object_store_mb has to fit into shared_memory_gb")
        return self


class LoraConfig(Section):
    rank: int = Field(32, ge=1, le=512)
    alpha: int = Field(32, ge=1, le=1024)
    exclude_modules: str = ".*visual.*"
    """Regular expression of modules without an adapter. vLLM ignores adapters of the vision
    tower, so training them would let trainer and server drift apart."""


OPERATIONAL = frozenset(
    {
        "num_processes",
        "micro_batch_episodes",
        "rollout_concurrency",
        "kv_cache_gb",
        "checkpoint_every_steps",
        "keep_checkpoints",
        "max_attempts",
        "first_step_timeout_s",
    }
)
"""Training settings that say how the work is done and leave its result alone, but for rounding:
a run may go on with others."""


class TrainConfig(Section):
    device: Literal["cpu", "cuda"] = "cpu"
    steps: int = Field(ge=1, le=100_000)
    seed: int = Field(1, ge=0, le=2**31 - 1)
    mazes_per_step: int = Field(ge=1, le=4096)
    samples_per_maze: int = Field(ge=2, le=256)
    """Size of a GRPO group: all its samples play the same maze."""
    mini_batch_mazes: int = Field(ge=1, le=4096)
    """Mazes per optimizer step; mazes_per_step / mini_batch_mazes optimizer steps per step."""
    micro_batch_episodes: int = Field(ge=1, le=4096)
    """Episodes in one forward and backward pass of one training process."""
    learning_rate: float = Field(gt=0, le=1)
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """From learning_rate in the first step: stay, or fall to 0 by the end of the last one."""
    temperature: float = Field(1.0, gt=0, le=5)
    max_action_tokens: int = Field(ge=1, le=8192)
    """Tokens of one answer."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0, lt=10)
    loss_reduction: Literal["token_mean", "sequence_mean"] = "token_mean"
    normalise_by_std: bool = True
    """Divide a group's advantages by their standard deviation; False is Dr. GRPO."""
    kl_coefficient: float = Field(0.0, ge=0, le=1)
    """Weight of the KL term to the base model; 0 needs no reference model."""
    format_bonus: float = Field(0.0, ge=0, lt=1)
    """Share of the reward for well-formed answers; the rest is for solving the maze."""
    lora: LoraConfig = LoraConfig()
    num_processes: int = Field(1, ge=1, le=1024)
    """FSDP processes, one (logical) GPU each."""
    rollout_concurrency: int = Field(64, ge=1, le=4096)
    """Episodes that the inference server holds at a time."""
    kv_cache_gb: int = Field(1, ge=1, le=1024)
    """Room of the inference server for attention keys and values, on a CPU."""
    checkpoint_every_steps: int = Field(ge=1, le=10_000)
    keep_checkpoints: int = Field(2, ge=1, le=1000)
    """The newest ones; the best by success in training stays beside them."""
    max_attempts: int = Field(3, ge=1, le=100)
    """Attempts in a row without a new checkpoint after which training gives up."""
    first_step_timeout_s: int = Field(1800, ge=30, le=86_400)
    """From the start of an attempt to its first step; later steps are judged by those before."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mini_batch_mazes > self.mazes_per_step:
            raise ValueError(
                f"mini_batch_mazes is {self.mini_batch_mazes}, more than the "
                f"{self.mazes_per_step} mazes of a step"
            )
        return self


class EvaluateConfig(Section):
    max_action_tokens: int = Field(ge=1, le=8192)
    concurrency: int = Field(32, ge=1, le=4096)
    """Episodes played at a time."""
    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    """Number format of the inference server, for hosting too: the same numbers are served."""
    held_out_mazes: int = Field(256, ge=0, le=10_000)
    """Mazes beside the fixed ones, of their size and unknown to training, or as many as there are
    left. The adapter plays them too; they are reported and decide nothing."""
    held_out_larger_mazes: int = Field(64, ge=0, le=10_000)
    """The same, two cells higher and wider."""


class GateConfig(Section):
    """When an adapter may serve, by its outcomes on the fixed mazes."""

    min_success: float = Field(0.5, ge=0, le=1)
    """Share of the mazes it has to solve."""
    min_gain: float = Field(0.1, ge=-1, le=1)
    """Share of the mazes by which it has to be ahead of the base; -1 asks for nothing."""
    max_loss_p: float = Field(0.05, gt=0, lt=1)
    """It may not lose more mazes than it wins against the adapter now serving with a p-value of
    at most this (exact McNemar, two-sided)."""


class HostConfig(Section):
    backend: Literal["vllm_server", "vllm_deployment", "ray_service"] = "vllm_server"
    """`vllm_server`: processes of this machine. `vllm_deployment`: a pod on the Kubernetes of
    cluster.kuberay, as the section pod says. `ray_service`: Ray Serve LLM there, as pod and ray
    say."""
    pod: ServingPodConfig | None = None
    """With vllm_deployment and ray_service, and only with them."""
    ray: RayServeConfig | None = None
    """With ray_service, and only with it."""
    port: int = Field(8100, ge=0, le=65535)
    """Port of the endpoint, on 127.0.0.1 or of the Service; 0 takes a free one and keeps it."""
    adapter_name: str = Field("maze-solver", pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")
    """Model name under which the adapter answers; the base answers as `base`."""
    num_replicas: int = Field(1, ge=1, le=64)
    """Model servers behind the one address."""
    start_timeout_s: int = Field(300, ge=10, le=7200)


class CostConfig(Section):
    """What machines cost, for estimates and metrics; 0 leaves money out of them."""

    worker_usd_per_hour: float = Field(0.0, ge=0, le=10_000)
    """Of one worker's machine."""
    head_usd_per_hour: float = Field(0.0, ge=0, le=10_000)

    def usd_per_hour(self, num_workers: int) -> float:
        """Of a whole cluster."""
        return self.head_usd_per_hour + num_workers * self.worker_usd_per_hour


class PostTrainConfig(Section):
    """A profile."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")
    """Names the run's folder, with a digest behind it."""
    model: ModelConfig
    mazes: MazeConfig
    image: ImageConfig = ImageConfig()
    cluster: ClusterConfig = ClusterConfig()
    train: TrainConfig
    evaluate: EvaluateConfig
    gate: GateConfig = GateConfig()
    host: HostConfig = HostConfig()
    store: StoreConfig | None = None
    """None: adapters are in their runs only."""
    cost: CostConfig = CostConfig()
    preflight: PreflightConfig = PreflightConfig()

    @model_validator(mode="after")
    def _check(self) -> Self:
        """A cluster that costs money is asked for only if training fits into it."""
        self._check_host()
        if self.cluster.backend != "kuberay":
            return self
        num_gpus = self.cluster.num_workers * self.cluster.gpus_per_worker
        if self.train.num_processes > num_gpus:
            raise ValueError(
                f"train.num_processes is {self.train.num_processes} and the cluster has "
                f"{num_gpus} GPUs"
            )
        try:
            TypeAdapter(ServiceName).validate_python(self.name)
        except ValidationError:
            raise ValueError(
                f"name {self.name!r} becomes a RayCluster's: begin with a letter, end with a "
                "letter or digit"
            ) from None
        return self

    def _check_host(self) -> None:
        host, is_local = self.host, self.host.backend == "vllm_server"
        if is_local == (host.pod is not None):
            raise ValueError("the section host.pod and a backend on Kubernetes belong together")
        if (host.backend == "ray_service") != (host.ray is not None):
            raise ValueError("the section host.ray and backend = 'ray_service' belong together")
        if host.pod and not self.cluster.kuberay:
            raise ValueError(f"host.backend = {host.backend!r} needs the section cluster.kuberay")
        if host.pod and host.port < 1024:
            raise ValueError("host.port of a pod is from 1024 on")
        if host.ray and not (self.store and self.store.url.startswith("s3://")):
            raise ValueError("Ray Serve reads adapters from S3: give store.url = 's3://...'")
        if host.ray and host.pod and len(host.pod.service) > _MAX_RAY_SERVICE:
            raise ValueError(f"host.pod.service of a RayService has {_MAX_RAY_SERVICE} letters")
