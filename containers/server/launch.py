"""The command line of an inference server, as a pure function of what it shall serve.

Two servers are started from here: SkyRL's (token in, token out, adapters replaced in place; it
feeds the training) and vLLM's own OpenAI server (chat in, chat out; it evaluates and hosts).
"""

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from configs.engine import engine_options

OPENAI_SERVER = "vllm.entrypoints.openai.api_server"
SKYRL_SERVER = "skyrl.backends.skyrl_train.inference_servers.vllm_server_actor"

IN_ENGINE = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""The model runs in the engine's process. vLLM turns the short name `uni` into a worker process on
a CPU, and engine and worker then wait for each other by spinning: on two cores that costs more
than the model (rollout 37-47 turns/s with it, 89-113 without)."""


@dataclass(frozen=True)
class ServerPlan:
    """What a server serves and on what. `adapters` maps model names to PEFT folders."""

    module: str
    model: Path
    served_name: str
    listen: int | Path
    """A port of 127.0.0.1, or a socket."""
    device: Literal["cpu", "cuda"]
    dtype: str
    max_model_len: int
    max_num_seqs: int
    lora_rank: int
    max_images: int
    adapters: dict[str, Path] = field(default_factory=dict)
    kv_cache_gb: int = 1
    max_adapters: int = 1
    """Adapters that requests of one moment may use. More than one may also come and go while the
    server runs; whoever reaches it may load any folder, so it listens at a socket behind a door."""


def command(plan: ServerPlan) -> list[str]:
    """The argument list; the server is reached from this machine only."""
    arguments = [
        *(sys.executable, "-m", plan.module),
        *("--model", str(plan.model), "--served-model-name", plan.served_name),
        *_listening(plan.listen),
        *_options(plan),
        *("--disable-uvicorn-access-log",),
    ]
    if plan.adapters:
        named = [f"{name}={folder}" for name, folder in plan.adapters.items()]
        arguments += ["--lora-modules", *named]
    if plan.device == "cpu":
        arguments += ["--distributed-executor-backend", IN_ENGINE]
    return arguments


def _options(plan: ServerPlan) -> list[str]:
    """The engine's options as words of a command line."""
    options = engine_options(
        device=plan.device,
        dtype=plan.dtype,
        max_model_len=plan.max_model_len,
        max_num_seqs=plan.max_num_seqs,
        max_images=plan.max_images,
        lora_rank=plan.lora_rank,
        max_adapters=plan.max_adapters,
    )
    words: list[str] = []
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", *_word(value)]
    return words


def _word(value: Any) -> list[str]:
    """None for a switch that is on."""
    if value is True:
        return []
    return [json.dumps(value) if isinstance(value, dict) else str(value)]


def _listening(place: int | Path) -> tuple[str, ...]:
    if isinstance(place, Path):
        return ("--uds", str(place))
    return ("--host", "127.0.0.1", "--port", str(place))


def environment(plan: ServerPlan) -> dict[str, str]:
    """Variables on top of the inherited ones: offline, no telemetry, CPU threads and memory."""
    variables = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # The door asks for the key; behind it there is no other way in.
        "VLLM_API_KEY": "",
    }
    if plan.max_adapters > 1:
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if plan.device == "cpu":
        variables |= {
            "VLLM_CPU_KVCACHE_SPACE": str(plan.kv_cache_gb),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # The other half is for the API server and the client; threads that share a core with
            # them wait for one another at every small matrix.
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 2)),
        }
    return variables
