"""What to think of the facts that a probe has brought from the image and from the machines."""

from collections.abc import Iterable

from configs.probes import NodeFacts, Probe
from configs.schema import PostTrainConfig
from tasks.preflight.findings import Finding
from tasks.preflight.room import memory_needed_gb

_NAMED = 3
"""Modules that a message names before it only counts."""


def judge(config: PostTrainConfig, probe: Probe) -> list[Finding]:
    """One finding for each subject that applies to the profile's device and machines."""
    findings = [_configuration(probe), _coverage(probe), _mazes(probe), _storage(config, probe)]
    if config.cluster.kuberay:
        findings += [_nodes(config, probe), _sync(config, probe)]
    if config.train.device == "cuda":
        findings += [
            _gpus(config, probe),
            _software(probe),
            _network(config, probe),
            _patch_embedding(config, probe),
            _memory(config, probe),
        ]
    return findings


def _configuration(probe: Probe) -> Finding:
    return Finding(
        name="SkyRL",
        ok=not probe.refusal,
        detail=f"SkyRL refuses the configuration: {probe.refusal}"
        if probe.refusal
        else "takes the configuration",
        fix="change the profile as it says",
    )


def _coverage(probe: Probe) -> Finding:
    left_out = probe.not_served
    named = ", ".join(left_out[:_NAMED]) + (", ..." if len(left_out) > _NAMED else "")
    detail = f"the trainer adapts {probe.num_adapted} modules, the server applies all of them"
    if left_out:
        detail = f"the server ignores {len(left_out)} of {probe.num_adapted} adapters: {named}"
    if not probe.num_adapted:
        detail = "the trainer adapts no module"
    return Finding(
        name="adapter layers",
        ok=probe.num_adapted > 0 and not left_out,
        detail=detail,
        fix="name the modules that are not served, and no others, in train.lora.exclude_modules",
    )


def _mazes(probe: Probe) -> Finding:
    kinds = {node.maze_digest for node in probe.nodes}
    return Finding(
        name="mazes",
        ok=len(kinds) == 1,
        detail=f"one seed draws {len(kinds)} different mazes on {len(probe.nodes)} nodes",
        fix="have all nodes run one image: NumPy or Python differ",
    )


def _storage(config: PostTrainConfig, probe: Probe) -> Finding:
    needed = config.preflight.min_storage_mb_per_s
    slowest = min(probe.nodes, key=_throughput, default=None)
    return Finding(
        name="storage",
        ok=slowest is not None and _throughput(slowest) >= needed,
        detail=f"{slowest.node} is the slowest: writes {slowest.write_mb_per_s:.0f}, reads "
        f"{slowest.read_mb_per_s:.0f} MB/s"
        if slowest
        else "no node was asked",
        fix=f"give the file system more throughput, or lower preflight.min_storage_mb_per_s = "
        f"{needed:g}",
    )


def _throughput(node: NodeFacts) -> float:
    return min(node.write_mb_per_s, node.read_mb_per_s)


def _nodes(config: PostTrainConfig, probe: Probe) -> Finding:
    wanted = config.cluster.num_workers
    return Finding(
        name="nodes",
        ok=len(probe.nodes) >= wanted,
        detail=f"{len(probe.nodes)} of {wanted} workers answered",
        fix="wait for the missing ones, or lower cluster.num_workers and train.num_processes",
    )


def _sync(config: PostTrainConfig, probe: Probe) -> Finding:
    names = [node.node for node in probe.nodes]
    blind = [
        f"{node.node} does not see what {writer} writes"
        for node in probe.nodes
        for writer in names
        if writer != node.node and writer not in node.saw_after_s
    ]
    slowest = max((s for node in probe.nodes for s in node.saw_after_s.values()), default=0.0)
    limit = config.preflight.max_sync_s
    return Finding(
        name="adapter path",
        ok=not blind and slowest <= limit,
        detail="; ".join(blind[:_NAMED])
        or f"a file renamed into place is read on all other nodes after {slowest:.2f} s at most",
        fix=f"mount one file system under cluster.kuberay.volume.mount_path on all nodes, without "
        f"caching what is not there, or raise preflight.max_sync_s = {limit:g}",
    )


def _gpus(config: PostTrainConfig, probe: Probe) -> Finding:
    wanted = config.cluster.gpus_per_worker
    kinds = _different(gpu.name for node in probe.nodes for gpu in node.gpus)
    short = [
        f"{node.node} has {len(node.gpus)} GPUs of {wanted}"
        for node in probe.nodes
        if len(node.gpus) < wanted
    ]
    return Finding(
        name="GPUs",
        ok=not short and len(kinds) == 1,
        detail="; ".join(short) or f"{sum(len(n.gpus) for n in probe.nodes)} of {_listed(kinds)}",
        fix="use machines of one kind with as many GPUs as cluster.gpus_per_worker",
    )


def _software(probe: Probe) -> Finding:
    """Ranks of different NCCL or drivers meet, and then hang."""
    drivers = _different(node.driver for node in probe.nodes)
    nccls = _different(node.nccl for node in probe.nodes)
    return Finding(
        name="driver and NCCL",
        ok=len(drivers) == len(nccls) == 1,
        detail=f"driver {_listed(drivers)}, NCCL {_listed(nccls)}",
        fix="update the nodes' software (UpdateClusterSoftware), and have all run one image",
    )


def _network(config: PostTrainConfig, probe: Probe) -> Finding:
    kuberay = config.cluster.kuberay
    wanted = kuberay.worker.efa_interfaces if kuberay else 0
    fewest = min((node.num_fabric_interfaces for node in probe.nodes), default=0)
    pairs = sum(len(node.gpus) * (len(node.gpus) - 1) // 2 for node in probe.nodes)
    peers = sum(node.num_peer_pairs for node in probe.nodes)
    return Finding(
        name="network",
        ok=fewest >= wanted,
        detail=f"{fewest} fabric interfaces a node of {wanted}, direct access (P2P) between "
        f"{peers} of {pairs} pairs of GPUs",
        fix="check the EFA device plugin and the security group, or set "
        "cluster.kuberay.worker.efa_interfaces = 0 to use TCP",
    )


def _patch_embedding(config: PostTrainConfig, probe: Probe) -> Finding:
    times = [(gpu.patch_embedding_ms, node.node) for node in probe.nodes for gpu in node.gpus]
    slowest_ms, where = max(times, default=(0.0, "no GPU"))
    limit = config.preflight.max_patch_embedding_ms
    return Finding(
        name="patch embedding",
        ok=bool(times) and slowest_ms <= limit,
        detail=f"{slowest_ms:.2f} ms a frame on the slowest GPU, on {where}",
        fix=f"compare that GPU with the others and have it replaced, or raise "
        f"preflight.max_patch_embedding_ms = {limit:g}",
    )


def _memory(config: PostTrainConfig, probe: Probe) -> Finding:
    needed = memory_needed_gb(config)
    least = min((node.memory_gb for node in probe.nodes), default=0.0)
    return Finding(
        name="memory of nodes",
        ok=least >= needed,
        detail=f"a worker needs {needed:.0f} GB and the smallest has {least:.0f} GB",
        fix="use a kind of machine with more RAM, or fewer GPUs of each",
    )


def _different(values: Iterable[str]) -> list[str]:
    return sorted(set(values))


def _listed(values: list[str]) -> str:
    return " and ".join(values) or "none"
