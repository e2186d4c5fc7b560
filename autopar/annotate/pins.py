"""Pins by name pattern: `encoder.*.weight=[-1,tp]`, from options or a YAML file.

A pattern is a glob over the names of values and the user's names of inputs and outputs; `*` also
matches dots and slashes. A file holds the same pins, and may name the mesh:

    mesh: dp=2,tp=4
    shard:
      encoder.*.weight: [-1, tp]
      tokens: [[dp, tp], null]
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autopar.annotate.mapping_text import Entry, parse_dims_mapping
from autopar.annotate.mesh import MeshLike, apply_mesh, as_mesh, parse_mesh
from autopar.ir.errors import AnnotationError, InvalidInputError, near_misses
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program, Value


@dataclass(frozen=True, slots=True)
class Pin:
    """A layout for all values whose name matches.

    Attributes:
        pattern: A glob over value names and labels.
        dims_mapping: One entry per dimension: -1 or None, an axis by index or name, or several.
        place: Where the user wrote it.
    """

    pattern: str
    dims_mapping: tuple[Entry, ...]
    place: str


@dataclass(frozen=True, slots=True)
class Annotations:
    """What an annotation file says.

    Attributes:
        pins: In the order of the file.
        mesh: The mesh, if the file names one.
    """

    pins: tuple[Pin, ...]
    mesh: ProcessMesh | None = None


def parse_pin(text: str, place: str = "") -> Pin:
    """Returns the pin that an option `PATTERN=[entry,...]` describes.

    Args:
        text: The option's value.
        place: Where it was written; by default `--shard 'TEXT'`.

    Raises:
        AnnotationError: If the text has no pattern or no list.
    """
    place = place or f"--shard {text!r}"
    at = text.rfind("=[")
    pattern = text[:at].strip()
    if at < 0 or not pattern:
        raise AnnotationError(f"{place}: write PATTERN=[entry,...], as 'encoder.*.weight=[-1,tp]'")
    try:
        return Pin(pattern, parse_dims_mapping(text[at + 1 :]), place)
    except AnnotationError as error:
        raise AnnotationError(f"{place}: {error}") from error


def load_annotations(path: Path) -> Annotations:
    """Reads an annotation file.

    Raises:
        InvalidInputError: If the file can't be read or is not YAML.
        AnnotationError: If it holds something else than `mesh` and `shard`, or an unfit entry.
    """
    import yaml

    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidInputError(f"can't read the annotations in {path}: {error}") from error
    mesh: ProcessMesh | None = None
    pins: tuple[Pin, ...] = ()
    for key, node in _items(root, str(path)):
        if key == "mesh":
            mesh = parse_mesh(str(node.value))
        elif key == "shard":
            pins = tuple(
                Pin(pattern, _yaml_entries(entries, _place(path, entries)), _place(path, entries))
                for pattern, entries in _items(node, _place(path, node))
            )
        else:
            raise AnnotationError(
                f"{_place(path, node)}: unknown key {key!r}; a file has 'mesh' and 'shard'"
            )
    return Annotations(pins, mesh)


def apply_pins(program: Program, mesh: MeshLike, pins: Sequence[Pin]) -> Program:
    """Returns the program on a mesh with the matching values of `main` pinned.

    Raises:
        AnnotationError: If a pattern matches nothing, a mapping doesn't fit a value, or two pins
            disagree about a value.
    """
    mesh = as_mesh(mesh)
    program = apply_mesh(program, mesh)
    main = program.main
    labels = {
        port.name: port.label for port in (*program.signature.inputs, *program.signature.outputs)
    }
    values = dict(main.values)
    for pin in pins:
        matched = _matching(pin, values, labels)
        for name in matched:
            values[name] = _pinned(values[name], labels.get(name, name), mesh, pin)
    return program.with_main(replace(main, values=values))


def _matching(pin: Pin, values: dict[str, Value], labels: dict[str, str]) -> list[str]:
    fits = re.compile(fnmatch.translate(pin.pattern)).match
    found = [
        name for name in values if fits(name) or (name in labels and fits(labels[name]) is not None)
    ]
    if not found and pin.pattern in (*values, *labels.values()):
        # The name itself holds glob characters.
        found = [name for name in values if pin.pattern in (name, labels.get(name))]
    if not found:
        known = dict.fromkeys([*labels.values(), *values])
        hint = near_misses(pin.pattern, known) or _names_like(pin.pattern, known)
        raise AnnotationError(
            f"{pin.place}: pattern {pin.pattern!r} matches no input, parameter or activation{hint}"
        )
    return found


def _names_like(pattern: str, known: Iterable[str]) -> str:
    """Returns a hint for a pattern that isn't close to any name as a whole."""
    pieces = [piece.strip("./") for piece in re.split(r"[*?\[\]]+", pattern)]
    for piece in sorted(filter(None, pieces), key=len, reverse=True):
        if holding := [name for name in known if piece in name]:
            return f"; {piece!r} is in {', '.join(holding[:3])}: does the pattern need a '*' first?"
    return f"; names are, for example, {', '.join(list(known)[:3])}"


def _pinned(value: Value, label: str, mesh: ProcessMesh, pin: Pin) -> Value:
    shown = f"%{value.name}" + (f" ({label!r})" if label != value.name else "")
    try:
        layout = Layout.from_dims_mapping(mesh, value.global_shape, pin.dims_mapping)
    except AnnotationError as error:
        shape = list(value.global_shape)
        raise AnnotationError(f"{pin.place}: {shown} of shape {shape}: {error}") from error
    if value.dist is not None and value.dist != layout:
        earlier = value.origin.detail if value.origin else "an earlier annotation"
        raise AnnotationError(
            f"two pins disagree about {shown}: {value.dist} by {earlier}, {layout} by {pin.place};"
            " remove one or narrow its pattern"
        )
    return replace(value, dist=layout, origin=Origin("annotated", pin.place))


def _items(node: Any, place: str) -> list[tuple[str, Any]]:
    if node is None:
        return []
    if node.id != "mapping":
        raise AnnotationError(f"{place}: expected a mapping of names")
    return [(str(key.value), value) for key, value in node.value]


def _yaml_entries(node: Any, place: str) -> tuple[Entry, ...]:
    # YAML cuts "[(dp,tp), -1]" at every comma, so the entries are put together again as text.
    if node.id not in ("sequence", "scalar"):
        raise AnnotationError(f"{place}: expected a list with one entry per dimension, as [-1, tp]")
    try:
        return parse_dims_mapping(_yaml_text(node, "[]") if node.id == "sequence" else node.value)
    except AnnotationError as error:
        raise AnnotationError(f"{place}: {error}") from error


def _yaml_text(node: Any, brackets: str = "()") -> str:
    if node.id != "sequence":
        return "None" if node.tag.endswith(":null") else str(node.value)
    inner = ", ".join(_yaml_text(item) for item in node.value)
    return f"{brackets[0]}{inner}{brackets[1]}"


def _place(path: Path, node: Any) -> str:
    return f"{path}:{node.start_mark.line + 1}"
