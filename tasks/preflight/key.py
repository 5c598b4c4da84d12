"""Is the key of an endpoint on a network there, that hosting will have to pass?"""

import os

from configs.schema import PostTrainConfig
from tasks.preflight.findings import Finding


def endpoint_key(config: PostTrainConfig) -> Finding | None:
    """VLLM_API_KEY; None where the endpoint is this machine's alone."""
    if config.host.pod is None:
        return None
    is_there = bool(os.environ.get("VLLM_API_KEY"))
    return Finding(
        name="endpoint key",
        ok=is_there,
        detail=f"VLLM_API_KEY is {'set' if is_there else 'not set'}, the endpoint is on a network",
        fix=f"set VLLM_API_KEY to the key of the Secret {config.host.pod.key_secret}",
    )
