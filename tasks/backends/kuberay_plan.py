"""What starting a RayCluster would send to Kubernetes, in order, without sending it."""

from configs.kuberay import KubeRayConfig
from configs.schema import ClusterConfig
from tasks.backends import ray_manifest
from tasks.backends.kubernetes_api import (
    CLAIMS,
    RAY_CLUSTERS,
    VOLUMES,
    Kind,
    KubernetesApi,
    Object,
)
from tasks.backends.protocols import Image, Planned


def planned(
    api: KubernetesApi | None,
    kuberay: KubeRayConfig,
    name: str,
    config: ClusterConfig,
    image: Image,
) -> tuple[Planned, ...]:
    """By what is there now; without an API as if nothing were.

    Raises:
        ValueError: the cluster cannot be made of this profile and image.
    """
    if kuberay.adopt:
        return (Planned(call=f"none: RayCluster {kuberay.adopt} is adopted as it is"),)
    manifest = ray_manifest.ray_cluster(name, config, image)
    known = api.get(RAY_CLUSTERS, name) if api else None
    if known and not ray_manifest.is_ours(known):
        raise ValueError(
            f"RayCluster {name} in namespace {kuberay.namespace} is somebody else's: name it in "
            "cluster.kuberay.adopt or give the profile another name"
        )
    if known and ray_manifest.is_made_of(known, manifest):
        return (Planned(call=f"none: RayCluster {name} is there, of this profile and image"),)
    replaced = (_delete(kuberay, name),) if known else ()
    made = _post(RAY_CLUSTERS, kuberay, manifest)
    return (*_volume(api, kuberay), *replaced, made)


def _volume(api: KubernetesApi | None, kuberay: KubeRayConfig) -> tuple[Planned, ...]:
    volume = kuberay.volume
    if api and api.get(CLAIMS, volume.claim):
        return ()
    if not volume.file_system_id:
        there = f"none: PersistentVolumeClaim {volume.claim} has to be there: its volume is not "
        return (Planned(call=f"{there}in the profile (cluster.kuberay.volume.file_system_id)"),)
    manifest = ray_manifest.persistent_volume(kuberay)
    is_there = api and api.get(VOLUMES, manifest["metadata"]["name"])
    made = () if is_there else (_post(VOLUMES, kuberay, manifest),)
    return (*made, _post(CLAIMS, kuberay, ray_manifest.volume_claim(kuberay)))


def _post(kind: Kind, kuberay: KubeRayConfig, manifest: Object) -> Planned:
    return Planned(call=f"POST {kind.path(kuberay.namespace)}", manifest=manifest)


def _delete(kuberay: KubeRayConfig, name: str) -> Planned:
    path = RAY_CLUSTERS.path(kuberay.namespace)
    return Planned(call=f"DELETE {path}/{name}, which is of another profile or image")
