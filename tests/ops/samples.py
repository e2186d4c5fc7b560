"""All samples, by op."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

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


def _without_kernels() -> list[str]:
    """Returns the ops whose kernels need instructions that this processor lacks.

    PyTorch learns what the processor has when the first op asks, as this one of bags does, and
    multiplies small floats by another kernel from then on.
    """
    nn.functional.embedding_bag(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1))
    small, one = torch.zeros(16, 16).to(torch.float8_e4m3fn), torch.ones(())
    try:
        torch._scaled_mm(small, small.t(), one, one, out_dtype=torch.float32)
    except RuntimeError:
        return ["aten._scaled_mm.default"]
    return []


NOT_RUN = {
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.new_empty.default",
    "aten.empty_strided.default",
    "aten.empty_permuted.default",
    "aten.new_empty_strided.default",
    "aten.mkldnn_rnn_layer.default",
    *_without_kernels(),
}
"""Ops whose content is anything, or that of their workspace, or that this machine can't run."""

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
