"""Pins of ops: how an op is computed, by the name of a result of it.

A pin of an op is `Op.dist` with an origin, as a pin of a value is `Value.dist`. Completion never
changes either.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autopar.base.errors import AnnotationError, near_misses
from autopar.ir.dims import dim_axes
from autopar.ir.dims_mapping import dim_of_entry
from autopar.ir.layout import Origin
from autopar.ir.ops import rule_of
from autopar.ir.program import Op, OpDist, Pending, Program, Value
from autopar.ir.text.layouts import Entry


@dataclass(frozen=True, slots=True)
class OpPin:
    """How all ops are computed of which a result's name matches.

    Attributes:
        pattern: A glob over names of results.
        split: The factors that are split, with the axes or sub-dimensions.
        body: The alternative body; "" for the op itself.
        pending: Reductions that pass through.
        place: Where the user wrote it.
    """

    pattern: str
    split: tuple[tuple[str, Entry], ...]
    body: str
    pending: tuple[Pending, ...]
    place: str


def apply_op_pins(program: Program, pins: Sequence[OpPin]) -> Program:
    """Returns a program on a mesh with the matching ops of `main` pinned.

    Args:
        program: A serial program with a mesh.
        pins: The pins.

    Raises:
        AnnotationError: If a pattern matches no op, or a pin doesn't fit one, or two disagree.
    """
    if not pins:
        return program
    main = program.main
    position = {name: at for at, op in enumerate(main.ops) for name in op.results}
    ops = list(main.ops)
    for pin in pins:
        for at in dict.fromkeys(position[name] for name in _matching(pin, position)):
            ops[at] = _pinned(program, ops[at], pin)
    return program.with_main(replace(main, ops=tuple(ops)))


def pinned_results(program: Program, pins: Sequence[OpPin]) -> frozenset[str]:
    """Returns the names of the results of `main` that pins match; some may match none."""
    known = [name for op in program.main.ops for name in op.results]
    return frozenset(name for pin in pins for name in fnmatch.filter(known, pin.pattern))


def _matching(pin: OpPin, known: dict[str, int]) -> Sequence[str]:
    if pin.pattern in known:
        return [pin.pattern]
    found = fnmatch.filter(known, pin.pattern)
    if not found:
        raise AnnotationError(
            f"{pin.place}: pattern {pin.pattern!r} matches the result of no op"
            f"{near_misses(pin.pattern, known)}"
        )
    return found


def _pinned(program: Program, op: Op, pin: OpPin) -> Op:
    dist = _dist(program, op, program.main.values, pin)
    if op.dist is not None and op.dist != dist:
        raise AnnotationError(
            f"{pin.place}: %{op.results[0]} is pinned by {op.origin.detail if op.origin else '?'}"
            " already, otherwise; remove one of them or narrow its pattern"
        )
    return replace(op, dist=dist, origin=Origin("annotated", pin.place))


def _dist(program: Program, op: Op, values: Mapping[str, Value], pin: OpPin) -> OpDist:
    assert program.mesh is not None
    rule = rule_of(op, values)
    where = f"{pin.place}: %{op.results[0]}, made by {op.kind}"
    if rule is None:
        raise AnnotationError(f"{where}, has no rule, so every process computes all of it")
    if pin.body and rule.body(pin.body) is None:
        bodies = ", ".join(body.name for body in rule.bodies) or "none"
        raise AnnotationError(f"{where}, has no body {pin.body!r}; it has {bodies}")
    split, sizes = dict(pin.split), {**rule.sizes, **rule.under(pin.body).sizes}
    for factor in split:
        if factor not in sizes:
            known = ", ".join(sizes) or "none"
            raise AnnotationError(f"{where}, has no factor {factor!r}; it has {known}")
    try:
        factors = tuple(
            (factor, dim_of_entry(split[factor], size, program.mesh))
            for factor, size in sizes.items()
            if factor in split
        )
    except AnnotationError as error:
        raise AnnotationError(f"{where}: {error}") from error
    used = [axis for _, dim in factors for axis in dim_axes(dim)]
    used += [each.axis for each in pin.pending]
    if twice := sorted({axis for axis in used if used.count(axis) > 1}):
        raise AnnotationError(f"{where}: {', '.join(twice)} is used more than once")
    return OpDist(program.mesh, factors, pin.body, pin.pending)
