"""What a configuration says: its fields, what is derived, and what is said beyond them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

_ABSENT = object()


def value_of(config: PretrainedConfig, name: str, otherwise: Any = None) -> Any:
    """Returns an attribute of a configuration, the general one where layers differ in it."""
    return vars(config)[name] if name in vars(config) else getattr(config, name, otherwise)


def fields_of(config: PretrainedConfig) -> dict[str, Any]:
    """Returns the arguments of a configuration's class, as they are."""
    if dataclasses.is_dataclass(config):
        own = {each.name for each in dataclasses.fields(config) if each.init}
        skipped = {each.name for each in dataclasses.fields(PretrainedConfig)} - {"pad_token_id"}
        kept = own - skipped | {"bos_token_id", "eos_token_id"}
        values = ((name, value_of(config, name, _ABSENT)) for name in sorted(kept))
        return {name: value for name, value in values if value is not _ABSENT}
    return {name: value for name, value in vars(config).items() if not name.startswith("_")}


def said_beyond(config: PretrainedConfig) -> dict[str, Any]:
    """Returns what a configuration inside another says beyond its class's arguments."""
    if not dataclasses.is_dataclass(config):
        return {}
    try:
        usual = vars(type(config)())
    except Exception:  # some have no defaults
        return {}
    return {
        name: value
        for name, value in vars(config).items()
        if not name.startswith("_") and name not in usual
    }


def default_fields(kind: type[PretrainedConfig]) -> Mapping[str, Any] | None:
    """Returns the arguments of a class as they are by default; None if it needs some."""
    try:
        return fields_of(kind())
    except Exception:  # some have no defaults
        return None


def is_written_down(kind: type[PretrainedConfig], name: str) -> bool:
    """Whether a default is written down, not derived from others."""
    if not dataclasses.is_dataclass(kind):
        return True
    found = {each.name: each for each in dataclasses.fields(kind)}.get(name)
    return found is not None and found.default is not None
