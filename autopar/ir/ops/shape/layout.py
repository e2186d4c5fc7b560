"""Ops that rearrange elements: permute, expand, slice, cat, pad, ..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autopar.ir.expr.expression import IntExpr
from autopar.ir.expr.facts import divides
from autopar.ir.ops.shape.sizes import common_block, integers
from autopar.ir.ops.table import (
    FIRST,
    IDEMPOTENT,
    MOVED,
    Table,
    axes,
    axis,
    copies,
    factors,
    pending,
    row,
    same,
    whole,
)
from autopar.ir.rules.local_arg import LocalArg, Size, Sizes
from autopar.ir.rules.rule import (
    ALL_MONOIDS,
    Dims,
    OpCall,
    Rule,
    RuleError,
    build_rule,
    make_rule,
)
from autopar.ir.rules.window import Window


def moved(call: OpCall, operand: Dims, result: Dims, whole: Sequence[str] = ()) -> Rule:
    """Returns the rule of an op that moves the elements of its one operand."""
    return build_rule(call, [operand], [result], whole=whole, linear=MOVED, work=0)


def permute(call: OpCall) -> Rule | None:
    """aten.permute, with the operand's dimension of each of the result's in `dims`."""
    rank = len(call.operands[0].shape)
    dims = factors("i", rank)
    order = [at % rank for at in call.integers("dims")]
    return moved(call, dims, tuple(dims[at] for at in order))


def transpose(call: OpCall) -> Rule | None:
    """aten.transpose.int, of `dim0` and `dim1`."""
    rank = len(call.operands[0].shape)
    dims = list(factors("i", rank))
    operand = tuple(dims)
    first, second = axis(call, rank, "dim0"), axis(call, rank, "dim1")
    if rank:
        dims[first], dims[second] = dims[second], dims[first]
    return moved(call, operand, tuple(dims))


def t(call: OpCall) -> Rule | None:
    """aten.t, of a matrix or a vector."""
    dims = factors("i", len(call.operands[0].shape))
    return moved(call, dims, tuple(reversed(dims)))


def unsqueeze(call: OpCall) -> Rule | None:
    """aten.unsqueeze, a new dimension of size 1."""
    rank = len(call.operands[0].shape)
    at = axis(call, rank + 1)
    dims = factors("i", rank)
    return moved(call, dims, (*dims[:at], (), *dims[at:]))


def squeeze(call: OpCall) -> Rule | None:
    """aten.squeeze: without the dimensions that have size 1, of those in `dim` or of all.

    A dimension that stays because it is larger must not be split into pieces of size 1.
    """
    shape = call.operands[0].shape
    named = axes(call, len(shape)) if "dim" in call.args else frozenset(range(len(shape)))
    dims = factors("i", len(shape))
    operand = tuple(() if size == 1 and at in named else dims[at] for at, size in enumerate(shape))
    whole = [f"i{at}" for at in named if shape[at] != 1]
    return moved(call, operand, tuple(dim for dim in operand if dim), whole)


def expand(call: OpCall) -> Rule | None:
    """aten.expand: dimensions of size 1, and new leading ones, are repeated."""
    operand, result = call.operands[0].shape, call.results[0].shape
    skip = len(result) - len(operand)
    dims = factors("i", len(result))
    narrow = tuple(
        () if size == 1 and result[skip + at] != 1 else dims[skip + at]
        for at, size in enumerate(operand)
    )
    local = {"size": Sizes(dims)}
    return build_rule(call, [narrow], [dims], linear=MOVED, local=local, work=0)


def repeat(call: OpCall) -> Rule | None:
    """aten.repeat: element `r * size + i` of a dimension is the operand's element `i`."""
    operand, times = call.operands[0].shape, integers(call, "repeats")
    skip = len(times) - len(operand)
    if 0 in times or 0 in operand:
        return whole(call, MOVED)
    dims = factors("i", len(operand), skip)
    sizes: dict[str, IntExpr] = {f"r{at}": count for at, count in enumerate(times)}
    sizes |= {f"i{skip + at}": size for at, size in enumerate(operand)}
    result = tuple((f"r{at}",) if at < skip else (f"r{at}", f"i{at}") for at in range(len(times)))
    local = {"repeats": Sizes(tuple((f"r{at}",) for at in range(len(times))))}
    return build_rule(call, [dims], [result], sizes=sizes, linear=MOVED, local=local, work=0)


