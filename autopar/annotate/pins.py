"""Pins by name pattern: `encoder.*.weight=[-1,tp]`, from options or a YAML file.

A pattern is a glob over the names of values and the user's names of inputs and outputs; `*` also
matches dots and slashes. Gradients and optimizer state, `grad/NAME` and `exp_avg/NAME`, follow
their parameter; only a pattern with a slash, as `exp_avg*/encoder.*`, is about them.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autopar.annotate.mesh import MeshLike, apply_mesh, as_mesh
from autopar.annotate.same import counterparts
from autopar.base.arguments import shown
from autopar.base.errors import UNKNOWN, AnnotationError, near_misses
from autopar.ir.expr.expression import shape_str
from autopar.ir.fixed import Fixed, index_text, indices_of
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program, Value
from autopar.ir.text.layouts import Entry, parse_dims_mapping

_FOLLOWING = ("optimizer_state", "gradient")
"""Roles of values that are named after what they are of, and the parameter they belong to."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A layout for all values whose name matches.

    Attributes:
        pattern: A glob over value names and labels.
        dims_mapping: One entry per dimension: -1 or None, an axis by index or name, or several.
        place: Where the user wrote it.
        partial: Reductions that stay pending: pairs of mesh axis and monoid.
        exact: Whether of a weight it says where within a dimension the split is, as plans do.
        on: The slice of the mesh where the value is kept, by fixed axes; none: where it is read,
            or of what isn't stored the whole mesh.
    """

    pattern: str
    dims_mapping: tuple[Entry, ...]
    place: str
    partial: tuple[tuple[str, str], ...] = ()
    exact: bool = False
    on: Fixed = ()

    @classmethod
    def from_entries(cls, pattern: str, mapping: Sequence[Entry]) -> Pin:
        """Returns the pin that an entry of `shard=` describes.

        Raises:
            AnnotationError: If its mapping is a text, which would be an entry per letter, or no
                list, or the pattern is no text.
        """
        place = f"shard[{pattern!r}]"
        if isinstance(mapping, str):
            raise AnnotationError(
                f"{place}: {mapping!r} is a text; give a list with an entry per dimension, as"
                f" [{mapping!r}, None]"
            )
        if not isinstance(pattern, str) or not isinstance(mapping, Sequence):
            raise AnnotationError(
                f"{place}: give a list with an entry per dimension, as [0, None], by name pattern;"
                f" not {shown(mapping)}"
            )
        return cls(pattern, tuple(mapping), place)


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


def apply_pins(program: Program, mesh: MeshLike, pins: Sequence[Pin]) -> Program:
    """Returns the program on a mesh with the matching values of `main` pinned.

    Args:
        program: A serial program.
        mesh: The processes.
        pins: The pins.

    Raises:
        AnnotationError: If a pattern matches nothing, a mapping doesn't fit a value, or two pins
            disagree about a value.
    """
    return _applied(program, as_mesh(mesh), ((pin, _found(program, pin)) for pin in pins))


def apply_pins_of(
    first: Program, program: Program, mesh: MeshLike, pins: Sequence[Pin], *, partly: bool = False
) -> Program:
    """Returns a program with the values pinned that pins match in another capture of its model.

    Args:
        first: The serial program in which patterns are looked up.
        program: A serial program of the same model, for another batch or mode.
        mesh: The processes.
        pins: The pins.
        partly: Whether the program may lack what is pinned in the first one.

    Raises:
        AnnotationError: As `apply_pins`, or if a value hasn't got one counterpart.
    """
    same = counterparts(first, program) if pins else {}

    def found(pin: Pin) -> Iterator[str]:
        for name in _found(first, pin):
            if name in same:
                yield same[name]
            elif not partly:
                where = next((op.loc for op in first.main.ops if name in op.results), UNKNOWN)
                raise AnnotationError(
                    f"{pin.place}: what it pins, %{name} ({where}), has no one counterpart in the"
                    " program for another batch; mark it in the model by annotate.shard"
                )

    return _applied(program, as_mesh(mesh), ((pin, found(pin)) for pin in pins))


def pinned_names(program: Program, pins: Sequence[Pin]) -> frozenset[str]:
    """Returns the names of the values of `main` that pins match; some may match none."""
    values, names = program.main.values, _names(program)
    return frozenset(name for pin in pins for name in _matched(pin, values, names))


def _found(program: Program, pin: Pin) -> list[str]:
    """Returns the names of the values of `main` that a pin matches."""
    return _matching(pin, program.main.values, _names(program))


def _applied(
    program: Program, mesh: ProcessMesh, found: Iterable[tuple[Pin, Iterable[str]]]
) -> Program:
    program = apply_mesh(program, mesh)
    main = program.main
    names = _names(program)
    values = dict(main.values)
    for pin, pinned in found:
        for name in pinned:
            values[name] = _pinned(values[name], names[name], mesh, pin)
    return program.with_main(replace(main, values=values))


def _names(program: Program) -> Mapping[str, tuple[str, ...]]:
    """Returns what a pattern may match of each value: its name and the user's names for it.

    The new content of a parameter has the parameter's label, but lies where that is pinned to.
    """
    renewed = {output for output, _ in program.main.aliases}
    ports = (*program.signature.inputs, *program.signature.outputs)
    labels = {port.name: (port.label, port.name, *port.aliases) for port in ports}
    return {
        name: tuple(dict.fromkeys(labels.get(name, (name,))))
        for name in program.main.values
        if name not in renewed
    }


def _matching(
    pin: Pin, values: Mapping[str, Value], names: Mapping[str, tuple[str, ...]]
) -> list[str]:
    found = _matched(pin, values, names)
    if not found:
        known = dict.fromkeys(name for each in names.values() for name in each)
        hint = near_misses(pin.pattern, known) or _names_like(pin.pattern, known)
        raise AnnotationError(
            f"{pin.place}: pattern {pin.pattern!r} matches no input, parameter or activation{hint}"
        )
    return found


def _matched(
    pin: Pin, values: Mapping[str, Value], names: Mapping[str, tuple[str, ...]]
) -> list[str]:
    found = [
        value
        for value, known in names.items()
        if any(_fits(pin.pattern, name, values[value]) for name in known)
    ]
    if not found:
        # The name itself may hold glob characters.
        found = [value for value, known in names.items() if pin.pattern in known]
    if not found:
        # An importer may have given what the user knows by another name a better one.
        found = [value for value in names if values[value].loc.name == pin.pattern]
    return found


def _fits(pattern: str, name: str, value: Value) -> bool:
    """Whether a pattern matches a value by one of its names.

    The slash in the name of what follows a parameter must be in the pattern too. The count of an
    optimizer's steps has nothing to pin.
    """
    if value.role not in _FOLLOWING:
        return fnmatch.fnmatchcase(name, pattern)
    of, _, parameter = name.partition("/")
    of_pattern, slash, parameter_pattern = pattern.partition("/")
    if not parameter or not slash or not value.shape:
        return False
    of_fits = fnmatch.fnmatchcase(of, of_pattern)
    return of_fits and fnmatch.fnmatchcase(parameter, parameter_pattern)


def _names_like(pattern: str, known: Iterable[str]) -> str:
    """Returns a hint for a pattern that isn't close to any name as a whole."""
    pieces = [piece.strip("./") for piece in re.split(r"[*?\[\]]+", pattern)]
    for piece in sorted(filter(None, pieces), key=len, reverse=True):
        if holding := [name for name in known if piece in name]:
            return f"; {piece!r} is in {', '.join(holding[:3])}: does the pattern need a '*' first?"
    return f"; names are, for example, {', '.join(list(known)[:3])}"


