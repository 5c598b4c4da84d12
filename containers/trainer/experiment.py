"""Ariadne's experiment: SkyRL's, with our generator, recorder and, on a CPU, our workers."""

from typing import Any

from skyrl.train.dataset import PromptDataset
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.trainer import RayPPOTrainer

from configs.jobs import TrainJob
from containers.server.launch import CPU_BLOCK_TOKENS
from containers.trainer.generator import TokenTruthGenerator
from containers.trainer.recorder import Recorder


class MazeTrainer(RayPPOTrainer):
    """SkyRL's trainer; on a CPU it builds the workers that know no GPU."""

    def build_models(self, PolicyWorker: Any, CriticWorker: Any, RefWorker: Any) -> None:
        if self.cfg.generator.inference_engine.external_proxy_url:
            from containers.trainer.cpu_device import CpuPolicyWorker, CpuRefWorker

            PolicyWorker, RefWorker = CpuPolicyWorker, CpuRefWorker
        super().build_models(PolicyWorker, CriticWorker, RefWorker)


class MazeExperiment(BasePPOExp):
    """Hooks of `BasePPOExp`; the training loop itself is SkyRL's."""

    def __init__(self, cfg: Any, job: TrainJob) -> None:
        self._job = job
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
            cache_block_tokens=self._cache_block_tokens(),
        )

    def _cache_block_tokens(self) -> int | None:
        """The CPU server's blocks: a GiB holds the episodes of the tiny model many times over.

        SkyRL's own engines on GPUs get all pixels; their cache may have to evict.
        """
        return CPU_BLOCK_TOKENS if self._job.config.train.device == "cpu" else None

    def get_trainer(self, *args: Any, **kwargs: Any) -> MazeTrainer:
        return MazeTrainer(*args, callbacks=[Recorder(self._job)], **kwargs)
