"""One machine looks at itself, and several look at what they share."""

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from configs.digests import digest_of
from configs.probes import GpuFacts, NodeFacts
from containers.trainer.wilson import layout_from_seed

_STORAGE_MB = 64
_SEEN_TIMEOUT_S = 30.0
_POLL_S = 0.01
_COMMAND_TIMEOUT_S = 30
_MAZE_SEEDS = range(16)
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_FABRIC = Path("/sys/class/infiniband")


class NodeProbe:
    """A machine, as far as one process on it can tell."""

    def __init__(self, name: str, shared: Path, model: Path, num_patches: int, device: str) -> None:
        self._name = name
        self._device = device
        self._shared = shared
        self._model = model
        self._num_patches = num_patches

    def facts(self) -> NodeFacts:
        """All but what it takes several machines to see."""
        write_mb_per_s, read_mb_per_s = storage_mb_per_s(self._shared)
        gpus, num_peer_pairs, nccl = self._gpus()
        return NodeFacts(
            node=self._name,
            memory_gb=memory_bytes() / 2**30,
            write_mb_per_s=write_mb_per_s,
            read_mb_per_s=read_mb_per_s,
            maze_digest=digest_of([layout_from_seed(seed, 9, 9) for seed in _MAZE_SEEDS]),
            gpus=gpus,
            driver=_driver() if gpus else "",
            nccl=nccl,
            num_peer_pairs=num_peer_pairs,
            num_fabric_interfaces=len(list(_FABRIC.iterdir())) if _FABRIC.is_dir() else 0,
            saw_after_s={},
        )

    def look(self, name: str) -> bool:
        """Whether the file is there; asked before it is, since "no" is what gets cached."""
        return (self._shared / name).exists()

    def write(self, name: str, words: str) -> None:
        """Under another name first, then renamed, as adapters are handed to the servers."""
        hidden = self._shared / f".{name}"
        with hidden.open("w") as file:
            file.write(words)
            file.flush()
            os.fsync(file.fileno())
        hidden.rename(self._shared / name)

    def await_words(self, name: str, words: str) -> float | None:
        """Seconds until the file says so here; None if it does not in time."""
        began = time.monotonic()
        while time.monotonic() - began < _SEEN_TIMEOUT_S:
            try:
                if (self._shared / name).read_text() == words:
                    return time.monotonic() - began
            except FileNotFoundError:
                pass
            time.sleep(_POLL_S)
        return None

    def forget(self, name: str) -> None:
        (self._shared / name).unlink(missing_ok=True)

    def _gpus(self) -> tuple[tuple[GpuFacts, ...], int, str]:
        """The GPUs that this process was given, how many pairs are peers, and NCCL's version."""
        if self._device != "cuda":
            return (), 0, ""
        import torch
        from transformers import AutoConfig

        from containers.trainer import patch_embedding

        patch_embedding.install()
        vision = AutoConfig.from_pretrained(self._model).vision_config
        numbers = range(torch.cuda.device_count())
        gpus = tuple(
            GpuFacts(
                name=torch.cuda.get_device_name(number),
                memory_gb=torch.cuda.get_device_properties(number).total_memory / 2**30,
                patch_embedding_ms=patch_embedding.time_frame_ms(
                    vision, self._num_patches, f"cuda:{number}"
                ),
            )
            for number in numbers
        )
        peers = sum(torch.cuda.can_device_access_peer(a, b) for a in numbers for b in range(a))
        return gpus, peers, ".".join(map(str, torch.cuda.nccl.version()))


class Nodes(Protocol):
    """Machines that can be asked the methods of NodeProbe by name."""

    @property
    def names(self) -> list[str]: ...

    def ask(self, name: str, method: str, *arguments: object) -> Any: ...

    def ask_all(self, method: str, *arguments: object) -> dict[str, Any]: ...


class HeldNodes:
    """Implements `Nodes` with probes of this process."""

    def __init__(self, probes: Mapping[str, NodeProbe]) -> None:
        self._probes = probes

    @property
    def names(self) -> list[str]:
        return [*self._probes]

    def ask(self, name: str, method: str, *arguments: object) -> Any:
        return getattr(self._probes[name], method)(*arguments)

    def ask_all(self, method: str, *arguments: object) -> dict[str, Any]:
        return {name: self.ask(name, method, *arguments) for name in self.names}


def probe_nodes(nodes: Nodes) -> tuple[NodeFacts, ...]:
    """Facts of all machines, and when each saw what each of the others wrote."""
    facts: dict[str, NodeFacts] = nodes.ask_all("facts")
    saw: dict[str, dict[str, float]] = {name: {} for name in nodes.names}
    for writer in nodes.names:
        for reader, seconds in _saw(nodes, writer).items():
            if seconds is not None and reader != writer:
                saw[reader][writer] = seconds
    return tuple(facts[name].model_copy(update={"saw_after_s": saw[name]}) for name in nodes.names)


def _saw(nodes: Nodes, writer: str) -> dict[str, float | None]:
    if len(nodes.names) == 1:
        return {}
    file, words = f"preflight-{uuid4().hex}", uuid4().hex
    nodes.ask_all("look", file)
    try:
        nodes.ask(writer, "write", file, words)
        return nodes.ask_all("await_words", file, words)
    finally:
        nodes.ask(writer, "forget", file)


def memory_bytes() -> int:
    """What the container may take, or the machine has."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return machine
    return min(machine, int(limit)) if limit.isdigit() else machine


def storage_mb_per_s(folder: Path) -> tuple[float, float]:
    """Writing and reading one file that nothing can compress, in MB/s."""
    path = folder / f".preflight-{uuid4().hex}"
    block = os.urandom(2**20)
    try:
        with path.open("wb") as file:
            began = time.perf_counter()
            for _ in range(_STORAGE_MB):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            wrote_s = time.perf_counter() - began
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with path.open("rb") as file:
            began = time.perf_counter()
            while file.read(2**20):
                pass
            read_s = time.perf_counter() - began
    finally:
        path.unlink(missing_ok=True)
    size = _STORAGE_MB * 2**20 / 1e6
    return size / wrote_s, size / read_s


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return ", ".join(sorted(set(said.stdout.split())))
