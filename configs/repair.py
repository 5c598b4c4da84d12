"""The part of a profile that says what is done about machines that are lost, on HyperPod."""

from typing import Literal, Self

from pydantic import Field, model_validator

from configs.section import Section


class RepairConfig(Section):
    """How long machines are waited for, and what is done when they do not come.

    The order is: HyperPod's own recovery, the requests, fewer machines, giving up.
    """

    hyperpod_cluster: str = Field(pattern=r"^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$")
    """Name of the HyperPod cluster: not that of its EKS cluster, and not its ARN."""
    region: str = Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$")
    """Of the HyperPod cluster."""
    requests: tuple[Literal["reboot", "replace"], ...] = Field((), max_length=4)
    """What HyperPod is asked to do, one after the other, with a machine that does not recover by
    itself. None: people do it. A replaced machine's own disks are lost."""
    recovery_timeout_s: int = Field(1800, ge=0, le=86_400)
    """For HyperPod's own recovery, before the first request."""
    unwatched_timeout_s: int = Field(300, ge=0, le=86_400)
    """The same where HyperPod does not recover: machines without its health agent, such as the
    head's, and clusters whose recovery is off."""
    request_timeout_s: int = Field(1800, ge=60, le=86_400)
    """For what was requested, before the next request."""
    min_workers: int | None = Field(None, ge=1, le=64)
    """Go on with as few as these, from the newest checkpoint, once nothing else helped. None:
    never with fewer. The next cluster that is started is tried at full size again."""
    timeout_s: int = Field(7200, ge=60, le=604_800)
    """For all of this together; then training gives up."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        first = max(self.recovery_timeout_s, self.unwatched_timeout_s)
        needed = first + len(self.requests) * self.request_timeout_s
        if needed > self.timeout_s:
            raise ValueError(
                f"timeout_s is {self.timeout_s}: waiting and requests alone may take {needed} s"
            )
        return self