def _pinned(value: Value, names: Sequence[str], mesh: ProcessMesh, pin: Pin) -> Value:
    shown = f"%{value.name}" + (f" ({names[0]!r})" if names[0] != value.name else "")
    try:
        part = _part(mesh, pin.on)
        layout = Layout.from_dims_mapping(part, value.global_shape, pin.dims_mapping)
        if pin.partial:
            layout = layout.with_partial(dict(pin.partial))
            if problems := layout.problems(value.global_shape):
                raise AnnotationError("; ".join(problems))
    except AnnotationError as error:
        shape = shape_str(value.global_shape)
        raise AnnotationError(f"{pin.place}: {shown} of shape {shape}: {error}") from error
    if value.dist is not None and value.dist != layout:
        earlier = value.origin.detail if value.origin else "an earlier annotation"
        raise AnnotationError(
            f"two pins disagree about {shown}: {value.dist} by {earlier}, {layout} by {pin.place};"
            " remove one or narrow its pattern"
        )
    kind = "inherited" if pin.exact else "annotated"
    return replace(value, dist=layout, origin=Origin(kind, pin.place))


def _part(mesh: ProcessMesh, fixed: Fixed) -> ProcessMesh:
    for axis, index in fixed:
        size = mesh.axis_size(axis)
        if max(indices_of(index)) >= size:
            raise AnnotationError(
                f"axis {axis} has {size} processes, 0 to {size - 1}, and so no"
                f" index {index_text(index)}"
            )
    return mesh.at(fixed)
