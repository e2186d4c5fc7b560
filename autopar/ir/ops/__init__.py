"""The op definitions: one factor rule per op, in tables by family.

`rule_of` is the only way to ask for a rule. Adding an op is adding a row to a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from autopar.ir.ops import loops
from autopar.ir.ops.create import creation, random
from autopar.ir.ops.elementwise import cast, gated, optimizer, pointwise, quantized
from autopar.ir.ops.image import convolution, interpolation, pooling, resizing, sampling
from autopar.ir.ops.index import advanced, binning, embedding_bag, indexing, writing
from autopar.ir.ops.losses import alignment, loss, nll
from autopar.ir.ops.normalize import batch_norm, group_norm, normalization
from autopar.ir.ops.products import (
    attention,
    attention_backward,
    distance,
    experts,
    linalg,
    matmul,
    packed_matmul,
    recurrent,
)
from autopar.ir.ops.reduce import arg_reduction, reduction, softmax, sort, vector_norm
from autopar.ir.ops.shape import diagonal, insertion, layout, view, window
from autopar.ir.ops.table import RuleFunction, Table
from autopar.ir.program import Arg, Op, Ref, Value
from autopar.ir.rules.rule import OpCall, Rule, RuleError, TensorType


class RuleDefect(RuntimeError):
    """A rule's function failed other than by saying that it doesn't fit a call."""


TABLES: tuple[Table, ...] = (
    pointwise.RULES,
    gated.RULES,
    optimizer.RULES,
    cast.RULES,
    matmul.RULES,
    packed_matmul.RULES,
    experts.RULES,
    linalg.RULES,
    reduction.RULES,
    arg_reduction.RULES,
    vector_norm.RULES,
    distance.RULES,
    binning.RULES,
    softmax.RULES,
    normalization.RULES,
    group_norm.RULES,
    batch_norm.RULES,
    view.RULES,
    layout.RULES,
    window.RULES,
    diagonal.RULES,
    indexing.RULES,
    advanced.RULES,
    writing.RULES,
    insertion.RULES,
    embedding_bag.RULES,
    creation.RULES,
    convolution.RULES,
    pooling.RULES,
    resizing.RULES,
    interpolation.RULES,
    attention.RULES,
    attention_backward.RULES,
    sampling.RULES,
    sort.RULES,
    loss.RULES,
    nll.RULES,
    quantized.RULES,
    random.RULES,
    recurrent.RULES,
    alignment.RULES,
)
RULES: Mapping[str, RuleFunction] = {kind: rule for table in TABLES for kind, rule in table.items()}
SHARDS: Table = experts.SHARDS
"""Rules of ops that partition makes, as far as what they compute isn't what they move."""

BORDERS: Table = loops.RULES
"""Rules of ops at the borders of loops, which are unrolled before they run."""

PRODUCTS = frozenset[str]().union(
    matmul.RULES,
    packed_matmul.RULES,
    experts.RULES,
    experts.SHARDS,
    convolution.RULES,
    attention.RULES,
    attention_backward.RULES,
    recurrent.RULES,
)
"""Ops that multiply and add: what a count of flops is about."""


def is_known(kind: str) -> bool:
    """Returns whether an op has a rule: its own, or that of the op whose in-place form it is."""
    return any(each in RULES or each in SHARDS for each in (kind, functional_kind(kind)))


def functional_kind(kind: str) -> str:
    """Returns the op that an in-place one is a form of, as `aten.add.Tensor` of `aten.add_.Tensor`.

    Any other is itself.
    """
    name, _, overload = kind.rpartition(".")
    in_place = name.endswith("_") and not name.endswith("__")
    return f"{name[:-1]}.{overload}" if in_place else kind


def rule_of(op: Op, values: Mapping[str, Value]) -> Rule | None:
    """Returns the rule of an op of a serial program, or None if it has none for this call.

    A rule that doesn't fit the call's shapes counts as none: such an op is computed whole.

    Raises:
        RuleDefect: If the rule's function fails in any other way.
    """
    if not any(op.kind in table for table in (RULES, SHARDS, BORDERS)):
        return None
    args = tuple((name, _anonymous(arg)) for name, arg in op.args)
    operands = tuple(_type(values[name]) for name in op.operands)
    results = tuple(_type(values[name]) for name in op.results)
    # 1, 1.0 and True are equal, but not the same argument.
    kinds = tuple(type(arg) for _, arg in args)
    try:
        return _rule(op.kind, args, kinds, operands, results)
    except Exception as error:
        raise RuleDefect(_defect(op, operands, results, error)) from error


@lru_cache(maxsize=4096)
def _rule(
    kind: str,
    args: tuple[tuple[str, Arg], ...],
    kinds: tuple[type, ...],
    operands: tuple[TensorType, ...],
    results: tuple[TensorType, ...],
) -> Rule | None:
    """Computes a rule. Repeated layers ask for the same ones."""
    try:
        rule = RULES.get(kind) or SHARDS.get(kind) or BORDERS[kind]
        return rule(OpCall(kind, dict(args), operands, results))
    except RuleError:
        return None


def _defect(
    op: Op, operands: Sequence[TensorType], results: Sequence[TensorType], error: Exception
) -> str:
    types = (", ".join(f"{t.dtype}{list(t.shape)}" for t in side) for side in (operands, results))
    args = ", ".join(f"{name}={arg}" for name, arg in op.args)
    return (
        f"{op.loc}: the rule of {op.kind} fails for {' -> '.join(types)} with {args}:"
        f" {type(error).__name__}: {error}; either the arguments don't fit the op,"
        " or this is a defect of autopar"
    )


def _anonymous(arg: Arg) -> Arg:
    """Returns an argument without the names of values, which no rule depends on."""
    if isinstance(arg, Ref):
        return _ANY
    return tuple(_anonymous(item) for item in arg) if isinstance(arg, tuple) else arg


_ANY = Ref("")


def _type(value: Value) -> TensorType:
    return TensorType(value.global_shape, value.dtype)