def blocks(
    call: OpCall,
    at: int,
    dims: Dims,
    block: IntExpr,
    local: Mapping[str, LocalArg],
    windows: Mapping[str, Window] | None = None,
) -> Rule:
    """Returns the rule of an op that takes or puts blocks of this size along a dimension.

    The dimension is `(s0 e)`, `(s1 e)`, ... in the operands and `(r0 e)`, ... in the results,
    without `e` if a block is one element. `e` may be split, and what windows are of; the others
    not.

    Args:
        call: The call.
        at: The dimension.
        dims: The factors of all dimensions.
        block: Elements of a block.
        local: As in `Rule`.
        windows: How the operands' blocks are read.
    """
    whole: list[str] = []
    names = ("e",) if block != 1 else ()
    sizes: dict[str, IntExpr] = dict.fromkeys(names, block)

    def tensor(name: str, size: IntExpr) -> Dims:
        whole.append(name)
        sizes[name] = size // block
        return (*dims[:at], (name, *names), *dims[at + 1 :])

    # A vector [0] in a cat has no such dimension; torch skips it.
    operands = [
        tensor(f"s{position}", operand.shape[at])
        if len(operand.shape) == len(dims)
        else tensor(f"s{position}", 0)[at : at + 1]
        for position, operand in enumerate(call.operands)
    ]
    results = [tensor(f"r{n}", result.shape[at]) for n, result in enumerate(call.results)]
    together = pending(*range(len(operands)), monoids=ALL_MONOIDS)
    split = {window.of for window in (windows or {}).values()}
    return build_rule(
        call,
        operands,
        results,
        sizes=sizes,
        whole=[name for name in whole if name not in split],
        linear=(together,),
        windows=windows,
        local=local if names or windows else None,
        work=0,
    )


def unbind(call: OpCall) -> Rule | None:
    """aten.unbind.int: each entry of the dimension `dim`."""
    rank = len(call.operands[0].shape)
    at = axis(call, rank)
    dims = factors("i", rank)
    results = [dims[:at] + dims[at + 1 :]] * len(call.results)
    return build_rule(call, [dims], results, whole=dims[at], linear=MOVED, work=0)


