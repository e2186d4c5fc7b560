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
