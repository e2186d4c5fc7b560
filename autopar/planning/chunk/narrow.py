"""Slices that begin where their operand does, as `logits[:, :-1]`, and their gradients.

A part of such a slice is the same part of what it is a slice of, and so is its gradient. Only the
last parts differ in size. So they are cut along the dimension, though each index of the gradient
needs to know where the slice ends, if every iteration has whole blocks of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autopar.ir import emitted
from autopar.ir.dims import block_size
from autopar.ir.ops import rule_of
from autopar.ir.program import Op, Value
from autopar.planning.chunk.split import Cut, Cutting, Inadmissible, Misaligned


@dataclass(frozen=True)
class Narrowing(Cutting):
    """A slice, or its gradient, as iterations share it.

    Attributes:
        dim: The dimension that it is a slice of.
    """

    dim: int

    @property
    def inner(self) -> int:
        """How many elements there are of the result, of which iterations compute parts."""
        (part,) = self.results
        assert isinstance(part, Cut)
        return part.inner

    def local(self, op: Op, *, is_rest: bool) -> Op:
        """Returns the op of a part.

        Args:
            op: The op.
            is_rest: Whether that is the last, smaller part.
        """
        (before,), (after,) = self.operands, self.results
        assert isinstance(before, Cut)
        assert isinstance(after, Cut)
        end = min(before.rest, after.rest) if is_rest else before.block
        if not is_rest or op.kind == emitted.SLICE:
            same = emitted.slice_(0, end, self.dim).with_operand(op.operands[0])
            return same.instead_of(op, op.results[0])
        sizes = op.arg("input_sizes")
        assert isinstance(sizes, tuple)
        whole = (*sizes[: self.dim], after.rest, *sizes[self.dim + 1 :])
        return op.with_args({"input_sizes": whole, "dim": self.dim, "start": 0, "end": end})


def narrowing_of(op: Op, values: Mapping[str, Value], cut: Cut, operand: int) -> Narrowing | None:
    """Returns a slice, or its gradient, as iterations share it; None of what is none.

    Args:
        op: The op.
        values: Those of its function.
        cut: Of its operand, or else its result.
        operand: -1 of its result.

    Raises:
        Misaligned: If other parts would do.
        Inadmissible: If no parts do.
    """
    rule = rule_of(op, values) if op.kind in (emitted.SLICE, emitted.SLICE_BACKWARD) else None
    if rule is None or op.arg("start", 0) not in (0, None) or op.arg("step", 1) != 1:
        return None
    (name,), (result,) = op.operands, op.results
    before, after = values[name].shape, values[result].shape
    dim = op.arg("dim", 0)
    assert isinstance(dim, int)
    dim %= len(before)
    if cut.dim != dim or before[dim] == after[dim]:
        return None
    cuts = [cut._replace(inner=size) for size in (before[dim], after[dim]) if type(size) is int]
    if cut.outer > 1 or len(cuts) < 2:
        raise Inadmissible("it is a slice of what is cut")
    _check(*cuts)
    factor = next(iter((rule.results if operand < 0 else rule.operands)[0][dim]))
    return Narrowing(rule, factor, 1, cut.block, (), (cuts[0],), (cuts[1],), dim)


def _check(before: Cut, after: Cut) -> None:
    for each in (before, after):
        is_even = block_size(each.inner, each.parts) == each.block
        if before.full != after.full or not each.rest or not is_even:
            raise Misaligned("a slice of it has only a part of an iteration's block")
