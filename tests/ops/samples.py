"""All samples, by op."""

from __future__ import annotations

from functools import cache

from autopar.ir.ops import RULES
from tests.ops import (
    samples_attention,
    samples_bins,
    samples_image,
    samples_indexing,
    samples_layout,
    samples_linalg,
    samples_loss,
    samples_normalization,
    samples_optimizer,
    samples_pointwise,
    samples_random,
    samples_recurrent,
    samples_reduction,
)
from tests.ops.sample import Sample, is_op

MODULES = (
    samples_pointwise,
    samples_linalg,
    samples_bins,
    samples_normalization,
    samples_optimizer,
    samples_reduction,
    samples_layout,
    samples_indexing,
    samples_image,
    samples_random,
    samples_recurrent,
    samples_attention,
    samples_loss,
)

NOT_RUN = {
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.new_empty.default",
    "aten.empty_strided.default",
    "aten.empty_permuted.default",
    "aten.new_empty_strided.default",
    "aten.mkldnn_rnn_layer.default",
}
"""Ops whose content is anything, or that of their workspace."""

RUN = sorted(kind for kind in set(RULES) - NOT_RUN if is_op(kind))
"""Ops with a rule that are run; versions of PyTorch drop some."""


@cache
def samples_by_kind() -> dict[str, list[Sample]]:
    """Returns the samples of each op."""
    found: dict[str, list[Sample]] = {}
    for module in MODULES:
        for sample in module.samples():
            if is_op(sample.kind):
                found.setdefault(sample.kind, []).append(sample)
    return found
