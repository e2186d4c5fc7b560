"""The strategy option: which preset works along which mesh axis, as `data:0,tensor:1`."""

from __future__ import annotations

import re

from autopar.base.errors import AnnotationError, near_misses
from autopar.completion.presets.preset import AxisPreset, Preset
from autopar.completion.presets.table import ALIASES, BY_NAME, NAMES
from autopar.ir.mesh import ProcessMesh

_NUMBER = re.compile(r"-?[0-9]{1,9}")

AUTO = "auto"
"""In the place of presets: search for the fastest plan."""


def parse_strategy(text: str, mesh: ProcessMesh) -> tuple[AxisPreset, ...]:
    """Returns the presets that an option names, in its order.

    Args:
        text: `preset:axis` pairs joined by commas; an axis is an index or a name. A preset
            without an axis works along every axis in turn that no other preset of the text names.
            One that stands beside another, as `sequence` beside `tensor`, shares its axis.
        mesh: The mesh whose axes are meant.

    Raises:
        AnnotationError: On an unknown preset or axis, or two presets for one axis.
    """
    pairs = [part.partition(":") for part in text.split(",") if part.strip()]
    if not pairs:
        raise AnnotationError(
            f"strategy {text!r} is empty; write {AUTO}, or {', '.join(NAMES)} with axes"
        )
    named = {_axis(axis, text, mesh) for _, colon, axis in pairs if colon}
    free = [axis for axis in mesh.dim_names if axis not in named]
    chosen: list[AxisPreset] = []
    for preset, colon, axis in pairs:
        named_preset = _preset(preset.strip(), text)
        axes = [_axis(axis, text, mesh)] if colon else free
        chosen.extend(AxisPreset(named_preset, item) for item in axes)
    axes = [item.axis for item in chosen if not item.preset.beside]
    if twice := sorted({axis for axis in axes if axes.count(axis) > 1}):
        raise AnnotationError(f"strategy {text!r} gives axis {', '.join(twice)} to two presets")
    return tuple(chosen)


def named_on(text: str, axis: str, mesh: ProcessMesh) -> tuple[AxisPreset, ...]:
    """Returns the presets of an option that names an axis for them, in its order.

    Raises:
        AnnotationError: See `parse_strategy`.
    """
    pairs = (part for part in text.split(",") if ":" in part)
    found = (item for part in pairs for item in parse_strategy(part, mesh))
    return tuple(item for item in found if item.axis == axis)


def _preset(name: str, text: str) -> Preset:
    if name in BY_NAME:
        return BY_NAME[name]
    if name == AUTO:
        raise AnnotationError(
            f"strategy {text!r}: {AUTO} stands alone; what search is to leave as it is, pin"
        )
    known = (*NAMES, *ALIASES)
    hint = near_misses(name, (*known, AUTO))
    raise AnnotationError(
        f"strategy {text!r}: no preset {name!r}, only {', '.join(known)}, or {AUTO} alone{hint}"
    )


def _axis(axis: str, text: str, mesh: ProcessMesh) -> str:
    axis = axis.strip()
    try:
        return mesh.dim_names[mesh.axis_index(int(axis) if _NUMBER.fullmatch(axis) else axis)]
    except AnnotationError as error:
        raise AnnotationError(f"strategy {text!r}: {error}") from error
