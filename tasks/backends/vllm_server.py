"""vLLM servers on this machine behind one door, all supervised.

They belong to the machine, not to a flow: they go on when the flow ends and are started again
when they die. What is wanted is a file (configs/serving.py); the door loads it into the running
servers, proves each of them, and only then lets the new adapter answer. So a new adapter restarts
nothing, and one that does not serve what was measured never answers at all.
"""

from pathlib import Path

from configs.digests import digest_of
from configs.serving import Serving
from tasks import ports
from tasks.backends.door import Door, server_arguments, wish_for
from tasks.backends.protocols import Endpoint, HostedModel, Processes, ProcessSpec
from tasks.home import Home, write_private

HOST = "127.0.0.1"
DOOR = "model-door"
SERVER = "model-server"


class VllmServer:
    """Implements `ModelServer` with supervised processes."""

    def __init__(self, home: Home, processes: Processes) -> None:
        self._home = home
        self._processes = processes

    def find(self, model: HostedModel) -> Endpoint | None:
        wish = self._wish()
        if wish is None or not self._is_started(model):
            return None
        door = self._door(model)
        if self._serving(model, wish.generation) != wish or not door.serves(wish):
            return None
        return door.endpoint(wish)

    def serve(self, model: HostedModel) -> Endpoint:
        """Start what is missing, ask for the adapter, and wait until every server is proven.

        Raises:
            RuntimeError: a server does not serve what was measured, or none came up in time, or
                another program has the port. What served before goes on.
        """
        before = self._wish()
        wish = self._serving(model, before.generation + 1 if before else 1)
        self._refuse_taken_port(model)
        write_private(self._file, wish.model_dump_json(indent=1) + "\n")
        specs = self._specs(model)
        for spec in specs:
            self._processes.ensure(spec)
        self._remove_others(specs)
        write_private(self._started, digest_of(specs))
        try:
            logs = str(self._home.logs / f"{SERVER}-*.log")
            self._door(model).await_proof(wish, model.timeout_s, logs)
        except RuntimeError:
            if before:
                again = before.model_copy(update={"generation": wish.generation + 1})
                write_private(self._file, again.model_dump_json(indent=1) + "\n")
            raise
        return self._door(model).endpoint(wish)

    def _serving(self, model: HostedModel, generation: int) -> Serving:
        ports_of_servers = [self._any_port(f"{SERVER}-{n}") for n in _numbers(model)]
        urls = tuple(f"http://{HOST}:{port}" for port in ports_of_servers)
        return wish_for(model, generation, urls)

    def _door(self, model: HostedModel) -> Door:
        return Door(f"http://{HOST}:{self._port(model)}")

    def _wish(self) -> Serving | None:
        """What was asked for last."""
        try:
            return Serving.read(self._file)
        except (FileNotFoundError, ValueError):
            return None

    def _refuse_taken_port(self, model: HostedModel) -> None:
        state = self._processes.state(DOOR)
        port = self._port(model)
        if (state is None or not state.running) and not ports.is_free(port):
            raise RuntimeError(
                f"port {port} is taken by {ports.holder(port)}: stop it or set host.port"
            )

    def _remove_others(self, specs: list[ProcessSpec]) -> None:
        wanted = {spec.name for spec in specs}
        for state in self._processes.states():
            if state.name.startswith(f"{SERVER}-") and state.name not in wanted:
                self._processes.remove(state.name)

    def _port(self, model: HostedModel) -> int:
        return model.port or self._any_port(DOOR)

    def _any_port(self, name: str) -> int:
        """The port chosen for a process before, or a free one for good."""
        with self._home.locked("hosting-ports"):
            file = self._home.hosting / f"{name}.port"
            port = int(file.read_text()) if file.is_file() else ports.any_free()
            write_private(file, str(port))
        return port

    @property
    def _file(self) -> Path:
        return self._home.hosting / "serving.json"

    @property
    def _started(self) -> Path:
        """Digest of what the processes were last started with."""
        return self._home.hosting / "processes.digest"

    def _is_started(self, model: HostedModel) -> bool:
        return self._started.is_file() and self._started.read_text() == digest_of(
            self._specs(model)
        )

    def _specs(self, model: HostedModel) -> list[ProcessSpec]:
        door = ("--port", str(self._port(model)))
        server = server_arguments(model)
        servers = [
            self._spec(model, f"{SERVER}-{n}", "containers.server.serve", port + server)
            for n in _numbers(model)
            for port in [("--port", str(self._any_port(f"{SERVER}-{n}")))]
        ]
        return [*servers, self._spec(model, DOOR, "containers.server.door", door)]

    def _spec(
        self, model: HostedModel, name: str, module: str, arguments: tuple[str, ...]
    ) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            command=(model.image.python, "-m", module, "--serving", str(self._file), *arguments),
            environment={
                "ARIADNE_HOME": str(self._home.root),
                "PYTHONPATH": model.image.app,
                # Makes a folder with another base another server, to be started anew.
                "ARIADNE_SERVES": model.base_digest,
            },
            directory=Path(model.image.app),
            log=self._home.logs / f"{name}.log",
            restart=True,
            stop_timeout_s=15,
        )


def _numbers(model: HostedModel) -> range:
    return range(1, model.num_replicas + 1)
