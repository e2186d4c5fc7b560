"""Lookups and writes at positions that an index operand holds."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.ir.ops.pointwise import broadcast_dims
from autopar.ir.ops.table import (
    MOVED,
    RuleFunction,
    Table,
    axis,
    factors,
    operand_dims,
    pending,
    row,
    same,
)
from autopar.ir.rule import (
    ALL_MONOIDS,
    Dims,
    OpCall,
    Rule,
    RuleError,
    Size,
    build_rule,
    make_rule,
)


def _outside(call: OpCall) -> str:
    """Returns the monoid that joins shards of a lookup: outside its block, a shard has zeros."""
    return "any" if call.results[0].dtype == "bool" else "sum"


def embedding(call: OpCall) -> Rule | None:
    """aten.embedding: rows of `weight` at `indices`; a shard of rows leaves zeros elsewhere."""
    return make_rule(
        "v e, *b -> *b e",
        call,
        reduce={"v": _outside(call)},
        indexed={"v": "autopar.embedding"},
        linear=MOVED,
        work=0,
    )


def embedding_backward(call: OpCall) -> Rule | None:
    """aten.embedding_dense_backward: adds rows of the gradient at `indices`."""
    return make_rule(
        "*b e, *b -> v e",
        call,
        reduce=dict.fromkeys((f"b{at}" for at in range(len(call.operands[1].shape))), "sum"),
        indexed={"v": "autopar.embedding_dense_backward"},
        local={"num_weights": Size(("v",))},
        linear=(pending(0),),
        # Rows are counted over the whole batch.
        whole=("*b", "v") if call.flag("scale_grad_by_freq") else (),
        work=0,
    )


def index_select(call: OpCall) -> Rule | None:
    """aten.index_select: the entries of `dim` at the positions in a vector `index`."""
    rank = len(call.operands[0].shape)
    if rank == 0:
        return None
    at = axis(call, rank)
    dims = factors("i", rank)
    index: Dims = (("j",),) if call.operands[1].shape else ()
    result: Dims = (*dims[:at], ("j",) if index else (), *dims[at + 1 :])
    return build_rule(
        call,
        operand_dims(call, {"self": dims, "index": index}),
        [result],
        reduce={f"i{at}": _outside(call)},
        indexed={f"i{at}": "autopar.index_select"},
        linear=MOVED,
        work=0,
    )


def _along_index(shapes: Sequence[Sequence[int]], at: int) -> tuple[list[Dims], list[str]]:
    """Returns the factors of tensors that are indexed together but along dimension `at`.

    A dimension is split alike only where all have the same size: else an index reads or writes a
    leading part of it.
    """
    whole: list[str] = []
    rank = len(shapes[0])
    tensors: list[list[tuple[str, ...]]] = [[] for _ in shapes]
    for dim in range(rank):
        alike = dim != at and len({shape[dim] for shape in shapes}) == 1
        for position, tensor in enumerate(tensors):
            name = f"i{dim}" if alike else f"s{position}_{dim}"
            tensor.append((name,))
            if not alike and dim != at:
                whole.append(name)
    return [tuple(tensor) for tensor in tensors], whole


def gather(call: OpCall) -> Rule | None:
    """aten.gather: along `dim`, the entries at `index`, whose shape is the result's."""
    shapes = [operand.shape for operand in call.operands]
    if not shapes[0] or len(shapes[1]) != len(shapes[0]):
        return None
    at = axis(call, len(shapes[0]))
    (source, index), whole = _along_index(shapes, at)
    return build_rule(
        call,
        [source, index],
        [index],
        whole=whole,
        reduce={source[at][0]: _outside(call)},
        indexed={source[at][0]: "autopar.gather"},
        linear=MOVED,
        work=0,
    )


def scatter(own: str, *together: int, monoids: Sequence[str] = ()) -> RuleFunction:
    """Returns the rule function of a write along `dim` at `index`; a shard of `dim` skips others.

    Args:
        own: The op that computes a shard.
        together: The operands that may be pending together.
        monoids: The reductions that may be pending.
    """

    def rule(call: OpCall) -> Rule | None:
        shapes = [operand.shape for operand in call.operands]
        if not shapes[0] or any(len(shape) != len(shapes[0]) for shape in shapes):
            return None
        at = axis(call, len(shapes[0]))
        operands, whole = _along_index(shapes, at)
        whole.extend(operand[at][0] for operand in operands[1:])
        if len(shapes) > 2 and shapes[1][at] == shapes[2][at]:
            operands[2] = (*operands[2][:at], operands[1][at], *operands[2][at + 1 :])
        return build_rule(
            call,
            operands,
            [operands[0]],
            whole=whole,
            indexed={operands[0][at][0]: own},
            linear=(pending(*together, monoids=monoids),) if monoids else (),
            work=0,
        )

    return rule


def scatter_value(call: OpCall) -> Rule | None:
    """aten.scatter.value: zeros may be written into each of pending pieces."""
    monoids = ("sum",) if call.args.get("value") == 0 else ()
    return scatter("autopar.scatter_value", 0, monoids=monoids)(call)


def _indexed_positions(call: OpCall, rank: int) -> list[int]:
    """Returns the dimensions that `indices` index.

    Raises:
        RuleError: If there are more than `rank`.
    """
    indices = call.args.get("indices", ())
    items = indices if isinstance(indices, tuple) else (indices,)
    if len(items) > rank:
        raise RuleError(f"{call.kind}: {len(items)} indices of a tensor with {rank} dimensions")
    return [at for at, item in enumerate(items) if item is not None]


