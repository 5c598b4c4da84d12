"""From a profile and a few overrides to a checked configuration, or one line of what is wrong."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from configs.schema import PostTrainConfig

PROFILES = Path(__file__).parent
ROOT = PROFILES.parent
"""The project's root: paths in a profile start here."""


def profile_names() -> list[str]:
    """The profiles that are shipped."""
    return sorted(path.stem for path in PROFILES.glob("*.toml"))


def load_config(profile: str, overrides: Mapping[str, Any] | None = None) -> PostTrainConfig:
    """Read `configs/<profile>.toml` and set `overrides`, such as {"train.steps": 20}, in it.

    Raises:
        ValueError: one line with the file, the key and the reason.
    """
    if profile not in profile_names():
        raise ValueError(f"no profile {profile!r}: choose one of {', '.join(profile_names())}")
    path = PROFILES / f"{profile}.toml"
    try:
        values = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"configs/{path.name}: {error}") from None
    for key, value in (overrides or {}).items():
        _set(values, key, value)
    return check_config(values, f"configs/{path.name}")


def check_config(values: Mapping[str, Any], source: str) -> PostTrainConfig:
    """Validate plain values; paths become absolute.

    Raises:
        ValueError: one line with `source`, the key and the reason.
    """
    try:
        config = PostTrainConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "profile"
        given = "" if first["type"] in ("missing", "extra_forbidden") else _given(first["input"])
        raise ValueError(f"{source}: {key}: {first['msg']}{given}") from None
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"path": ROOT / config.model.path}),
            "mazes": config.mazes.model_copy(update={"test_set": ROOT / config.mazes.test_set}),
        }
    )


def _given(value: Any) -> str:
    return "" if isinstance(value, dict) else f", not {value!r}"


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ValueError(f"{key}: {section} is a value, not a section")
    values[last] = value
