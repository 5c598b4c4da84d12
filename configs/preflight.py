"""The section of a profile that says what a machine has to be able to do before a run starts."""

from pydantic import Field

from configs.section import Section


class PreflightConfig(Section):
    """Limits of the checks that come before anything is paid for."""

    region: str = Field("", pattern=r"^([a-z]{2}(-[a-z]+)+-[0-9])?$")
    """AWS region whose credentials and quotas are asked; empty: no AWS is asked."""
    step_s: float = Field(30.0, gt=0, le=86_400)
    """What a training step is assumed to take until a run of this home has measured it."""
    max_usd: float = Field(0.0, ge=0, le=10_000_000)
    """A run that is estimated to cost more is refused; 0 sets no limit."""
    min_storage_mb_per_s: float = Field(0.0, ge=0, le=1_000_000)
    """What every node has to write to and read from the run's folder; 0 asks for nothing."""
    max_sync_s: float = Field(2.0, gt=0, le=600)
    """Until a file that one node has renamed into place can be read on all others."""
    max_patch_embedding_ms: float = Field(10.0, gt=0, le=60_000)
    """Forward and backward pass of one frame's patches on a GPU."""
