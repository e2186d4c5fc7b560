"""Rows that are looked up in their own order: exporters write masks as gathers of all they have.

A tensor of integers may be known by its places: element (i, j, ...) is `start + a * i + b * j ...`.
What is looked up at 0, 1, 2, ... is the table itself, and places that can't be negative need not be
counted from the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autopar.frontend.recognize.dataflow import Dataflow, Instead, text_of
from autopar.ir.expr.expression import IntExpr
from autopar.ir.expr.facts import is_at_least
from autopar.ir.program import Arg, Op, Ref

_VIEW = "aten.view.default"


@dataclass(frozen=True)
class Places:
    """Integers that grow evenly along each dimension.

    Attributes:
        start: The first one.
        steps: How much they grow along each dimension.
    """

    start: IntExpr
    steps: tuple[IntExpr, ...]

    @property
    def is_natural(self) -> bool:
        """Whether none is negative."""
        return all(is_at_least(each, 0) for each in (self.start, *self.steps))


def in_order(root: Op, flow: Dataflow) -> Instead | None:
    """Returns the table in the place of all its rows in their order."""
    if root.kind != "aten.index_select.default":
        return None
    source, index = text_of(root, "self"), text_of(root, "index")
    dim = root.arg("dim")
    if not isinstance(dim, int) or flow.shape(source) != flow.shape(root.results[0]):
        return None
    if flow.shape(source)[dim] == 1 or places(index, flow) != Places(0, (1,)):
        return None
    return _as_it_is(root, source, flow)


def from_the_front(root: Op, flow: Dataflow) -> Instead | None:
    """Returns places as they are where those below 0 would count from the end, if none is."""
    kept = _counted(root, flow)
    if kept and (known := places(kept, flow)) is not None and known.is_natural:
        return _as_it_is(root, kept, flow)
    return None


def _as_it_is(root: Op, source: str, flow: Dataflow) -> Instead:
    args: tuple[tuple[str, Arg], ...] = (("self", Ref(source)), ("size", flow.shape(source)))
    return Instead((root,), (replace(root, kind=_VIEW, args=args),))


def _counted(op: Op, flow: Dataflow) -> str:
    """Returns the places of which an op counts those below 0 from the end; "" if it doesn't."""
    if op.kind != "aten.where.self":
        return ""
    kept = text_of(op, "other")
    asked = flow.maker(text_of(op, "condition"), "aten.lt.Scalar")
    if asked is None or text_of(asked, "self") != kept or asked.arg("other") != 0:
        return ""
    return kept if kept and flow.shape(kept) == flow.shape(op.results[0]) else ""


def places(name: str, flow: Dataflow) -> Places | None:
    """Returns what is known of integers; None if they don't grow evenly."""
    op = flow.makers.get(name)
    if op is None:
        return None
    if kept := _counted(op, flow):
        found = places(kept, flow)
        return found if found is not None and found.is_natural else None
    shape, source = flow.shape(name), text_of(op, "self")
    if op.kind == "aten.arange.start_step":
        start, step = op.arg("start"), op.arg("step", 1)
        return Places(start, (step,)) if _is_size(start) and _is_size(step) else None  # type: ignore[arg-type]
    if op.kind == "aten.full.default":
        value = op.arg("fill_value")
        return Places(value, (0,) * len(shape)) if _is_size(value) else None  # type: ignore[arg-type]
    if op.kind == "aten.cat.default" and len(op.operands) == 1:
        return places(op.operands[0], flow)
    if op.kind in (_VIEW, "aten.unsqueeze.default"):
        found = places(source, flow)
        return found and _viewed(found, flow.shape(source), shape)
    return _combined(op, shape, flow)


def _is_size(arg: Arg) -> bool:
    return not isinstance(arg, (bool, float, str, complex, tuple, Ref)) and arg is not None


def _combined(op: Op, shape: Sequence[IntExpr], flow: Dataflow) -> Places | None:
    """Returns the places that a sum of two has, or a product of which one is a single number."""
    if op.kind not in ("aten.add.Tensor", "aten.mul.Tensor") or op.arg("alpha") is not None:
        return None
    both = [_aligned(text_of(op, each), len(shape), flow) for each in ("self", "other")]
    left, right = both
    if left is None or right is None:
        return None
    if op.kind == "aten.add.Tensor":
        steps = tuple(a + b for a, b in zip(left.steps, right.steps, strict=True))
        return Places(left.start + right.start, steps)
    if any(step != 0 for step in right.steps):
        left, right = right, left
    if any(step != 0 for step in right.steps):
        return None
    return Places(left.start * right.start, tuple(step * right.start for step in left.steps))


def _aligned(name: str, rank: int, flow: Dataflow) -> Places | None:
    """Returns the places of an operand that broadcasts to so many dimensions."""
    found = places(name, flow) if name else None
    if found is None:
        return None
    return Places(found.start, (*(0,) * (rank - len(found.steps)), *found.steps))


def _viewed(found: Places, source: Sequence[IntExpr], target: Sequence[IntExpr]) -> Places | None:
    """Returns places under other sizes: without dimensions of size 1, or as one dimension."""
    kept = [(size, step) for size, step in zip(source, found.steps, strict=True) if size != 1]
    wanted = [size for size in target if size != 1]
    if [size for size, _ in kept] != wanted:
        whole = _as_one(kept)
        if whole is None or [whole[0]] != wanted:
            return None
        kept = [whole]
    steps = iter(step for _, step in kept)
    return Places(found.start, tuple(0 if size == 1 else next(steps) for size in target))


def _as_one(
    dims: Sequence[tuple[IntExpr, IntExpr]],
) -> tuple[IntExpr, IntExpr] | None:
    """Returns the size and step of dimensions as one; None if they don't go on evenly."""
    if not dims:
        return None
    *outer, (size, step) = dims
    for more, wide in reversed(outer):
        if wide != size * step:
            return None
        size = more * size
    return size, step
