"""Become a model server behind the door: the program of the server image.

python -m containers.server.serve --serving FILE --model FOLDER --socket FILE

It starts with the adapters of the serving file, so one that died comes back with what it had.
"""

import argparse
import os
from pathlib import Path

from configs.serving import BASE_NAME, Serving
from containers.server.launch import OPENAI_SERVER, ServerPlan, command, environment

_MAX_NUM_SEQS = 64
_MAX_ADAPTERS = 3
"""The champion, the one before, and the one to come."""


def main() -> None:
    """Read the command line and replace this process by the server."""
    parser = argparse.ArgumentParser(description="Serve a base model and its adapters")
    parser.add_argument("--serving", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--max-images", type=int, required=True)
    parser.add_argument("--lora-rank", type=int, required=True)
    given = parser.parse_args()
    serving = Serving.read(given.serving)
    plan = ServerPlan(
        module=OPENAI_SERVER,
        model=given.model,
        served_name=BASE_NAME,
        listen=given.socket,
        device=given.device,
        dtype=given.dtype,
        max_model_len=given.max_model_len,
        max_num_seqs=_MAX_NUM_SEQS,
        lora_rank=given.lora_rank,
        max_images=given.max_images,
        adapters={
            adapter.name(serving.alias): adapter.folder
            for adapter in serving.adapters
            if adapter.folder.is_dir()  # one that was deleted must not keep the others away
        },
        max_adapters=_MAX_ADAPTERS,
    )
    given.socket.unlink(missing_ok=True)  # of one that was killed
    arguments = command(plan)
    os.execvpe(arguments[0], arguments, {**os.environ, **environment(plan)})


if __name__ == "__main__":
    main()
