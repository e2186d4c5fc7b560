"""Slices that begin where their operand does, as `logits[:, :-1]`, and their gradients.

A part of such a slice is the same part of what it is a slice of, and so is its gradient. Only the
last parts differ in size. So they are cut along the dimension, though each index of the gradient
needs to know where the slice ends, if every iteration has whole blocks of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autopar.ir import emitted
from autopar.ir.expr.facts import is_at_least, smaller
from autopar.ir.ops import rule_of
from autopar.ir.program import Op, Value
from autopar.planning.chunk.cut import Cut
from autopar.planning.chunk.split import Cutting, Inadmissible, Misaligned


@dataclass(frozen=True)
class Narrowing(Cutting):
    """A slice, or its gradient, as iterations share it.

    Attributes:
        dim: The dimension that it is a slice of.
    """

    dim: int

    def local(self, op: Op, at: int) -> Op:
        """Returns the op of a part.

        Args:
            op: The op.
            at: In which run it is, or behind all of them.
        """
        (before,), (after,) = self.operands, self.results
        assert isinstance(before, Cut)
        assert isinstance(after, Cut)
        is_rest = at == len(before.runs)
        end = smaller(before.rest, after.rest) if is_rest else before.size(at)
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
    if cut.outer != 1:
        raise Inadmissible("it is a slice of what is cut")
    cuts = [cut._replace(inner=size) for size in (before[dim], after[dim])]
    # Both have something left, which is behind all whole blocks of either.
    sizes = [run.block for run in cut.runs] + [each.rest for each in cuts]
    if any(each.rest == 0 for each in cuts) or not all(is_at_least(size, 0) for size in sizes):
        raise Misaligned("a slice of it has only a part of an iteration's block")
    factor = next(iter((rule.results if operand < 0 else rule.operands)[0][dim]))
    return Narrowing(rule, factor, cuts[1], (), (cuts[0],), (cuts[1],), dim)
