"""The smoke profile on a RayCluster: what the tests and the flow that they start share.

    python -m tests.aws.on_kuberay KUBECONFIG FOLDER

post-trains in this process, with the Kubernetes of that kubeconfig and the shared volume FOLDER.
Its one liberty: an image that no registry has gets a reference, since pods ask for one.
"""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from configs.loader import load_config
from configs.schema import PostTrainConfig
from tasks import context
from tasks.backends import wiring
from tasks.backends.environment import EnvironmentBuilder
from tasks.backends.protocols import Image, ImageBuilder
from tasks.home import Home, cache_folder
from tests.aws import fleet


@dataclass(frozen=True)
class InRegistry:
    """Implements `ImageBuilder`: another one's images, as if they had been pushed."""

    builder: ImageBuilder

    def digest(self) -> str:
        return self.builder.digest()

    def find(self, digest: str) -> Image | None:
        found = self.builder.find(digest)
        return found and _pushed(found)

    def build(self, digest: str, *, force: bool) -> Image:
        return _pushed(self.builder.build(digest, force=force))


def _pushed(image: Image) -> Image:
    return image.model_copy(update={"reference": f"ariadne/trainer@sha256:{image.digest}"})


def image_here() -> Image:
    """The image of today's code, made if it is missing."""
    builder = InRegistry(EnvironmentBuilder(cache_folder()))
    return builder.find(builder.digest()) or builder.build(builder.digest(), force=False)


def smoke_on_kuberay(kubeconfig: Path, shared: Path) -> PostTrainConfig:
    """The smoke profile with the cluster section of a RayCluster; model and mazes lie on `shared`.

    The sizes are this machine's: Kubernetes would give what is asked for, and Ray believes it.
    """
    smoke = load_config("smoke")
    pod = {"memory_gb": 4, "shared_memory_gb": 1}
    kuberay = {
        "namespace": "ariadne",
        "ray_version": "2.57.0",
        "dashboard_url": "http://127.0.0.1:{port}",
        "stop_timeout_s": 10,
        "api": {"access": "kubeconfig", "kubeconfig": str(kubeconfig)},
        "head": {**pod, "cpus": 1, "instance_type": "ml.t3.large"},
        "worker": {**pod, "instance_type": "ml.t3.xlarge"},
        "volume": {"mount_path": str(shared)},
    }
    return load_config(
        "smoke",
        {
            "model.path": str(_copied(smoke.model.path, shared)),
            "mazes.test_set": str(_copied(smoke.mazes.test_set, shared)),
            "cluster.backend": "kuberay",
            "cluster.start_timeout_s": 600,
            "cluster.kuberay": kuberay,
            "cluster.repair": {"hyperpod_cluster": fleet.NAME, "region": fleet.REGION},
        },
    )


def _copied(path: Path, shared: Path) -> Path:
    target = shared / path.name
    if path.is_dir():
        shutil.copytree(path, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(path, target)
    return target


def main() -> None:
    """Run the flow; home, Prefect and MLflow are in its environment, as they are in a worker."""
    kubeconfig, shared = map(Path, sys.argv[1:])
    config = smoke_on_kuberay(kubeconfig, shared)
    make = wiring.make_backends

    def make_backends(given: PostTrainConfig, home: Home) -> wiring.Backends:
        made = make(given, home)
        return replace(made, images=InRegistry(made.images))

    load: Callable[..., Any] = lambda *_, **__: config  # noqa: E731
    context.make_backends = make_backends
    from flows import post_train

    post_train.load_config = load
    print(post_train.post_train("smoke"))  # noqa: T201


if __name__ == "__main__":
    main()
