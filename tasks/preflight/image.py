"""Can the image be built that the devices need, and are the names in its section real ones?"""

from configs.schema import PostTrainConfig
from tasks.preflight.findings import Finding

_DOCUMENTATION_ACCOUNT = "123456789012"
_NO_DIGEST = "0" * 64


def trainer_image(config: PostTrainConfig) -> Finding | None:
    """None where the image is an environment on this machine, for its CPU."""
    image = config.image
    if image.backend == "environment" and config.train.device == "cpu":
        return None
    if image.registry is None:
        wrong = "for GPUs flash-attention is compiled, which the backend 'environment' does not do"
        fix = "choose image.backend = 'buildah' or 'codebuild'"
    elif image.registry.base.endswith(_NO_DIGEST):
        wrong = "image.registry.base has a placeholder for its digest"
        fix = "put in what `skopeo inspect docker://NAME:TAG` says of the base you choose"
    elif image.registry.host.startswith(_DOCUMENTATION_ACCOUNT):
        wrong = f"image.registry.repository is of {_DOCUMENTATION_ACCOUNT}, AWS's example account"
        fix = "put in the registry of your account"
    else:
        detail = f"{image.backend} builds for {image.registry.repository}"
        return Finding(name="trainer image", ok=True, detail=detail)
    return Finding(name="trainer image", ok=False, detail=wrong, fix=fix)
