"""Does a RayCluster that somebody else has made do for a profile? Pure functions."""

from collections.abc import Iterable
from typing import Any

from configs.kuberay import VolumeConfig
from configs.schema import ClusterConfig
from tasks.backends.protocols import Image
from tasks.backends.ray_manifest import GPU, section

Object = dict[str, Any]


def misfits(cluster: Object, config: ClusterConfig, image: Image) -> list[str]:
    """What keeps the cluster from being used, a clause each; empty where it fits."""
    kuberay, spec = section(config), cluster["spec"]
    head, groups = spec["headGroupSpec"], spec.get("workerGroupSpecs", [])
    found = []
    if spec.get("rayVersion") != kuberay.ray_version:
        found.append(f"its Ray is {spec.get('rayVersion')}, not {kuberay.ray_version}")
    images = sorted({_ray_container(group)["image"] for group in (head, *groups)})
    if not image.reference or any(_pin(each) != _pin(image.reference) for each in images):
        wanted = image.reference or "in no registry"
        found.append(f"its image is {', '.join(images)}, the profile's {wanted}")
    num_workers = sum(_fitting_workers(group, config.gpus_per_worker) for group in groups)
    if num_workers < config.num_workers:
        found.append(
            f"it has {num_workers} workers with at least {config.gpus_per_worker} GPUs, "
            f"not {config.num_workers}"
        )
    volume = kuberay.volume
    if not all(_mounts(group, volume) for group in (head, *groups)):
        found.append(f"not all its pods have the claim {volume.claim} at {volume.mount_path}")
    return found


def _ray_container(group: Object) -> Object:
    """KubeRay takes the first one."""
    return group["template"]["spec"]["containers"][0]


def _pin(reference: str) -> str:
    """The digest, which says all, or what there is."""
    return reference.rpartition("@")[2]


def _fitting_workers(group: Object, gpus: int) -> int:
    limits = _ray_container(group).get("resources", {}).get("limits", {})
    fits = int(limits.get(GPU, 0)) >= gpus
    return group.get("replicas", 0) * group.get("numOfHosts", 1) if fits else 0


def _mounts(group: Object, volume: VolumeConfig) -> bool:
    named = set(_volumes_of(group, volume.claim))
    mounts = _ray_container(group).get("volumeMounts", [])
    return any(m["name"] in named and m["mountPath"] == volume.mount_path for m in mounts)


def _volumes_of(group: Object, claim: str) -> Iterable[str]:
    for each in group["template"]["spec"].get("volumes", []):
        if each.get("persistentVolumeClaim", {}).get("claimName") == claim:
            yield each["name"]
