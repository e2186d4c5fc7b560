"""Which ops compute rows apart from each other: for each, where the rows are in its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

aten = torch.ops.aten


@dataclass(frozen=True)
class Found:
    """What is known of an op's results.

    Attributes:
        dims: Of each result, the dimension of the rows; None if it has none.
        fails: Whether rows that aren't there may come to something that isn't finite.
        moves: Whether the op moves elements without a change.
    """

    dims: Sequence[int | None]
    fails: bool = False
    moves: bool = False


@dataclass(frozen=True)
class Call:
    """A call of an op some of whose operands have rows.

    Attributes:
        args, kwargs: Its arguments.
        made: The tensors that it returned.
        dims: Along which dimension an operand has rows, by its identity.
        rows: The number of rows.
    """

    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    made: Sequence[Tensor]
    dims: Mapping[int, int]
    rows: int

    def dim(self, at: int = 0) -> int | None:
        """Returns the dimension of the rows of an argument."""
        return self.dims.get(id(self.args[at])) if at < len(self.args) else None

    def only(self, at: int = 0) -> int | None:
        """The same, if no other operand has rows."""
        return self.dim(at) if len(self.dims) == 1 else None

    def arg(self, at: int, name: str, default: Any = None) -> Any:
        """Returns an argument by position or name."""
        return self.args[at] if len(self.args) > at else self.kwargs.get(name, default)


Rule = Callable[[Call], Sequence[int | None] | None]


def followed(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    made: Sequence[Tensor],
    dims: Mapping[int, int],
    rows: int,
) -> Found | None:
    """Returns where the rows of an op's operands are in its results; None if rows meet in it.

    Args:
        func: The op.
        args, kwargs: Its arguments.
        made: The tensors that it returned.
        dims: Along which dimension an operand has rows, by its identity.
        rows: The number of rows.
    """
    call = Call(func, args, kwargs, made, dims, rows)
    rule = _RULES.get(func.overloadpacket) if hasattr(func, "overloadpacket") else None
    if rule is not None:
        found = rule(call)
        kind = func.overloadpacket
        if found is None:
            return None
        return Found(found, fails=kind in _LOOKING_UP, moves=kind in _MOVES)
    tags = getattr(func, "tags", ())
    if torch.Tag.pointwise not in tags or torch.Tag.nondeterministic_seeded in tags:
        return None
    place = _elementwise(call)
    return None if place is None else Found(place, fails=_fails(call))


def _elementwise(call: Call) -> Sequence[int | None] | None:
    behind: set[int] = set()
    operands = [x for x in pytree.tree_leaves((call.args, call.kwargs)) if isinstance(x, Tensor)]
    for each in operands:
        if id(each) in call.dims:
            behind.add(each.ndim - call.dims[id(each)])
    if len(behind) != 1:
        return None
    [place] = behind
    for each in operands:
        if id(each) not in call.dims and each.ndim >= place and each.shape[-place] != 1:
            return None
    return [each.ndim - place for each in call.made]


_SMOOTH = frozenset(
    getattr(aten, name)
    for name in (
        *("add", "sub", "rsub", "mul", "neg", "abs", "sign", "sgn", "square", "addcmul", "lerp"),
        *("relu", "relu6", "gelu", "silu", "sigmoid", "tanh", "softplus", "elu", "celu", "selu"),
        *("leaky_relu", "hardtanh", "hardswish", "hardsigmoid", "log_sigmoid_forward", "mish"),
        *("prelu", "_prelu_kernel", "threshold", "heaviside", "erf", "atan", "sin", "cos"),
        *("clamp", "clamp_min", "clamp_max", "minimum", "maximum", "where", "masked_fill"),
        *("floor", "ceil", "round", "trunc", "copy", "fill"),
        *("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite"),
        *("logical_and", "logical_or", "logical_not", "logical_xor"),
        *("bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor"),
    )
    if hasattr(aten, name)
)
"""Elementwise ops that are finite, and have finite gradients, wherever their operands are finite
and of no unusual size."""

_DIVISIONS = (aten.div, aten.floor_divide, aten.remainder, aten.fmod)


def _fails(call: Call) -> bool:
    kind = call.func.overloadpacket
    if kind in _SMOOTH:
        return False
    if kind in _DIVISIONS:
        return isinstance(call.args[1], Tensor)
    if kind is aten.pow and isinstance(call.args[1], (int, float)):
        power = call.args[1]
        return not (power >= 1 and float(power).is_integer())
    return True


def _mm(call: Call) -> Sequence[int | None] | None:
    left, right = call.dim(0), call.dim(1)
    if left == 0 and right is None:
        return [0]
    return [1] if right == 1 and left is None else None


def _addmm(call: Call) -> Sequence[int | None] | None:
    if call.dim(0) is not None:
        return None
    found = _mm(Call(call.func, call.args[1:], {}, call.made, call.dims, call.rows))
    bias = call.args[0]
    if found is None or (bias.ndim >= 2 - found[0] and bias.shape[found[0] - 2] != 1):  # type: ignore[operator]
        return None
    return found


def _bmm(call: Call) -> Sequence[int | None] | None:
    left, right = call.dim(0), call.dim(1)
    if left == 0 and right == 0:
        return [0]
    if left == 1 and right is None:
        return [1]
    return [2] if right == 2 and left is None else None


def _linear(call: Call) -> Sequence[int | None] | None:
    dim = call.only(0)
    return [dim] if dim is not None and dim < call.args[0].ndim - 1 else None


def _reshape(call: Call) -> Sequence[int | None] | None:
    dim = call.only(0)
    if dim is None:
        return None
    before, after = call.args[0].shape, call.made[0].shape
    ahead = math.prod(before[:dim])
    for at, size in enumerate(after):
        if size == call.rows and math.prod(after[:at]) == ahead:
            return [at]
    return None


def _same_place(call: Call) -> Sequence[int | None] | None:
    dim = call.only(0)
    return None if dim is None else [dim] * len(call.made)


def _expand(call: Call) -> Sequence[int | None] | None:
    dim = call.only(0)
    return None if dim is None else [call.made[0].ndim - call.args[0].ndim + dim]


def _repeat(call: Call) -> Sequence[int | None] | None:
    dim = call.only(0)
    if dim is None:
        return None
    at = call.made[0].ndim - call.args[0].ndim + dim
    return [at] if call.args[1][at] == 1 else None


def _permute(call: Call) -> Sequence[int | None] | None:
    dim = call.only(0)
    if dim is None:
        return None
    order = [each % call.args[0].ndim for each in call.args[1]]
    return [order.index(dim)]


def _transpose(call: Call) -> Sequence[int | None] | None:
    dim = call.only(0)
    ndim = call.args[0].ndim
    if dim is None:
        return None
    pair = (0, 1) if call.func is aten.t.default else (call.args[1], call.args[2])
    one, other = (each % ndim for each in pair)
    return [other if dim == one else one if dim == other else dim]


def _unsqueeze(call: Call) -> Sequence[int | None] | None:
    dim = call.only(0)
    if dim is None:
        return None
    at = call.args[1] % (call.args[0].ndim + 1)
    return [dim + (at <= dim)]


def _squeeze(call: Call) -> Sequence[int | None] | None:
    dim = call.only(0)
    if dim is None:
        return None
    return _reshape(call)


def _along_other(at: int, default: Any, *, drops: bool) -> Rule:
    """Returns the rule of ops along a dimension that isn't the rows'."""

    def rule(call: Call) -> Sequence[int | None] | None:
        dim = call.only(0)
        if dim is None:
            return None
        ndim = call.args[0].ndim
        along = call.arg(at, "dim", default)
        if along is None or along == []:
            return None
        along = {each % ndim for each in (along if isinstance(along, (list, tuple)) else [along])}
        if dim in along:
            return None
        keeps = not drops or call.made[0].ndim == ndim
        left = dim if keeps else dim - sum(each < dim for each in along)
        return [left] * len(call.made)

    return rule


def _slice(call: Call) -> Sequence[int | None] | None:
    if call.made[0].shape == call.args[0].shape:
        return _same_place(call)
    return _along_other(1, 0, drops=False)(call)


def _joined(call: Call) -> Sequence[int | None] | None:
    parts = call.args[0]
    dims = {call.dims.get(id(each)) for each in parts}
    if len(dims) != 1:
        return None
    [dim] = dims
    if dim is None:
        return None
    stacks = call.func is aten.stack.default
    at = call.arg(1, "dim", 0) % (parts[0].ndim + stacks)
    if stacks:
        return [dim + (at <= dim)]
    return None if at == dim else [dim]


def _layer_norm(call: Call) -> Sequence[int | None] | None:
    dim = call.only(0)
    ahead = call.args[0].ndim - len(call.args[1])
    exact = call.arg(4, "eps", None) == 0
    return None if dim is None or dim >= ahead or exact else [dim] * len(call.made)


def _gather(call: Call) -> Sequence[int | None] | None:
    dims = {call.dims.get(id(each)) for each in (call.args[0], call.args[2])}
    if len(dims) != 1 or None in dims:
        return None
    [dim] = dims
    return None if call.args[1] % call.args[0].ndim == dim else [dim]


def _made_anew(call: Call) -> Sequence[int | None] | None:
    return [None] * len(call.made)


def _rules() -> dict[Any, Rule]:
    table: dict[str, Rule] = {
        "mm": _mm,
        "addmm": _addmm,
        "bmm": _bmm,
        "linear": _linear,
        "view reshape _unsafe_view _reshape_alias": _reshape,
        "clone detach alias zeros_like ones_like full_like empty_like lift_fresh contiguous"
        " _to_copy": _same_place,
        "expand": _expand,
        "repeat": _repeat,
        "permute": _permute,
        "t transpose": _transpose,
        "unsqueeze": _unsqueeze,
        "squeeze": _squeeze,
        "select": _along_other(1, None, drops=True),
        "unbind": _along_other(1, 0, drops=True),
        "slice": _slice,
        "narrow": _along_other(1, 0, drops=False),
        "split split_with_sizes chunk": _along_other(2, 0, drops=False),
        "cat stack": _joined,
        "sum mean amax amin var std prod any all argmax argmin logsumexp max min": _along_other(
            1, None, drops=True
        ),
        "linalg_vector_norm": _along_other(2, None, drops=True),
        "_softmax _log_softmax softmax log_softmax cumsum": _along_other(1, None, drops=False),
        "topk": _along_other(2, -1, drops=False),
        "sort": _along_other(1, -1, drops=False),
        "native_layer_norm _fused_rms_norm rms_norm layer_norm": _layer_norm,
        "gather": _gather,
        "new_zeros new_ones new_empty new_full": _made_anew,
    }
    return {
        getattr(aten, name): rule
        for names, rule in table.items()
        for name in names.split()
        if hasattr(aten, name)
    }


_RULES = _rules()

_LOOKING_UP = frozenset(
    getattr(aten, name)
    for name in ("gather", "_softmax", "_log_softmax", "softmax", "log_softmax", "logsumexp")
)
"""Ops that fail for indices out of range, or where all is infinite."""

_MOVES = frozenset(
    getattr(aten, name)
    for name in (
        *("view", "reshape", "_unsafe_view", "clone", "detach", "alias", "squeeze", "unsqueeze"),
        *("select", "_to_copy", "slice"),
    )
)
