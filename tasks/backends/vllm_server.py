"""A vLLM server on this machine that serves the base and one adapter, supervised.

It belongs to the machine, not to a flow: it goes on when the flow ends and is started again when
it dies. What it serves is read from the server itself, never assumed.
"""

import os
import time
from pathlib import Path

import httpx

from configs.digests import digest_of
from tasks import ports
from tasks.backends.protocols import Endpoint, HostedModel, Processes, ProcessSpec
from tasks.home import Home, write_private

HOST = "127.0.0.1"
NAME = "model-server"


class VllmServer:
    """Implements `ModelServer` with one supervised process."""

    def __init__(self, home: Home, processes: Processes) -> None:
        self._home = home
        self._processes = processes

    def find(self, model: HostedModel) -> Endpoint | None:
        model = self._with_port(model)
        spec = digest_of(self._spec(model))
        if not self._started.is_file() or self._started.read_text() != spec:
            return None
        if _served_adapters(model).get(model.adapter_name) != str(model.adapter):
            return None
        return Endpoint(
            url=_url(model),
            models={"base": model.base_digest, model.adapter_name: model.adapter_digest},
        )

    def serve(self, model: HostedModel) -> Endpoint:
        """Start or replace the server and wait until it lists the adapter.

        Raises:
            RuntimeError: it ended, another program answers on its port, or it took too long.
        """
        model = self._with_port(model)
        state = self._processes.state(NAME)
        if (state is None or not state.running) and _answers(model):
            raise RuntimeError(
                f"port {model.port} is taken by another program: stop it or set host.port"
            )
        spec = self._spec(model)
        self._processes.ensure(spec)
        write_private(self._started, digest_of(spec))
        deadline = time.monotonic() + model.timeout_s
        while (endpoint := self.find(model)) is None:
            state = self._processes.state(NAME)
            if state is None or not state.running or time.monotonic() > deadline:
                raise RuntimeError(f"the model server does not serve; see {self._log}")
            time.sleep(0.5)
        return endpoint

    def _with_port(self, model: HostedModel) -> HostedModel:
        """A model that may have any port gets the one chosen before, or a free one for good."""
        if model.port:
            return model
        with self._home.locked("model-server-port"):
            file = self._home.hosting / "port"
            port = int(file.read_text()) if file.is_file() else ports.any_free()
            write_private(file, str(port))
        return model.model_copy(update={"port": port})

    @property
    def _started(self) -> Path:
        """Digest of what the server was last started with."""
        return self._home.hosting / "model-server.digest"

    @property
    def _log(self) -> Path:
        return self._home.logs / f"{NAME}.log"

    def _spec(self, model: HostedModel) -> ProcessSpec:
        return ProcessSpec(
            name=NAME,
            command=(
                *(model.image.python, "-m", "containers.server.serve"),
                *("--model", str(model.base), "--adapter", str(model.adapter)),
                *("--adapter-name", model.adapter_name, "--port", str(model.port)),
                *("--device", model.device, "--dtype", model.dtype),
                *("--max-model-len", str(model.max_model_len)),
                *("--max-images", str(model.max_images), "--lora-rank", str(model.lora_rank)),
            ),
            environment={
                "ARIADNE_HOME": str(self._home.root),
                "PYTHONPATH": model.image.app,
                # Makes a folder with other contents another server, to be started anew.
                "ARIADNE_SERVES": f"{model.base_digest}-{model.adapter_digest}",
            },
            directory=Path(model.image.app),
            log=self._log,
            restart=True,
            stop_timeout_s=15,
        )


def _url(model: HostedModel) -> str:
    return f"http://{HOST}:{model.port}/v1"


def _served_adapters(model: HostedModel) -> dict[str, str]:
    """Model name to the folder it was loaded from, as the server tells it."""
    try:
        answer = httpx.get(f"{_url(model)}/models", timeout=10, headers=_authorisation())
        answer.raise_for_status()
        return {entry["id"]: entry["root"] for entry in answer.json()["data"]}
    except (httpx.HTTPError, ValueError, KeyError):
        return {}


def _authorisation() -> dict[str, str]:
    key = os.environ.get("VLLM_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _answers(model: HostedModel) -> bool:
    try:
        httpx.get(f"http://{HOST}:{model.port}/", timeout=5)
    except httpx.HTTPError:
        return False
    return True
