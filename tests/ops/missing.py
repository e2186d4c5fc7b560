"""Why some ops have no rule, and why rules lack splits that brute force finds valid."""

from __future__ import annotations

from collections.abc import Mapping

from tests.ops.test_coverage import NO_RULE

MISSING: Mapping[str, str] = {
    "an operand isn't read under some arguments, and may hold anything": (
        "aten._cdist_backward.default aten._pdist_backward.default aten.batch_norm_backward.default"
        " aten._segment_reduce_backward.default aten.rrelu_with_noise_backward.default"
        " aten.native_batch_norm_backward.default aten.native_layer_norm_backward.default"
    ),
    "writes the running statistics of a training step": "aten.native_batch_norm.default",
    "bins follow from the data unless a range is given": ("aten._histogramdd_from_bin_cts.default"),
    "of booleans, any is max and all is min": (
        "aten.all.dims aten.amax.default aten.amin.default aten.any.dims"
    ),
    "the median of two is the lesser": "aten.median.default aten.nanmedian.default",
    "the kernel refuses a row of no elements, as an empty part has them": (
        "quantized_decomposed.choose_qparams_per_token.default"
    ),
    "each part would make a whole tensor of which all but its own elements are 0, to be summed": (
        "aten.adaptive_max_pool2d_backward.default aten.adaptive_max_pool3d_backward.default"
        " aten.max_pool3d_with_indices_backward.default aten.max_unpool3d.default"
        " autopar.max_pool_backward"
    ),
    "windows of gradients are there for sums, not for these averages": (
        "aten.avg_pool2d_backward.default aten.avg_pool3d_backward.default"
    ),
    "windows are drawn at random": (
        "aten.fractional_max_pool2d.default aten.fractional_max_pool2d_backward.default"
        " aten.fractional_max_pool3d.default aten.fractional_max_pool3d_backward.default"
    ),
    "a pad that is negative, or larger than the tensor": (
        "aten.replication_pad2d.default aten.replication_pad1d_backward.default"
        " aten.replication_pad2d_backward.default aten.reflection_pad1d_backward.default"
    ),
    "only where another operand has no elements, or only zeros": (
        "aten.cat.default aten.gather.default aten.scatter_add.default aten.repeat.default"
        " aten.diagonal_scatter.default aten.cumsum.default"
    ),
    "the result is zero, or nothing is written, for these arguments": (
        "aten.grid_sampler_3d_backward.default aten._unsafe_masked_index_put_accumulate.default"
    ),
    "writes true, which any of the parts may do": "aten.scatter.value",
    "an element's place depends on all before it, but for masks that are true everywhere": (
        "aten.masked_scatter.default"
    ),
    "split in whole blocks of 16, of which 24 elements are no multiple": (
        "aten._scaled_mm.default"
    ),
    "without a right-hand side the kernel finds no rank": "aten.linalg_lstsq.default",
}
"""Reason -> ops that have a rule which lacks a valid split."""


def reason_for(kind: str) -> str:
    """Returns why an op has no rule, or not for every split; "" if nobody says."""
    for reasons in (NO_RULE, MISSING):
        for reason, kinds in reasons.items():
            if kind in kinds.split():
                return reason
    return ""
