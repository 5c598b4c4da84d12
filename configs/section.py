"""What every part of a profile is."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen part of the configuration that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
