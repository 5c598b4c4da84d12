"""Become the inference server of a base and one adapter: the program of the server image.

python -m containers.server.serve --model FOLDER --adapter FOLDER --adapter-name NAME --port N
"""

import argparse
import os
from pathlib import Path

from containers.server.launch import BASE_NAME, OPENAI_SERVER, ServerPlan, command, environment

_MAX_NUM_SEQS = 64


def main() -> None:
    """Read the command line and replace this process by the server."""
    parser = argparse.ArgumentParser(description="Serve a base model and one adapter")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--adapter", type=Path, required=True)
    parser.add_argument("--adapter-name", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--max-images", type=int, required=True)
    parser.add_argument("--lora-rank", type=int, required=True)
    given = parser.parse_args()
    plan = ServerPlan(
        module=OPENAI_SERVER,
        model=given.model,
        served_name=BASE_NAME,
        port=given.port,
        device=given.device,
        dtype=given.dtype,
        max_model_len=given.max_model_len,
        max_num_seqs=_MAX_NUM_SEQS,
        lora_rank=given.lora_rank,
        max_images=given.max_images,
        adapters={given.adapter_name: given.adapter},
        asks_for_key=True,
    )
    arguments = command(plan)
    os.execvpe(arguments[0], arguments, {**os.environ, **environment(plan)})


if __name__ == "__main__":
    main()
