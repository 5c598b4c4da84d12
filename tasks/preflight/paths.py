"""Are the files that a run reads there, and where every node can see them?"""

from configs.schema import PostTrainConfig
from tasks.check import read_shapes
from tasks.home import Home
from tasks.preflight.findings import Finding
from tasks.run_dir import check_shared_paths


def base_model(config: PostTrainConfig) -> Finding:
    """By its headers alone: the digest of all weights comes when the run is opened."""
    path = config.model.path
    try:
        num_tensors = len(read_shapes(path))
        fault = "" if num_tensors else f"{path} has no *.safetensors weights"
    except (ValueError, KeyError, AttributeError):
        fault, num_tensors = f"the weights in {path} are damaged", 0
    return Finding(
        name="base model",
        ok=not fault,
        detail=fault or f"{num_tensors} tensors in {path}",
        fix="set model.path to a complete Hugging Face checkpoint",
    )


def shared_paths(config: PostTrainConfig, home: Home) -> Finding | None:
    """What jobs read and write has to be on the volume of the pods; None on one machine."""
    if config.cluster.kuberay is None:
        return None
    fault = ""
    try:
        check_shared_paths(config, home.runs)
    except ValueError as error:
        fault = str(error)
    what, _, fix = fault.rpartition(": ")
    mount = config.cluster.kuberay.volume.mount_path
    return Finding(
        name="shared paths",
        ok=not fault,
        detail=what or f"home, base model and mazes are below {mount}",
        fix=fix,
    )
