"""vLLM servers on this machine behind one door, all supervised.

They belong to the machine, not to a flow: they go on when the flow ends and are started again
when they die. What is wanted is a file (configs/serving.py); the door loads it into the running
servers, proves each of them, and only then lets the new adapter answer. So a new adapter restarts
nothing, and one that does not serve what was measured never answers at all.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from configs.serving import Serving
from tasks import ports
from tasks.backends.door import Door, server_arguments, wish_for
from tasks.backends.protocols import (
    Endpoint,
    Fact,
    HostedModel,
    Planned,
    Processes,
    ProcessSpec,
)
from tasks.home import Home, write_private
from tasks.words import tail, telling_line

HOST = "127.0.0.1"
DOOR = "model-door"
SERVER = "model-server"
_NOW = "asked.json"
_BEFORE = "asked-before.json"


class Asked(Fact):
    """What was asked for: the wish, and the processes that fulfil it."""

    wish: Serving
    specs: tuple[ProcessSpec, ...]

    def again(self, generation: int) -> Self:
        wish = self.wish.model_copy(update={"generation": generation})
        return self.model_copy(update={"wish": wish})


class VllmServer:
    """Implements `ModelServer` with supervised processes."""

    def __init__(self, home: Home, processes: Processes) -> None:
        self._home = home
        self._processes = processes

    def find(self, model: HostedModel) -> Endpoint | None:
        asked = self._asked(_NOW)
        if asked is None or asked.specs != self._specs(model):
            return None
        wish = self._serving(model, asked.wish.generation)
        door = self._door(model)
        return door.endpoint(wish) if asked.wish == wish and door.serves(wish) else None

    def serve(self, model: HostedModel) -> Endpoint:
        """Start what is missing, ask for the adapter, and wait until every server is proven.

        Raises:
            RuntimeError: a server does not serve what was measured, or none came up in time, or
                another program has the port. What served before goes on.
        """
        self._refuse_taken_port(model)
        before = self._asked(_NOW)
        if before:
            self._remember(before, _BEFORE)
        wish, is_proven = self._serving(model, self._next_generation()), False
        try:
            self._ask(Asked(wish=wish, specs=self._specs(model)))
            self._door(model).await_proof(
                wish,
                model.timeout_s,
                str(self._home.logs / f"{SERVER}-*.log"),
                last_words=lambda: self._last_words(model),
            )
            is_proven = True
        finally:
            if before and not is_proven:
                self._ask(before.again(self._next_generation()))
        return self._door(model).endpoint(wish)

    def plan(self, model: HostedModel) -> tuple[Planned, ...]:
        return tuple(Planned(call=f"start the process {each.name}") for each in self._specs(model))

    def settle(self, champion_digest: str) -> bool:
        now, before = self._asked(_NOW), self._asked(_BEFORE)
        wished = self._wish()
        if wished is None or wished.champion.digest == champion_digest:
            return False
        for asked in (now, before):
            if asked and asked.wish.champion.digest == champion_digest:
                self._ask(asked.again(self._next_generation()))
                return True
        return False

    def _ask(self, asked: Asked) -> None:
        write_private(self._file, asked.wish.model_dump_json(indent=1) + "\n")
        for spec in asked.specs:
            self._processes.ensure(spec)
        self._remove_others(asked.specs)
        self._remember(asked, _NOW)

    def _remember(self, asked: Asked, which: str) -> None:
        write_private(self._home.hosting / which, asked.model_dump_json(indent=1) + "\n")

    def _asked(self, which: str) -> Asked | None:
        try:
            return Asked.model_validate_json((self._home.hosting / which).read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _next_generation(self) -> int:
        wish = self._wish()
        return wish.generation + 1 if wish else 1

    def _last_words(self, model: HostedModel) -> str:
        """What each server said last."""
        logs = [self._home.logs / f"{SERVER}-{n}.log" for n in _numbers(model)]
        return "; ".join(f"it said last: {telling_line(tail(log))}" for log in logs)

    def _serving(self, model: HostedModel, generation: int) -> Serving:
        return wish_for(model, generation, tuple(self._socket(n) for n in _numbers(model)))

    def _door(self, model: HostedModel) -> Door:
        return Door(f"http://{HOST}:{self._port(model)}", self._file)

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

    def _remove_others(self, specs: Sequence[ProcessSpec]) -> None:
        wanted = {spec.name for spec in specs}
        for state in self._processes.states():
            if state.name.startswith(f"{SERVER}-") and state.name not in wanted:
                self._processes.remove(state.name)

    def _socket(self, number: int) -> Path:
        return self._home.runtime / f"{SERVER}-{number}.sock"

    def _port(self, model: HostedModel) -> int:
        """The one asked for, the one chosen before, or a free one for good."""
        if model.port:
            return model.port
        with self._home.locked("hosting-ports"):
            file = self._home.hosting / f"{DOOR}.port"
            port = int(file.read_text()) if file.is_file() else ports.any_free()
            write_private(file, str(port))
        return port

    @property
    def _file(self) -> Path:
        return self._home.hosting / "serving.json"

    def _specs(self, model: HostedModel) -> tuple[ProcessSpec, ...]:
        door = ("--port", str(self._port(model)))
        return (
            *(
                self._spec(
                    model,
                    f"{SERVER}-{n}",
                    "containers.server.serve",
                    ("--socket", str(self._socket(n)), *server_arguments(model)),
                )
                for n in _numbers(model)
            ),
            self._spec(model, DOOR, "containers.server.door", door),
        )

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
