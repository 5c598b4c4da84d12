"""What a run would create and what it would cost, without creating any of it."""

from configs.schema import PostTrainConfig
from tasks.backends.protocols import Image, Planned
from tasks.backends.wiring import Backends
from tasks.home import Home
from tasks.preflight.cost import cost

_UNBUILT = Image(
    digest="0" * 64,
    python="/usr/local/bin/python",
    app="/opt/ariadne",
    reference=f"image-to-be-built@sha256:{'0' * 64}",
)
"""Stands in manifests until a build has told the real one."""


def plan(config: PostTrainConfig, home: Home, backends: Backends) -> tuple[Planned, ...]:
    """Everything in the order in which post-train does it. Backends are only read from.

    Raises:
        ValueError: the cluster cannot be made of this profile; says why.
    """
    digest = backends.images.digest()
    image = backends.images.find(digest)
    pods_lack_it = bool(config.cluster.kuberay) and not (image and image.reference)
    in_pods = _UNBUILT if image is None or pods_lack_it else image
    cluster = backends.clusters.plan(config.name, config.cluster, in_pods)
    return (
        _image(config, digest, image, pods_lack_it=pods_lack_it),
        *cluster,
        *_jobs(config),
        *_end(config),
        _host(config),
        Planned(call=f"estimate: {cost(config, home).detail}"),
    )


def _image(
    config: PostTrainConfig, digest: str, image: Image | None, *, pods_lack_it: bool
) -> Planned:
    built = f"build image {digest[:12]} with {config.image.backend}"
    if image is None:
        why = "; its digest in the manifests below is known only then" if pods_lack_it else ""
        return Planned(call=built + why)
    if pods_lack_it:
        return Planned(
            call=f"none: image {digest[:12]} is on this machine only, and pods need one in a "
            "registry: choose an image.backend that pushes"
        )
    return Planned(call=f"none: image {digest[:12]} is there: {image.reference or image.python}")


def _jobs(config: PostTrainConfig) -> tuple[Planned, ...]:
    names = ["probe of all workers"] if config.cluster.kuberay else []
    names += [
        f"training, {config.train.steps} steps, up to {config.train.max_attempts} attempts "
        "without a checkpoint",
        "evaluation of base, adapter and champion",
    ]
    return tuple(Planned(call=f"POST /api/jobs/ of the Ray head: {name}") for name in names)


def _end(config: PostTrainConfig) -> tuple[Planned, ...]:
    """The cluster is given back before anything is hosted; an adopted one stays."""
    kuberay = config.cluster.kuberay
    if kuberay and kuberay.adopt:
        return (Planned(call=f"none: RayCluster {kuberay.adopt} is left as it was"),)
    if kuberay:
        path = f"/apis/ray.io/v1/namespaces/{kuberay.namespace}/rayclusters/{config.name}"
        return (Planned(call=f"DELETE {path}"),)
    return (Planned(call=f"stop the processes of Ray cluster {config.name}"),)


def _host(config: PostTrainConfig) -> Planned:
    host = config.host
    return Planned(
        call=f"if the gate promotes the adapter: serve it as {host.adapter_name!r} with "
        f"{host.backend}, {host.num_replicas} replicas"
    )
