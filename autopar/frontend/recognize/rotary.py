"""Rotary embedding: `x * cos + turned(x) * sin`, whose halves are turned by a negation.

The halves are slices, or what a split makes.

`turned(x)` is `[-x2, x1]` for the halves `[x1, x2]` of the last dimension. So it is `[x2, x1]`, a
roll, by `[-sin1, sin2]`, which is computed once for all that are embedded at the same places.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from autopar.frontend.recognize.dataflow import Dataflow, Instead, dims_of, text_of
from autopar.ir.program import Arg, Op, Ref, Value

_MUL, _SLICE, _CAT = "aten.mul.Tensor", "aten.slice.Tensor", "aten.cat.default"
_SPLIT = "aten.split_with_sizes.default"


class Turned(NamedTuple):
    """A value whose halves are turned.

    Attributes:
        source: The value.
        ops: What turns it.
    """

    source: str
    ops: tuple[Op, ...]


class Half(NamedTuple):
    """A piece of the last dimension of a value.

    Attributes:
        source: The value.
        start: Where it begins.
        ops: What takes it.
    """

    source: str
    start: int
    ops: tuple[Op, ...]


def rotary(root: Op, flow: Dataflow) -> Instead | None:
    """Returns a roll, two products and a sum for what embeds by slices."""
    if root.kind != "aten.add.Tensor" or root.arg("alpha") is not None:
        return None
    addends = [flow.maker(text_of(root, each), _MUL) for each in ("self", "other")]
    for straight, crossed in (addends, addends[::-1]):
        if straight is not None and crossed is not None:
            found = _embedded(root, straight, crossed, flow)
            if found is not None:
                return found
    return None


def _embedded(root: Op, straight: Op, crossed: Op, flow: Dataflow) -> Instead | None:
    for one, other in (("self", "other"), ("other", "self")):
        turned, sin = _turned(text_of(crossed, one), flow), text_of(crossed, other)
        if turned is None or turned.source not in straight.operands or not sin:
            continue
        x = flow.value(turned.source)
        covered = (root, straight, crossed, *turned.ops)
        fits = (x.shape, x.dtype) == (flow.shape(root.results[0]), flow.value(sin).dtype)
        if fits and flow.shape(sin)[-1:] == x.shape[-1:] and flow.are_inner(covered, root):
            return _Writer(root, flow).rotary(straight, crossed, turned, sin)
    return None


def _turned(name: str, flow: Dataflow) -> Turned | None:
    """Returns what a value is, with its halves turned; None if it is anything else."""
    op = flow.maker(name, _CAT)
    if op is None or len(op.operands) != 2:
        return None
    last = len(flow.shape(name)) - 1
    negated = flow.maker(op.operands[0], "aten.neg.default")
    second = _half(text_of(negated, "self"), flow)
    first = _half(op.operands[1], flow)
    if negated is None or first is None or second is None or first.source != second.source:
        return None
    size = flow.shape(first.source)[-1]
    halves = isinstance(size, int) and (first.start, 2 * second.start) == (0, size)
    if not halves or dims_of(op.arg("dim", 0), last + 1) != (last,):
        return None
    if any(2 * flow.shape(each)[-1] != size for each in op.operands):
        return None
    return Turned(first.source, (op, negated, *first.ops, *second.ops))


def _half(name: str, flow: Dataflow) -> Half | None:
    """Returns the piece of the last dimension that a value is."""
    split = flow.maker(name, _SPLIT)
    if split is not None:
        return _part(name, split, flow)
    op = flow.maker(name, _SLICE)
    if op is None or op.arg("step", 1) != 1:
        return None
    last, start = len(flow.shape(name)) - 1, op.arg("start", 0)
    if dims_of(op.arg("dim", 0), last + 1) != (last,) or not isinstance(start, int) or start < 0:
        return None
    ops, source = [op], text_of(op, "self")
    while (whole := flow.maker(source, _SLICE)) is not None:
        if flow.shape(source) != flow.shape(text_of(whole, "self")):
            break
        ops.append(whole)
        source = text_of(whole, "self")
    return Half(source, start, tuple(ops))


def _part(name: str, split: Op, flow: Dataflow) -> Half | None:
    """Returns the piece of the last dimension that a part is."""
    last, sizes = len(flow.shape(name)) - 1, split.arg("split_sizes")
    if dims_of(split.arg("dim", 0), last + 1) != (last,) or not isinstance(sizes, tuple):
        return None
    known = [size for size in sizes if isinstance(size, int)]
    start = sum(known[: split.results.index(name)])
    return Half(text_of(split, "self"), start, (split,)) if len(known) == len(sizes) else None


class _Writer:
    """Writes ops in the place of another.

    Args:
        root: The op.
        flow: The program.
    """

    def __init__(self, root: Op, flow: Dataflow) -> None:
        self.root, self.flow = root, flow
        self.ops: list[Op] = []
        self.values: dict[str, Value] = {}

    def rotary(self, straight: Op, crossed: Op, turned: Turned, sin: str) -> Instead:
        """Returns what embeds by a roll."""
        x, last = turned.source, len(self.flow.shape(turned.source)) - 1
        size = self.flow.shape(x)[-1]
        assert isinstance(size, int)
        signed = self._signed(sin, size // 2)
        shifts: dict[str, Arg] = {"shifts": (size // 2,), "dims": (last,)}
        rolled = self._add("aten.roll.default", "rolled", x, {"self": Ref(x), **shifts})
        args = {"self": Ref(straight.results[0]), "tensor1": Ref(rolled), "tensor2": Ref(signed)}
        kind = "aten.addcmul.default"
        self.ops.append(replace(self.root, kind=kind, args=tuple(args.items())))
        return Instead((self.root, crossed, *turned.ops), self.ops, self.values)

    def _signed(self, sin: str, half: int) -> str:
        """Adds a table of sines of which the first half is negated."""
        last = len(self.flow.shape(sin)) - 1
        pieces = []
        for name, start in (("low", 0), ("high", half)):
            args: dict[str, Arg] = {"self": Ref(sin), "dim": last}
            args |= {"start": start, "end": start + half}
            pieces.append(self._add(_SLICE, name, sin, args, half))
        negated = self._add("aten.neg.default", "negated", sin, {"self": Ref(pieces[0])}, half)
        joined: dict[str, Arg] = {"tensors": (Ref(negated), Ref(pieces[1])), "dim": last}
        return self._add(_CAT, "signed", sin, joined)

    def _add(
        self, kind: str, hint: str, like: str, args: dict[str, Arg], size: int | None = None
    ) -> str:
        """Adds an op whose result is like a value, in one size maybe, and returns its name."""
        value = self.flow.value(like)
        name = self.flow.fresh(f"{self.root.results[0]}.{hint}")
        shape = value.shape if size is None else (*value.shape[:-1], size)
        self.values[name] = Value(name, value.dtype, shape)
        self.ops.append(replace(self.root, kind=kind, args=tuple(args.items()), results=(name,)))
        return name