def split(call: OpCall) -> Rule | None:
    """aten.split and its kin: results are pieces along `dim`, of blocks of a common size."""
    shape = call.operands[0].shape
    at = axis(call, len(shape))
    pieces = [result.shape[at] for result in call.results]
    block = common_block(pieces)
    dims = factors("i", len(shape))
    local: dict[str, LocalArg] = {}
    if "split_sizes" in call.args:
        local["split_sizes"] = Sizes(tuple((f"r{n}", "e") for n in range(len(pieces))))
    elif "split_size" in call.args:
        local["split_size"] = Size(("e",), pieces[0] // block)
    elif len(set(pieces)) > 1:
        block = 1  # aten.chunk of unequal pieces
    return blocks(call, at, dims, block, local)


def stack(call: OpCall) -> Rule | None:
    """aten.stack: a new dimension, one entry per operand."""
    rank = len(call.operands[0].shape)
    at = axis(call, rank + 1)
    dims = factors("i", rank)
    return build_rule(
        call,
        [dims] * len(call.operands),
        [(*dims[:at], ("n",), *dims[at:])],
        whole=("n",),
        linear=(pending(*range(len(call.operands)), monoids=ALL_MONOIDS),),
        work=0,
    )


def _with(dims: Dims, at: int, name: str) -> Dims:
    return (*dims[:at], (name,), *dims[at + 1 :])


def unfold_backward(call: OpCall) -> Rule | None:
    """aten.unfold_backward: adds windows up where they lie."""
    shape = call.results[0].shape
    if not shape:
        return whole(call, FIRST)
    dims, windows, fixed = _windows(call, shape, "dim")
    local = {"input_sizes": Sizes(dims)}
    return build_rule(call, [windows], [dims], whole=fixed, linear=FIRST, local=local, work=0)


def _windows(call: OpCall, shape: Sequence[IntExpr], argument: str) -> tuple[Dims, Dims, list[str]]:
    """Returns the factors of a tensor, and of its windows, and which must not be split."""
    at = axis(call, len(shape), argument)
    size, step = call.integer("size", 1), call.integer("step", 1)
    dims = factors("i", len(shape))
    windows = (*_with(dims, at, "w"), ("e",))
    if size == step and divides(size, shape[at]):
        return (*dims[:at], ("w", "e"), *dims[at + 1 :]), windows, ["e"]
    return dims, windows, [f"i{at}", "w", "e"]


def block_diagonal(call: OpCall) -> Rule | None:
    """aten.block_diag: each matrix is somewhere in the result, and zeros are elsewhere."""
    every = range(len(call.operands))
    return whole(call, (pending(*every, monoids=IDEMPOTENT | {"sum"}),))


def chunk_cat(call: OpCall) -> Rule | None:
    """aten._chunk_cat: pieces of `dim` of all tensors, padded with zeros, side by side."""
    at = axis(call, len(call.operands[0].shape))
    lead = factors("i", at)
    operands = [
        (*lead, *factors(f"s{position}_", len(operand.shape) - at))
        for position, operand in enumerate(call.operands)
    ]
    results = [(*lead, ("n",), ("c",))]
    fixed = ["n", "c", *(name for operand in operands for (name,) in operand[at:])]
    every = pending(*range(len(operands)), monoids=IDEMPOTENT | {"sum"})
    return build_rule(call, operands, results, whole=fixed, linear=(every,), work=0)


def pixel_shuffle(call: OpCall) -> Rule | None:
    """aten.pixel_shuffle: channels (c a b) become c channels of pixels (h a) by (w b)."""
    factor = call.integer("upscale_factor", 1)
    return make_rule(
        "*n (c a b) h w -> *n c (h a) (w b)",
        call,
        sizes={"a": factor, "b": factor},
        whole=("a", "b"),
        linear=MOVED,
        work=0,
    )


def pixel_unshuffle(call: OpCall) -> Rule | None:
    """aten.pixel_unshuffle, the inverse of aten.pixel_shuffle."""
    factor = call.integer("downscale_factor", 1)
    return make_rule(
        "*n c (h a) (w b) -> *n (c a b) h w",
        call,
        sizes={"a": factor, "b": factor},
        whole=("a", "b"),
        linear=MOVED,
        work=0,
    )


def repeat_interleave(call: OpCall) -> Rule | None:
    """aten.repeat_interleave.self_int: element `i` of `dim` becomes the elements `i r`."""
    if call.args.get("dim") is None:
        raise RuleError(f"{call.kind} without dim has no rule")
    rank = len(call.operands[0].shape)
    at, times = axis(call, rank), call.integer("repeats", 1)
    if times < 1:
        return None
    dims = factors("i", rank)
    result = (*dims[:at], (f"i{at}", "r"), *dims[at + 1 :])
    sizes: dict[str, IntExpr] = {"r": times, f"i{at}": call.operands[0].shape[at]}
    return build_rule(call, [dims], [result], sizes=sizes, whole=("r",), linear=MOVED, work=0)


RULES: Table = {
    **same(copies("permute.default"), permute),
    **same(copies("transpose.int"), transpose),
    **same(copies("t.default"), t),
    **same(copies("unsqueeze.default"), unsqueeze),
    **same(copies("squeeze.default", "squeeze.dim", "squeeze.dims"), squeeze),
    **same(copies("expand.default"), expand),
    **same(copies("unbind.int"), unbind),
    **same(copies("split.Tensor", "split_with_sizes.default"), split),
    **same(["aten.unsafe_split.Tensor", "aten.unsafe_split_with_sizes.default"], split),
    "aten.unfold_backward.default": unfold_backward,
    "aten.block_diag.default": block_diagonal,
    "aten._chunk_cat.default": chunk_cat,
    "aten.alias_copy.default": row("*b -> *b", linear=MOVED, work=0),
    "aten.chunk.default": split,
    "aten.repeat.default": repeat,
    "aten.repeat_interleave.self_int": repeat_interleave,
    "aten.stack.default": stack,
    "aten.pixel_shuffle.default": pixel_shuffle,
    "aten.pixel_unshuffle.default": pixel_unshuffle,
}
