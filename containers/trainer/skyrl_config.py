"""From our configuration to SkyRL's: a pure translation, so a profile never names a SkyRL key."""

from pathlib import Path
from typing import Any

from skyrl.train.config import SkyRLTrainConfig

from configs.jobs import TrainJob
from configs.serving import BASE_NAME
from containers.trainer.rows import ENVIRONMENT


def translate(job: TrainJob, rows: Path, server_url: str | None, resume: Path | None) -> Any:
    """SkyRL's configuration of this attempt.

    `server_url` is the inference server of a CPU run; on GPUs SkyRL starts its own engines
    beside the trainer. `resume` is the checkpoint to go on from.
    """
    overrides = (
        _trainer(job, resume)
        | _algorithm(job)
        | _generator(job)
        | (_cpu(job, server_url) if job.config.train.device == "cpu" else _gpu(job))
    )
    overrides["data.train_data"] = [str(rows)]
    overrides["data.val_data"] = []
    overrides["data.dataloader.num_workers"] = 0
    return SkyRLTrainConfig.from_cli_overrides(overrides)


def _trainer(job: TrainJob, resume: Path | None) -> dict[str, Any]:
    train = job.config.train
    return {
        "trainer.strategy": "fsdp",
        "trainer.policy.model.path": str(job.config.model.path),
        "trainer.policy.model.lora.rank": train.lora.rank,
        "trainer.policy.model.lora.alpha": train.lora.alpha,
        "trainer.policy.model.lora.exclude_modules": train.lora.exclude_modules,
        "trainer.policy.model.lora.lora_sync_path": str(job.scratch / "adapter-to-server"),
        "trainer.policy.optimizer_config.lr": train.learning_rate,
        "trainer.policy.optimizer_config.num_warmup_steps": 0,
        "trainer.policy.optimizer_config.scheduler": train.learning_rate_schedule,
        "trainer.seed": train.seed,
        "trainer.epochs": 1,
        "trainer.max_training_steps": train.steps,
        "trainer.train_batch_size": train.mazes_per_step,
        "trainer.policy_mini_batch_size": train.mini_batch_mazes,
        "trainer.micro_train_batch_size_per_gpu": train.micro_batch_episodes,
        "trainer.micro_forward_batch_size_per_gpu": train.micro_batch_episodes,
        "trainer.remove_microbatch_padding": False,
        "trainer.ckpt_path": str(job.checkpoints),
        "trainer.ckpt_interval": train.checkpoint_every_steps,
        "trainer.resume_mode": "from_path" if resume else "none",
        "trainer.resume_path": str(resume) if resume else None,
        "trainer.export_path": str(job.scratch / "exports"),
        "trainer.log_path": str(job.scratch / "logs"),
        "trainer.eval_interval": -1,
        "trainer.eval_before_train": False,
        "trainer.logger": "console",
        "trainer.project_name": "ariadne",
        "trainer.run_name": job.run_id,
        "trainer.print_example_interval": -1,
        "trainer.enable_ray_gpu_monitor": train.device == "cuda",
    }


def _algorithm(job: TrainJob) -> dict[str, Any]:
    train = job.config.train
    return {
        "trainer.algorithm.advantage_estimator": "grpo",
        "trainer.algorithm.grpo_norm_by_std": train.normalise_by_std,
        "trainer.algorithm.loss_reduction": train.loss_reduction,
        "trainer.algorithm.eps_clip_low": train.clip_low,
        "trainer.algorithm.eps_clip_high": train.clip_high,
        "trainer.algorithm.use_kl_loss": train.kl_coefficient > 0,
        "trainer.algorithm.kl_loss_coef": train.kl_coefficient,
    }


def _generator(job: TrainJob) -> dict[str, Any]:
    config, train = job.config, job.config.train
    return {
        "environment.env_class": ENVIRONMENT,
        "environment.skyrl_gym.max_env_workers": 0,
        "generator.vision_language_generator": True,
        "generator.batched": False,
        "generator.use_conversation_multi_turn": True,
        "generator.n_samples_per_prompt": train.samples_per_maze,
        "generator.max_turns": config.mazes.max_turns,
        "generator.max_input_length": config.model.max_model_len - train.max_action_tokens,
        "generator.sampling_params.temperature": train.temperature,
        "generator.sampling_params.max_generate_length": train.max_action_tokens,
        "generator.sampling_params.logprobs": 1,
        "generator.inference_engine.max_num_seqs": train.rollout_concurrency,
        "generator.inference_engine.served_model_name": BASE_NAME,
    }


def _cpu(job: TrainJob, server_url: str | None) -> dict[str, Any]:
    return {
        "trainer.placement.colocate_all": False,
        "trainer.placement.policy_num_nodes": 1,
        "trainer.placement.policy_num_gpus_per_node": job.config.train.num_processes,
        "trainer.placement.ref_num_gpus_per_node": job.config.train.num_processes,
        # bfloat16 is emulated on most CPUs, several times slower than float32.
        "trainer.policy.fsdp_config.mixed_precision.param_dtype": "fp32",
        "trainer.flash_attn": False,
        "trainer.bf16": False,
        "trainer.gradient_checkpointing": False,
        "generator.inference_engine.enable_ray_prometheus_stats": False,
        "generator.inference_engine.run_engines_locally": False,
        "generator.inference_engine.external_proxy_url": server_url,
        "generator.inference_engine.external_server_urls": [server_url] if server_url else None,
    }


def _gpu(job: TrainJob) -> dict[str, Any]:
    config = job.config
    nodes = config.train.num_processes // config.cluster.gpus_per_worker
    return {
        "trainer.placement.colocate_all": True,
        "trainer.placement.policy_num_nodes": max(nodes, 1),
        "trainer.placement.policy_num_gpus_per_node": config.cluster.gpus_per_worker,
        "trainer.placement.ref_num_nodes": max(nodes, 1),
        "trainer.placement.ref_num_gpus_per_node": config.cluster.gpus_per_worker,
        "generator.inference_engine.num_engines": config.train.num_processes,
        "generator.inference_engine.tensor_parallel_size": 1,
        "generator.inference_engine.gpu_memory_utilization": 0.5,
        "generator.inference_engine.engine_init_kwargs": {
            "max_model_len": config.model.max_model_len,
            "logprobs_mode": "processed_logprobs",
        },
    }
