"""A stand-in for Ray Serve LLM: the dashboard and the applications of RayServices, by path.

It knows the base, and the adapters that the store has, which it plays the maze of PROBE with.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self
from uuid import uuid4

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tasks.backends.protocols import ObjectStore
from tasks.ports import any_free
from tests.aws.ray_services import Applications, serve_config
from tests.trainer.stand_in_replica import SOLUTION, STOP
from tests.waiting import wait_until

Object = dict[str, Any]


class StandInRay:
    """All Ray clusters of a Kubernetes on one port."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._port = any_free()
        self._apps: dict[tuple[str, str], Object] = {}
        self.plays_as_base = False
        self.says = ("RUNNING", "")
        """Status and message of applications from now on."""
        self.fails = 0
        """So many next answers are an error 500."""

    @property
    def urls(self) -> dict[str, str]:
        """Settings of host.ray."""
        root = f"http://127.0.0.1:{self._port}/{{service}}"
        return {"serve_url": root, "dashboard_url": root}

    @contextmanager
    def runs(self, item: Object) -> Iterator[Applications]:
        """A RayService while it is there."""
        service, config = item["metadata"]["name"], serve_config(item)
        for app in config["applications"]:
            assert app["import_path"] == "ray.serve.llm:build_openai_app"
            assert app["route_prefix"] == f"/{app['name']}"
            self._apps[service, app["name"]] = {"llm": app["args"]["llm_configs"][0]}
            self.restart(service, app["name"])
        yield lambda: self._told(service)
        for app in config["applications"]:
            del self._apps[service, app["name"]]

    def restart(self, service: str, app: str) -> None:
        """Its model server is another process."""
        self._apps[service, app]["processes"] = [_process(uuid4().hex[:8])]

    def stop(self, service: str, app: str) -> None:
        """Its model server has no process."""
        self._apps[service, app]["processes"] = []

    def __enter__(self) -> Self:
        routes = [
            Route("/{service}/api/serve/applications/", self._dashboard),
            Route("/{service}/{app}/v1/chat/completions", self._chat, methods=["POST"]),
        ]
        config = uvicorn.Config(Starlette(routes=routes), port=self._port, log_level="error")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        wait_until(lambda: self._server.started)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(20)

    def _told(self, service: str) -> dict[str, Object]:
        status, message = self.says
        return {
            name: {
                "status": status,
                "message": message,
                "deployments": {
                    "LLMServer:base": {"replicas": app["processes"]},
                    "OpenAiIngress": {"replicas": [_process("ingress")]},
                },
            }
            for (of, name), app in list(self._apps.items())
            if of == service
        }

    async def _dashboard(self, request: Request) -> Response:
        return JSONResponse({"applications": self._told(request.path_params["service"])})

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        llm = self._apps[request.path_params["service"], request.path_params["app"]]["llm"]
        base, _, adapter = body["model"].partition(":")
        if base != llm["model_loading_config"]["model_id"]:
            return JSONResponse({"detail": f"Could not find base model with ID {base}"}, 404)
        if adapter and self._store.read(f"adapters/{adapter}/adapter_config.json") is None:
            where = llm["lora_config"]["dynamic_lora_loading_path"]
            said = f"Unable to find LoRA adapter config file in folder {where}/{adapter}"
            return JSONResponse({"detail": said}, 404)
        if self.fails:
            self.fails -= 1
            return JSONResponse({"error": {"message": "Internal Server Error", "code": 500}}, 500)
        said = sum(message["role"] == "assistant" for message in body["messages"])
        script = SOLUTION if adapter and not self.plays_as_base else (STOP,)
        message = {"role": "assistant", "content": script[min(said, len(script) - 1)]}
        return JSONResponse({"model": body["model"], "choices": [{"message": message}]})


def _process(name: str) -> Object:
    return {"replica_id": name, "state": "RUNNING"}