def _advanced(call: OpCall) -> tuple[Dims, list[Dims], Dims, list[str]] | None:
    """Returns the factors of an indexed tensor, of the indices and of what they select.

    None if an index is a mask, as the selected shape then depends on the data.
    """
    at = call.positions["indices"]
    if any(call.operands[position].dtype in ("bool", "u8") for position in at):
        return None
    shape = call.operands[0].shape
    positions = _indexed_positions(call, len(shape))
    broadcast = _broadcast([call.operands[position].shape for position in at])
    chosen = tuple((f"j{dim}",) for dim in range(len(broadcast)))
    indices: list[Dims] = [
        tuple((f"j{name[0][1:]}",) if name else () for name in dims)
        for dims in (broadcast_dims(call.operands[p].shape, broadcast) for p in at)
    ]
    own = factors("i", len(shape))
    rest = [dim for dim in range(len(shape)) if dim not in positions]
    # Indices of neighbouring dimensions are replaced in place, others come first.
    adjacent = positions == list(range(positions[0], positions[-1] + 1)) if positions else True
    lead = positions[0] if positions and adjacent else 0
    selected = (
        *(own[dim] for dim in rest[:lead]),
        *chosen,
        *(own[dim] for dim in rest[lead:]),
    )
    return own, indices, selected, [f"i{dim}" for dim in positions]


def _broadcast(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(*(1,) * (rank - len(shape)), *shape) for shape in shapes]
    return tuple(next((s for s in sizes if s != 1), 1) for sizes in zip(*padded, strict=True))


def index(call: OpCall) -> Rule | None:
    """aten.index.Tensor with integer indices."""
    found = _advanced(call)
    if found is None:
        return None
    own, indices, selected, whole = found
    return build_rule(call, [own, *indices], [selected], whole=whole, linear=MOVED, work=0)


def index_put(call: OpCall) -> Rule | None:
    """aten.index_put with integer indices: `values` broadcast to what the indices select."""
    found = _advanced(call)
    if found is None:
        return None
    own, indices, selected, whole = found
    sizes = dict(zip((n for (n,) in own), call.operands[0].shape, strict=True))
    shapes = _broadcast([call.operands[p].shape for p in call.positions["indices"]])
    sizes |= {f"j{at}": size for at, size in enumerate(shapes)}
    target = [sizes[name] for (name,) in selected]
    values = call.operands[-1].shape
    skip = len(selected) - len(values)
    if skip < 0:
        return None
    written = tuple(
        selected[skip + at] if size == target[skip + at] else () for at, size in enumerate(values)
    )
    last = len(call.operands) - 1
    monoids = ("sum",) if call.flag("accumulate") else ALL_MONOIDS
    return build_rule(
        call,
        [own, *indices, written],
        [own],
        whole=[*whole, *(f"j{at}" for at in range(len(shapes)))],
        linear=(pending(0, last, monoids=monoids),),
        work=0,
    )


def along_vector(source: str) -> RuleFunction:
    """Returns the rule function of a write along `dim` at a vector of positions.

    Args:
        source: Name of the argument that holds what is written, if it is a tensor.
    """

    def rule(call: OpCall) -> Rule | None:
        rank = len(call.operands[0].shape)
        if rank == 0:
            return None
        at = axis(call, rank)
        dims = factors("i", rank)
        index_dims: Dims = (("j",),) if call.operands[1].shape else ()
        written: Dims = (*dims[:at], ("j",) if index_dims else (), *dims[at + 1 :])
        by_name = {"self": dims, "index": index_dims}
        return build_rule(
            call,
            operand_dims(call, {**by_name, source: written} if source else by_name),
            [dims],
            whole=(f"i{at}", "j"),
            linear=(pending(0, 2),) if source else (),
            work=0,
        )

    return rule


def searchsorted(call: OpCall) -> Rule | None:
    """aten.searchsorted.Tensor: where each value belongs in a sorted row, or in the only one."""
    if call.args.get("sorter") is not None:
        return None
    if len(call.operands[0].shape) == 1:
        return make_rule("n, *b -> *b", call, whole=("n",))
    return make_rule("*b n, *b m -> *b m", call, whole=("n",))


RULES: Table = {
    "aten.embedding.default": embedding,
    "aten.embedding_dense_backward.default": embedding_backward,
    "aten.index_select.default": index_select,
    "aten.gather.default": gather,
    "aten.index.Tensor": index,
    "aten._unsafe_index.Tensor": index,
    "aten.index_put.default": index_put,
    "aten._unsafe_index_put.default": index_put,
    "aten.scatter.src": scatter("autopar.scatter", 0, 2, monoids=tuple(sorted(ALL_MONOIDS))),
    "aten.scatter.value": scatter_value,
    "aten.scatter_add.default": scatter("autopar.scatter_add", 0, 2, monoids=("sum",)),
    "aten.scatter_reduce.two": scatter("autopar.scatter_reduce"),
    "aten.index_add.default": along_vector("source"),
    "aten.index_copy.default": along_vector("source"),
    "aten.index_fill.int_Scalar": along_vector(""),
    "aten.searchsorted.Tensor": searchsorted,
    "aten.bucketize.Tensor": row("*b, n -> *b", whole=("n",)),
    **same(["aten.take.default"], row("*v, *j -> *j", whole=("*v",), linear=MOVED, work=0)),
}
