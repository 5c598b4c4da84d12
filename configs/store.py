"""The section of a profile that says where adapters are kept beside the runs."""

from pydantic import Field

from configs.section import Section


class StoreConfig(Section):
    """An object store that promoted adapters are copied to."""

    url: str = Field(
        pattern=r"^(s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_-][A-Za-z0-9._-]*)*/?"
        r"|(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+)$",
        max_length=400,
    )
    """`s3://bucket/prefix`, or an absolute path on a file system that is shared."""
    grace_days: float = Field(14.0, ge=0, le=3650)
    """How long an adapter stays there that neither serves nor served last."""
