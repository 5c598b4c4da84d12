"""Ariadne's experiment: SkyRL's, with our generator, recorder, checkpoints and workers."""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from skyrl.train.dataset import PromptDataset
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.trainer import RayPPOTrainer

from configs.engine import CPU_BLOCK_TOKENS
from configs.jobs import TrainJob
from containers.trainer.checkpoints import step_of
from containers.trainer.generator import TokenTruthGenerator
from containers.trainer.inference import StartingServer
from containers.trainer.notice import Notice
from containers.trainer.recorder import Recorder

_WORKERS = {"cpu": "cpu_device", "cuda": "gpu_device"}


class MazeTrainer(RayPPOTrainer):
    """SkyRL's trainer with the workers of our device and our checkpoints.

    Its own checkpoints are found through a file that may be empty after a crash, are unpickled,
    and cost a process on each node for their clean-up. Here the folder to go on from is given,
    COMMITTED.json says what is complete, and `checkpoints.prune` keeps house.
    """

    def __init__(
        self,
        *args: Any,
        device: str,
        resume: Path | None,
        server: StartingServer | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._device = device
        self._resume = resume
        self._server = server

    def build_models(self, PolicyWorker: Any, CriticWorker: Any, RefWorker: Any) -> None:
        workers = import_module(f"containers.trainer.{_WORKERS[self._device]}")
        super().build_models(workers.PolicyWorker, CriticWorker, workers.RefWorker)
        if self._server:
            self._server.await_health()

    def save_checkpoints(self) -> str:
        """Write the state of the policy and the position in the data; the folder."""
        folder = Path(self.cfg.trainer.ckpt_path) / f"global_step_{self.global_step}"
        folder.mkdir(parents=True, exist_ok=True)
        self.dispatch.save_checkpoint("policy", str(folder / "policy"), self.tokenizer)
        torch.save(self.train_dataloader.state_dict(), folder / "data.pt")
        return str(folder)

    def load_checkpoints(self) -> tuple[int, str]:
        """Go on from the verified checkpoint that was given; its step and folder."""
        assert self._resume is not None  # SkyRL only asks when it was configured to resume
        position = torch.load(self._resume / "data.pt", weights_only=True)
        self.train_dataloader.load_state_dict(position)
        self.dispatch.load_checkpoint("policy", str(self._resume / "policy"))
        return step_of(self._resume), str(self._resume)


class MazeExperiment(BasePPOExp):
    """Hooks of `BasePPOExp`; the training loop itself is SkyRL's."""

    def __init__(
        self,
        cfg: Any,
        job: TrainJob,
        resume: Path | None,
        server: StartingServer | None,
        notice: Notice,
    ) -> None:
        self._job = job
        self._notice = notice
        self._resume = resume
        self._server = server
        super().__init__(cfg)

    def get_train_dataset(self) -> PromptDataset:
        """The rows of this run, in this process: the parent would start eight to measure them."""
        return PromptDataset(
            datasets=self.cfg.data.train_data,
            tokenizer=self.tokenizer,
            max_prompt_length=self.cfg.trainer.max_prompt_length,
            num_workers=0,
        )

    def get_generator(
        self, cfg: Any, tokenizer: Any, inference_engine_client: Any
    ) -> TokenTruthGenerator:
        from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name

        return TokenTruthGenerator(
            generator_cfg=cfg.generator,
            skyrl_gym_cfg=cfg.environment.skyrl_gym,
            inference_engine_client=inference_engine_client,
            tokenizer=tokenizer,
            policy_model_name=resolve_policy_model_name(cfg),
            seed=self._job.config.train.seed,
            cache_block_tokens=self._cache_block_tokens(),
        )

    def _cache_block_tokens(self) -> int | None:
        """The CPU server's blocks: a GiB holds the episodes of the tiny model many times over.

        SkyRL's own engines on GPUs get all pixels; their cache may have to evict.
        """
        return CPU_BLOCK_TOKENS if self._job.config.train.device == "cpu" else None

    def get_trainer(self, *args: Any, **kwargs: Any) -> MazeTrainer:
        return MazeTrainer(
            *args,
            callbacks=[Recorder(self._job, self._notice)],
            device=self._job.config.train.device,
            resume=self._resume,
            server=self._server,
            **kwargs,
        )
