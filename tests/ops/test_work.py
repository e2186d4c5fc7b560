"""Counted work: no op is priced at more operations than it can plausibly take.

An op that multiplies factors which it doesn't compute all pairs of is priced absurdly, and plans
follow from that. Samples are small, which hides it; so every dimension is made longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from torch.utils.flop_counter import FlopCounterMode

from autopar.ir.ops import PRODUCTS, RULES
from autopar.ir.rules.distribution import serial_points
from autopar.ir.rules.rule import OpCall, Rule, RuleError, TensorType
from tests.ops.sample import Sample, compute
from tests.ops.samples import RUN, samples_by_kind

LONGER = 64
"""How many times as long dimensions are made; enough for one factor too many to show."""

MOST = 8 * 20
"""Most operations per element: 8 times those of a special function, the dearest elementwise op."""

_SORTED = (16, "a comparison waits for the one before, and a row is sorted")
_SEARCHED = (16, "a comparison waits for the one before, as many as halvings")
_COMPARED = (4, "a comparison waits for the one before")
_SERIES = (8, "a series, summed element by element")

DEARER: dict[str, tuple[int, str]] = {
    **dict.fromkeys(("sort", "argsort", "mode", "isin"), _SORTED),
    **dict.fromkeys(("searchsorted", "bucketize"), _SEARCHED),
    **dict.fromkeys(("topk", "kthvalue", "median", "nanmedian", "histc"), _COMPARED),
    **dict.fromkeys(("digamma", "lgamma", "mvlgamma", "polygamma", "igamma", "igammac"), _SERIES),
    "special_zeta": _SERIES,
    "logcumsumexp": (4, "an exponential and a logarithm per sum, which wait for one another"),
    "max_pool_with_indices": (8, "the comparisons of a window, here of 27"),
}
"""By how many times an op may take more operations per element, and why."""

SQUARE = {
    "aten._cdist_forward.default": "all pairs of rows, over their elements",
    "aten._cdist_backward.default": "all pairs of rows, over their elements",
    "aten._euclidean_dist.default": "all pairs of rows, over their elements",
    "aten.dist.default": "all pairs of elements, if they broadcast",
}
"""Ops that do work in proportion to one dimension per element, and why."""


def is_square(kind: str) -> bool:
    """Whether an op takes the longest dimension's worth of operations per element."""
    name = kind.split(".")[1]
    return kind in SQUARE or name.startswith(("linalg_", "_linalg_")) or name in DECOMPOSITIONS


DECOMPOSITIONS = frozenset(
    (
        *("cholesky", "cholesky_inverse", "cholesky_solve", "geqrf", "ormqr", "triangular_solve"),
        *("lu_unpack", "trace"),
    )
)
"""Linear algebra, of n^3 operations, whose name doesn't say so."""


def longer(call: OpCall, times: int) -> OpCall:
    """Returns a call with every dimension that has more than one entry so many times as long."""

    def grown(tensors: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return tuple(
            TensorType(tuple(n * times if n > 1 else n for n in tensor.shape), tensor.dtype)
            for tensor in tensors
        )

    return OpCall(call.kind, call.args, grown(call.operands), grown(call.results))


def rule_of_longer(sample: Sample) -> tuple[OpCall, Rule | None]:
    """Returns a longer call with its rule, or the sample's own where it can't be made longer."""
    call = longer(sample.call, LONGER)
    try:
        return call, RULES[sample.kind](call)
    except RuleError:
        return sample.call, sample.rule


def operations(rule: Rule) -> float:
    """Returns the operations of the dearest way to compute an op."""
    return max(each.work * serial_points(each) for each in (rule, *(b.rule for b in rule.bodies)))


@pytest.mark.parametrize("kind", sorted(set(RUN) - PRODUCTS))
def test_an_op_takes_few_operations_per_element(kind: str) -> None:
    for sample in samples_by_kind()[kind]:
        call, rule = rule_of_longer(sample)
        if rule is None:
            continue
        tensors = [tensor.shape for tensor in (*call.operands, *call.results)]
        elements = sum(math.prod(max(1, n) for n in shape) for shape in tensors)
        longest = max((n for shape in tensors for n in shape), default=1)
        times, _ = DEARER.get(kind.split(".")[1], (1, ""))
        most = MOST * times * elements * (longest if is_square(kind) else 1)
        assert operations(rule) <= most, f"{sample}: {rule}, {rule.work} per point"


@pytest.mark.parametrize("kind", sorted(PRODUCTS & set(RUN)))
def test_a_product_takes_about_what_torch_counts(kind: str) -> None:
    for sample in samples_by_kind()[kind]:
        if sample.rule is None:
            continue
        with FlopCounterMode(display=False) as counter:
            compute(sample.kind, sample.ir_args, sample.tensors)
        counted = counter.get_total_flops()
        if counted:
            assert operations(sample.rule) <= 8 * counted, f"{sample}: {sample.rule}, {counted}"
