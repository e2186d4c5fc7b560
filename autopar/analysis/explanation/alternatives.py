"""Alternatives: other layouts of a value, or other choices of an op, and what each would cost.

Each is pinned in turn, as a user would pin it, and everything else follows by the same strategy on
the same cluster: the cost is that of a whole program that can be compiled, not of a neighbourhood.
Presets are propagated anew. A searched plan is changed wherever that makes it faster with the pin
(`completion.search.nearby`), which takes a fraction of a search from scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

from autopar.analysis.explanation.why import choice_text
from autopar.base.collector import paused_collector
from autopar.base.errors import AutoparError
from autopar.completion.plan import Plan
from autopar.completion.problem.problem import Pinned
from autopar.completion.problem.splits import Key
from autopar.completion.search.watch import Progress, Watch
from autopar.ir.dims import DimLayout, SubDim
from autopar.ir.expr.facts import can_exceed
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Op, Value
from autopar.pipeline.decided import Decided
from autopar.planning.price import Price

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


def value_alternatives(decided: Decided, value: Value, watch: Watch) -> tuple[Alternative, ...]:
    """Returns the present layout of an input and all others, the cheapest first.

    Args:
        decided: The program.
        value: The input.
        watch: Limits what is searched, and is told which alternative is priced.
    """
    if value.dist is None:
        return ()
    layouts = other_layouts(decided.mesh, value)
    others = [replace(value, dist=layout, origin=ORIGIN) for layout in layouts]
    return _priced(decided, value, others, watch)


def op_alternatives(decided: Decided, op: Op, watch: Watch) -> tuple[Alternative, ...]:
    """Returns the present choice of an op and all others, the cheapest first.

    Args:
        decided: The program.
        op: The op.
        watch: Limits what is searched, and is told which alternative is priced.
    """
    return _priced(decided, op, list(other_choices(decided, op)), watch)


def other_layouts(mesh: ProcessMesh, value: Value) -> Iterator[Layout]:
    """Yields the layouts that split other dimensions of a value over the axes of a mesh."""
    shape = value.global_shape
    now = value.dist or Layout.replicated(mesh, shape)
    places: list[Sequence[int | None]] = []
    present: list[int | None] = []
    for axis in _axes(mesh):
        at = [at for at, dim in enumerate(now.dims) if any(axis in sub.axes for sub in dim)]
        present.append(at[0] if at else None)
        places.append([None, *(at for at, size in enumerate(shape) if can_exceed(size, 1))])
    for chosen in _combinations(places, present):
        mapping = [
            tuple(axis for axis, place in zip(_axes(mesh), chosen, strict=True) if place == at)
            for at in range(len(shape))
        ]
        layout = Layout.from_dims_mapping(mesh, shape, mapping)
        if layout.dims_mapping != now.dims_mapping or now.partial:
            yield layout


def other_choices(decided: Decided, op: Op) -> Iterator[Op]:
    """Yields the op with other factors split over the axes of its mesh, as far as it can be.

    An op of a slice, as of a stage of a pipeline, is split over the slice's axes alone.
    """
    main = decided.completed.main
    call = decided.problem.calls.call_of(op, main.values)
    if not call.has_rule or op.dist is None:
        return
    factors = [name for name in call.rule.sizes if name in call.splittable]
    now = {axis: name for name, dim in op.dist.factors for sub in dim for axis in sub.axes}
    axes = _axes(op.dist.mesh)
    present = [now.get(axis) for axis in axes]
    for chosen in _combinations([[None, *factors] for _ in axes], present):
        if list(chosen) == present:
            continue
        split: dict[Key, DimLayout] = {}
        for name in dict.fromkeys(filter(None, chosen)):
            over = tuple(a for a, place in zip(axes, chosen, strict=True) if place == name)
            split[name] = (SubDim(call.rule.sizes[name], over),)
        choice = call.choice(decided.problem.calls.space.table.splits_of(split))
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


@paused_collector()
def _priced(
    decided: Decided, now: Pinned, others: Sequence[Pinned], watch: Watch
) -> tuple[Alternative, ...]:
    """Returns what is present and all alternatives, the cheapest first."""
    found = [Alternative(_text(now), decided.price(), present=True)]
    if others:
        planner = replace(decided.planner, watch=watch)
        plan = planner.nearby(now, decided.completed, is_moved=decided.is_moved)
        for number, other in enumerate(others, start=1):
            watch.tell(Progress(f"alternative {number} of {len(others)}"))
            found.append(_alternative(decided, other, plan))
    return _sorted(found)


def _alternative(decided: Decided, other: Pinned, plan: Callable[[Pinned], Plan]) -> Alternative:
    try:
        found = decided.price(plan(other).program)
    except AutoparError as error:
        return Alternative(_text(other), None, problem=str(error))
    return Alternative(_text(other), found)


def _text(pinned: Pinned) -> str:
    return choice_text(pinned) if isinstance(pinned, Op) else str(pinned.dist)


def _sorted(found: Sequence[Alternative]) -> tuple[Alternative, ...]:
    def seconds(each: Alternative) -> tuple[bool, float]:
        return each.price is None, each.price.seconds if each.price else 0.0

    return tuple(sorted(found, key=seconds))
