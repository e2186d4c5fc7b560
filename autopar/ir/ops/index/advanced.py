"""Indexing with a list of index tensors, as `x[:, rows, columns]` does.

The indices broadcast to one shape, which replaces the dimensions that they index. A shard of one
such dimension looks up, or writes, what lies in its block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.ir.expr.expression import IntExpr, shape_str
from autopar.ir.ops.elementwise.pointwise import broadcast_dims
from autopar.ir.ops.index.writing import splitting
from autopar.ir.ops.shape.sizes import broadcast
from autopar.ir.ops.table import (
    IDEMPOTENT,
    MOVED,
    ZERO_FILLED,
    RuleFunction,
    Table,
    chosen,
    factors,
    pending,
    same,
)
from autopar.ir.rules.rule import Dims, OpCall, Rule, RuleError, Shard, build_rule


@dataclass(frozen=True)
class Selection:
    """The factors of what is indexed with a list of indices.

    Attributes:
        own: Those of the indexed tensor.
        indices: Those of each index.
        chosen: Those of the shape to which the indices broadcast.
        selected: Those of what they select.
        shape: The shape of what they select.
        positions: The dimensions that are indexed.
    """

    own: Dims
    indices: tuple[Dims, ...]
    chosen: Dims
    selected: Dims
    shape: tuple[IntExpr, ...]
    positions: tuple[int, ...]

    @property
    def addressed(self) -> list[str]:
        """The factors that the indices address."""
        return [f"i{dim}" for dim in self.positions]

    def shards(self, call: OpCall, kind: str) -> dict[str, Shard]:
        """Returns the op that computes a shard of each addressed factor."""
        shape = call.operands[0].shape
        return {f"i{at}": Shard(kind, {"dim": at, "extent": shape[at]}) for at in self.positions}

    def written(self, shape: Sequence[IntExpr]) -> Dims:
        """Returns the factors of values of this shape, which broadcast to what is selected.

        Raises:
            RuleError: If they have more dimensions than what is selected.
        """
        skip = len(self.selected) - len(shape)
        if skip < 0:
            raise RuleError(f"values {shape_str(shape)} don't broadcast to {shape_str(self.shape)}")
        return tuple(
            () if size == 1 and self.shape[skip + at] != 1 else self.selected[skip + at]
            for at, size in enumerate(shape)
        )


def selection(call: OpCall) -> Selection:
    """Returns the factors of a tensor, the first operand, that integers in `indices` index.

    Raises:
        RuleError: If there are more indices than dimensions.
    """
    shape, at = call.operands[0].shape, call.positions["indices"]
    positions = _positions(call, len(shape))
    together = broadcast([call.operands[position].shape for position in at])
    chosen = factors("j", len(together))
    indices = tuple(
        tuple((f"j{name[0][1:]}",) if name else () for name in dims)
        for dims in (broadcast_dims(call.operands[p].shape, together) for p in at)
    )
    own = factors("i", len(shape))
    rest = [dim for dim in range(len(shape)) if dim not in positions]
    # Indices of neighbouring dimensions are replaced in place, others come first.
    adjacent = not positions or positions == list(range(positions[0], positions[-1] + 1))
    lead = positions[0] if positions and adjacent else 0
    selected = (*(own[dim] for dim in rest[:lead]), *chosen, *(own[dim] for dim in rest[lead:]))
    kept = [shape[dim] for dim in rest]
    sizes = (*kept[:lead], *together, *kept[lead:])
    return Selection(own, indices, chosen, selected, sizes, tuple(positions))


def _positions(call: OpCall, rank: int) -> list[int]:
    indices = call.args.get("indices", ())
    items = indices if isinstance(indices, tuple) else (indices,)
    if len(items) > rank:
        raise RuleError(f"{call.kind}: {len(items)} indices of a tensor with {rank} dimensions")
    return [at for at, item in enumerate(items) if item is not None]


def _masks(call: OpCall) -> list[int]:
    """Returns which operands are indices that select by a mask."""
    at = call.positions["indices"]
    return [position for position in at if call.operands[position].dtype in ("bool", "u8")]


def index(call: OpCall) -> Rule | None:
    """aten.index.Tensor: integer indices, or one mask, in whose place is what it selects."""
    if _masks(call):
        return _masked_index(call)
    found = selection(call)
    outside = "any" if call.results[0].dtype == "bool" else "sum"
    return build_rule(
        call,
        [found.own, *found.indices],
        [found.selected],
        reduce=dict.fromkeys(found.addressed, outside),
        indexed=found.shards(call, "autopar.index"),
        linear=MOVED,
        work=0,
    )


def _masked_index(call: OpCall) -> Rule | None:
    """What a mask selects. How much it is depends on the data, and was known when it was traced."""
    if len(call.operands) > 2:
        return None
    (first,) = _positions(call, len(call.operands[0].shape))
    own, mask = factors("i", len(call.operands[0].shape)), len(call.operands[1].shape)
    return build_rule(
        call,
        [own, own[first : first + mask]],
        [(*own[:first], ("k",), *own[first + mask :])],
        whole=("k", *(name for (name,) in own[first : first + mask])),
        linear=MOVED,
        work=0,
    )


def index_put(call: OpCall) -> Rule | None:
    """aten.index_put: `values` broadcast to what is selected, and replace it or add to it."""
    if _masks(call):
        return _masked_put(call)
    found = selection(call)
    last = len(call.operands) - 1
    added = call.flag("accumulate")
    writes = splitting(call, (name for (name,) in found.chosen), "sum" if added else "")
    return build_rule(
        call,
        [found.own, *found.indices, found.written(call.operands[-1].shape)],
        [found.own],
        whole=writes.whole,
        reduce=writes.reduce,
        once=writes.once,
        indexed=found.shards(call, "autopar.index_put"),
        linear=(pending(0, last),) if added else chosen(0, last),
        work=0,
    )


def _masked_put(call: OpCall) -> Rule | None:
    """A write where a mask, the only index, says so.

    Values that are the same in each place may be written into any part.
    """
    if len(call.operands) > 3:
        return None
    shape, mask, values = (operand.shape for operand in call.operands)
    (first,) = _positions(call, len(shape))
    own = factors("i", len(shape))
    behind = first + len(mask)
    target = (*own[:first], ("k",), *own[behind:])
    sizes = (*shape[:first], None, *shape[behind:])
    skip = len(target) - len(values)
    if skip < 0:
        return None
    written = tuple(
        () if size == 1 and sizes[skip + at] != 1 else target[skip + at]
        for at, size in enumerate(values)
    )
    each = ("k",) in written
    return build_rule(
        call,
        [own, own[first:behind], written],
        [own],
        whole=("k", *(name for (name,) in own[first:behind])) if each else (),
        linear=(pending(0, 2),) if call.flag("accumulate") else chosen(0, 2),
        work=0,
    )


def masked_index(write: bool) -> RuleFunction:
    """Returns the rule function of a lookup or sum at `indices`, but where `mask` is false."""

    def rule(call: OpCall) -> Rule | None:
        found = selection(call)
        mask = call.tensor("mask")
        if mask is None or _masks(call):
            return None
        tensors = [found.own, found.written(mask.shape), *found.indices]
        if not write:
            zero = call.args.get("fill") == 0
            linear = ZERO_FILLED if zero else (pending(0, monoids=IDEMPOTENT),)
            return build_rule(
                call, tensors, [found.selected], whole=found.addressed, linear=linear, work=0
            )
        tensors.append(found.written(call.operands[-1].shape))
        writes = splitting(call, (name for (name,) in found.chosen), "sum")
        return build_rule(
            call,
            tensors,
            [found.own],
            whole=[*writes.whole, *found.addressed],
            reduce=writes.reduce,
            once=writes.once,
            linear=(pending(0, len(tensors) - 1),),
            work=0,
        )

    return rule


RULES: Table = {
    **same(["aten.index.Tensor", "aten._unsafe_index.Tensor"], index),
    **same(["aten.index_put.default", "aten._unsafe_index_put.default"], index_put),
    "aten._unsafe_masked_index.default": masked_index(write=False),
    "aten._unsafe_masked_index_put_accumulate.default": masked_index(write=True),
}
