"""The strategy option: which preset works along which mesh axis, as `data:0,tensor:1`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autopar.base.errors import AnnotationError, near_misses
from autopar.ir.mesh import ProcessMesh

_NUMBER = re.compile(r"-?[0-9]{1,9}")

PRESETS = (
    "replicate",
    "data",
    "tensor",
    "expert",
    "sequence",
    "context",
    "zero1",
    "zero2",
    "fsdp",
)

AUTO = "auto"
"""In the place of presets: search for the fastest plan."""

SAME = {"ddp": "data", "zero3": "fsdp"}
"""Other names of presets."""


@dataclass(frozen=True, slots=True)
class AxisPreset:
    """A preset and the mesh axis that it works along.

    Attributes:
        preset: A name of `PRESETS`.
        axis: Name of a mesh axis.
    """

    preset: str
    axis: str

    def __str__(self) -> str:
        return f"{self.preset}:{self.axis}"


def parse_strategy(text: str, mesh: ProcessMesh) -> tuple[AxisPreset, ...]:
    """Returns the presets that an option names, in its order.

    Args:
        text: `preset:axis` pairs joined by commas; an axis is an index or a name. A preset
            without an axis works along every axis in turn that no other preset of the text names.
            `sequence` shares the axis of `tensor`.
        mesh: The mesh whose axes are meant.

    Raises:
        AnnotationError: On an unknown preset or axis, or two presets for one axis.
    """
    pairs = [part.partition(":") for part in text.split(",") if part.strip()]
    if not pairs:
        raise AnnotationError(
            f"strategy {text!r} is empty; write {AUTO}, or {', '.join(PRESETS)} with axes"
        )
    named = {_axis(axis, text, mesh) for _, colon, axis in pairs if colon}
    free = [axis for axis in mesh.dim_names if axis not in named]
    chosen: list[AxisPreset] = []
    for preset, colon, axis in pairs:
        name = _preset(preset.strip(), text)
        axes = [_axis(axis, text, mesh)] if colon else free
        chosen.extend(AxisPreset(name, item) for item in axes)
    axes = [item.axis for item in chosen if item.preset != "sequence"]
    if twice := sorted({axis for axis in axes if axes.count(axis) > 1}):
        raise AnnotationError(f"strategy {text!r} gives axis {', '.join(twice)} to two presets")
    return tuple(chosen)


def _preset(name: str, text: str) -> str:
    name = SAME.get(name, name)
    if name in PRESETS:
        return name
    if name == AUTO:
        raise AnnotationError(
            f"strategy {text!r}: {AUTO} stands alone; what search is to leave as it is, pin"
        )
    known = (*PRESETS, *SAME)
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
