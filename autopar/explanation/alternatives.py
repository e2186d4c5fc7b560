"""Alternatives: other layouts of a value, or other choices of an op, and what each would cost.

Each is pinned in turn, as a user would pin it, and everything else is completed anew with the same
strategy on the same cluster: the cost is that of the whole program then, not of the neighbourhood.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

from autopar.completion import Complete
from autopar.completion.search.watch import Watch
from autopar.completion.splits import Key
from autopar.explanation.price import Price, price
from autopar.explanation.subject import Subject
from autopar.explanation.why import choice_text
from autopar.ir.collector import paused_collector
from autopar.ir.errors import AutoparError
from autopar.ir.layout import DimLayout, Layout, Origin, SubDim
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Function, Op, Program, Value

MOST = 16
"""Up to so many combinations are tried; beyond, what differs along one axis only."""

ORIGIN = Origin("annotated", "an alternative")

T = TypeVar("T")


@dataclass(frozen=True)
class Alternative:
    """Another layout of a value, or choice of an op.

    Attributes:
        text: The layout, or the choice.
        price: Of the whole program; None if it can't be completed so.
        present: Whether this is how the program is.
        problem: Why there is no price.
    """

    text: str
    price: Price | None
    present: bool = False
    problem: str = ""


@paused_collector()
def value_alternatives(subject: Subject, value: Value) -> tuple[Alternative, ...]:
    """Returns the present layout of an input and all others, the cheapest first."""
    now = value.dist
    if now is None:
        return ()
    found = [Alternative(str(now), _present(subject), present=True)]
    for layout in other_layouts(subject.mesh, value):
        pinned = replace(value, dist=layout, origin=ORIGIN)
        found.append(_priced(subject, str(layout), {value.name: pinned}, None))
    return _sorted(found)


@paused_collector()
def op_alternatives(subject: Subject, op: Op) -> tuple[Alternative, ...]:
    """Returns the present choice of an op and all others, the cheapest first."""
    found = [Alternative(choice_text(op), _present(subject), present=True)]
    for other in other_choices(subject, op):
        found.append(_priced(subject, choice_text(other), {}, other))
    return _sorted(found)


def other_layouts(mesh: ProcessMesh, value: Value) -> Iterator[Layout]:
    """Yields the layouts that split other dimensions of a value over the axes of a mesh."""
    shape = value.global_shape
    now = value.dist or Layout.replicated(mesh, shape)
    places: list[Sequence[int | None]] = []
    present: list[int | None] = []
    for axis in _axes(mesh):
        at = [at for at, dim in enumerate(now.dims) if any(axis in sub.axes for sub in dim)]
        present.append(at[0] if at else None)
        places.append([None, *(at for at, size in enumerate(shape) if size > 1)])
    for chosen in _combinations(places, present):
        mapping = [
            tuple(axis for axis, place in zip(_axes(mesh), chosen, strict=True) if place == at)
            for at in range(len(shape))
        ]
        layout = Layout.from_dims_mapping(mesh, shape, mapping)
        if layout.dims_mapping != now.dims_mapping or now.partial:
            yield layout


def other_choices(subject: Subject, op: Op) -> Iterator[Op]:
    """Yields the op with other factors split over the axes of the mesh, as far as it can be."""
    main = subject.completed.main
    call = subject.calls.of(op, main.values)
    if not call.has_rule or op.dist is None:
        return
    factors = [name for name in call.rule.sizes if name in call.splittable]
    now = {axis: name for name, dim in op.dist.factors for sub in dim for axis in sub.axes}
    axes = _axes(subject.mesh)
    present = [now.get(axis) for axis in axes]
    for chosen in _combinations([[None, *factors] for _ in axes], present):
        if list(chosen) == present:
            continue
        split: dict[Key, DimLayout] = {}
        for name in dict.fromkeys(filter(None, chosen)):
            over = tuple(a for a, place in zip(axes, chosen, strict=True) if place == name)
            split[name] = (SubDim(call.rule.sizes[name], over),)
        choice = call.choice(subject.calls.space.table.of(split))
        if choice is not None:
            yield replace(op, dist=choice.dist, origin=ORIGIN)


def _combinations(places: Sequence[Sequence[T]], present: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """Yields all combinations, or if they are many those that differ at one position."""
    count = 1
    for options in places:
        count *= len(options)
    if count <= MOST:
        yield from product(*places)
        return
    for at, options in enumerate(places):
        for option in options:
            if option != present[at]:
                yield (*present[:at], option, *present[at + 1 :])


def _axes(mesh: ProcessMesh) -> list[str]:
    return [axis for axis in mesh.dim_names if mesh.axis_size(axis) > 1]


def _present(subject: Subject) -> Price:
    return price(subject.completed, subject.options, subject.planner)


def _priced(subject: Subject, text: str, values: Mapping[str, Value], op: Op | None) -> Alternative:
    options = subject.options
    watch = Watch(options.seconds_limit)
    complete = Complete(
        options.cluster, options.strategy, subject.planner, watch, calls=subject.calls
    )
    program = as_annotated(subject.completed, values, op)
    try:
        return Alternative(text, price(complete(program), options, subject.planner))
    except AutoparError as error:
        return Alternative(text, None, problem=str(error))


def as_annotated(
    completed: Program, values: Mapping[str, Value] | None = None, op: Op | None = None
) -> Program:
    """Returns a completed program as it was before completion: with the user's pins only.

    Args:
        completed: The program.
        values: Values to put in the place of those with the same name.
        op: An op to put in the place of that with the same results.
    """
    main: Function = completed.main
    free = {
        name: value if _by_user(value.origin) else replace(value, dist=None, origin=None)
        for name, value in main.values.items()
    }
    ops = tuple(
        op
        if op is not None and each.results == op.results
        else each
        if _by_user(each.origin)
        else replace(each, dist=None, origin=None)
        for each in main.ops
    )
    return completed.with_main(replace(main, values={**free, **(values or {})}, ops=ops))


def _by_user(origin: Origin | None) -> bool:
    return origin is not None and origin.kind in ("annotated", "inherited")


def _sorted(found: Sequence[Alternative]) -> tuple[Alternative, ...]:
    def seconds(each: Alternative) -> tuple[bool, float]:
        return each.price is None, each.price.seconds if each.price else 0.0

    return tuple(sorted(found, key=seconds))
