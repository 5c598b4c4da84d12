"""SkyRL's own workers for GPUs, with our checkpoints."""

import ray
from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import FSDPPolicyWorkerBase, RefWorker

from containers.trainer import patch_embedding
from containers.trainer.adapter_state import AdapterCheckpoints

__all__ = ["PolicyWorker", "RefWorker"]

patch_embedding.install()


class AdapterPolicyWorkerBase(AdapterCheckpoints, FSDPPolicyWorkerBase):
    pass


PolicyWorker = ray.remote(num_gpus=1)(AdapterPolicyWorkerBase)
