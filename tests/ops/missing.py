"""Why rules lack splits that brute force finds valid, split by split, and why ops have no rule."""

from __future__ import annotations

from collections.abc import Mapping

from tests.ops.test_coverage import NO_RULE

MISSING: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "an operand isn't read under some arguments, and may hold anything": {
        "aten._cdist_backward.default": (
            "whole, dim 0, dim 0, whole -> dim 0",
            "whole, dim 1, whole, whole -> dim 1",
            "whole, dim 2, whole, whole -> dim 2",
            "whole, dim 0, whole, whole -> dim 0",
            "dim 0, dim 0, whole, whole -> dim 0",
            "dim 1, whole, dim 0, whole -> sum",
            "dim 0, dim 0, dim 0, whole -> dim 0",
            "dim 1, dim 1, whole, whole -> dim 1",
            "dim 2, whole, dim 1, whole -> sum",
            "dim 0, whole, whole, whole -> max",
        ),
        "aten._pdist_backward.default": ("whole, dim 0, whole -> dim 0",),
        "aten._segment_reduce_backward.default": ("whole, whole, dim 0, whole -> dim 0",),
        "aten.batch_norm_backward.default": (
            "dim 1, dim 1, dim 0, whole, whole, dim 0, dim 0, whole -> dim 1, dim 0, dim 0",
        ),
        "aten.native_batch_norm_backward.default": (
            "dim 1, dim 1, dim 0, whole, whole, dim 0, dim 0 -> dim 1, dim 0, dim 0",
            "dim 1, dim 1, dim 0, whole, dim 0 -> dim 1",
            "dim 1, dim 1, whole, dim 0, dim 0 -> dim 0, dim 0",
            "dim 1, dim 1, whole, whole, whole -> dim 0",
        ),
        "aten.native_layer_norm_backward.default": (
            "dim 0, dim 0, whole, whole, whole, whole -> sum",
            "dim 1, dim 1, whole, whole, whole, whole -> sum",
        ),
        "aten.rrelu_with_noise_backward.default": (
            "dim 0, whole, dim 0 -> dim 0",
            "dim 0, dim 0, whole -> dim 0",
            "dim 1, whole, dim 1 -> dim 1",
        ),
    },
    "bins follow from the data unless a range is given": {
        "aten._histogramdd_from_bin_cts.default": (
            "dim 0 -> sum",
            "dim 0, dim 0 -> sum",
        ),
    },
    "what the kernel keeps for its gradient depends on the processor": {
        "aten.mkldnn_rnn_layer_backward.default": (
            f"dim 2, dim 1{', whole' * 12} -> dim 2, dim 1{', whole' * 5}",
        ),
    },
    "split in whole blocks of 16, of which 24 elements are no multiple": {
        "aten._scaled_mm.default": ("dim 1, dim 0, whole, whole -> sum",),
    },
    "the result is zero, or nothing is written, for these arguments": {
        "aten._unsafe_masked_index_put_accumulate.default": (
            "dim 0, whole, whole, whole -> dim 0",
            "dim 0, dim 0, dim 0, dim 0 -> dim 0",
        ),
        "aten.grid_sampler_3d_backward.default": (
            "whole, dim 2, whole -> dim 2, whole",
            "whole, dim 3, whole -> dim 3, whole",
            "whole, dim 4, whole -> dim 4, whole",
            "whole, whole, dim 1 -> dim 1",
            "whole, whole, dim 2 -> dim 2",
            "whole, whole, dim 3 -> dim 3",
            "whole, dim 0, dim 0 -> dim 0",
        ),
    },
    "each part would make a whole tensor of which all but its own elements are 0, to be summed": {
        "aten.adaptive_max_pool2d_backward.default": (
            "dim 3, whole, dim 3 -> sum",
            "dim 2, whole, dim 2 -> sum",
        ),
        "aten.adaptive_max_pool3d_backward.default": (
            "dim 2, whole, dim 2 -> sum",
            "dim 3, whole, dim 3 -> sum",
            "dim 4, whole, dim 4 -> sum",
            "dim 1, whole, dim 1 -> sum",
        ),
        "aten.max_pool3d_with_indices_backward.default": (
            "dim 3, whole, dim 3 -> sum",
            "dim 4, whole, dim 4 -> sum",
            "dim 2, whole, dim 2 -> sum",
        ),
        "aten.max_unpool3d.default": (
            "dim 3, dim 3 -> sum",
            "dim 2, dim 2 -> sum",
        ),
        "autopar.max_pool_backward": (
            "dim 2, dim 2 -> sum",
            "dim 3, dim 3 -> sum",
        ),
    },
    "of booleans, any is max and all is min": {
        "aten.all.dims": ("dim 1 -> min",),
        "aten.amax.default": ("dim 1 -> any",),
        "aten.amin.default": ("dim 1 -> all",),
        "aten.any.dims": ("dim 1 -> max",),
    },
    "only where another operand has no elements, or only zeros": {
        "aten.cat.default": (
            "whole, dim 1 -> dim 1",
            "whole, dim 0 -> dim 0",
        ),
        "aten.cumsum.default": ("dim 0 -> dim 0",),
        "aten.diagonal_scatter.default": (
            "dim 0, whole -> dim 0",
            "dim 1, whole -> dim 1",
        ),
        "aten.gather.default": ("whole, dim 0 -> dim 0",),
        "aten.repeat.default": (
            "dim 0 -> dim 1",
            "dim 1 -> dim 1",
            "dim 1 -> dim 2",
        ),
        "aten.scatter_add.default": ("dim 0, whole, whole -> dim 0",),
    },
    "without a right-hand side the kernel finds no rank": {
        "aten.linalg_lstsq.default": (
            "whole, dim 1 -> dim 1, whole, whole, whole",
            "whole, dim 2 -> dim 2, dim 1, whole, whole",
            "whole, dim 2 -> dim 2, whole, whole, whole",
        ),
    },
    "an element's place depends on all before it, but for masks that are true everywhere": {
        "aten.masked_scatter.default": (
            "dim 0, dim 0, dim 0 -> dim 0",
            "dim 0, whole, dim 0 -> dim 0",
            "dim 1, whole, dim 1 -> dim 1",
        ),
    },
    "the median of two is the lesser": {
        "aten.median.default": ("dim 0 -> min",),
        "aten.nanmedian.default": ("dim 0 -> min",),
    },
    "writes the running statistics of a training step": {
        "aten.native_batch_norm.default": (
            "dim 1, dim 0, dim 0, whole, whole -> dim 1, dim 0, dim 0",
            "whole, whole, whole, dim 0, whole -> max, whole, whole",
        ),
    },
    "a pad that is negative, or larger than the tensor": {
        "aten.reflection_pad1d_backward.default": ("dim 1, dim 1 -> dim 1",),
        "aten.replication_pad1d_backward.default": ("dim 1, dim 1 -> dim 1",),
        "aten.replication_pad2d.default": (
            "dim 0 -> dim 0",
            "dim 1 -> dim 1",
            "dim 2 -> dim 2",
        ),
        "aten.replication_pad2d_backward.default": (
            "dim 0, dim 0 -> dim 0",
            "dim 1, dim 1 -> dim 1",
            "dim 2, dim 2 -> dim 2",
        ),
    },
    "rows are counted from the first one, which doesn't matter where all are of one group": {
        "transformers.grouped_mm_fallback.default": ("dim 0, whole, whole -> dim 0",),
        "transformers.grouped_mm_fallback_backward.default": (
            "dim 0, whole, whole, dim 0 -> dim 0, sum",
        ),
    },
    "writes true, which any of the parts may do": {
        "aten.scatter.value": ("whole, dim 1 -> any",),
    },
    "the kernel refuses a row of no elements, as an empty part has them": {
        "quantized_decomposed.choose_qparams_per_token.default": ("dim 1 -> max, whole",),
    },
    "windows are drawn at random, and some are alike": {
        "aten.fractional_max_pool2d.default": ("dim 0, whole -> dim 0, dim 0",),
        "aten.fractional_max_pool3d.default": ("dim 0, whole -> dim 0, dim 0",),
    },
}
"""Reason -> ops that have a rule -> valid splits which it lacks, as `Strategy` prints them."""


NOT_EXCHANGED: Mapping[str, str] = {
    "aten._ctc_loss": (
        "the batch: one result is as wide as the longest target, which another shard may have;"
        " positions: each follows from the one before"
    ),
    "aten.avg_pool2d_backward": (
        "space, where windows overlap or are padded: it takes an op that is told where a part"
        " begins, as the gradient of max pooling has, which nobody has written yet"
    ),
    "aten.upsample_bilinear2d_backward": (
        "space: pixels at a seam get a share from both sides; it takes an op that is told where a"
        " part begins, as resizing has, which nobody has written yet"
    ),
    "aten.slice.Tensor": (
        "the sliced dimension, where one block of it is taken: all of it lies on few processes,"
        " and spreading it out is a reshard, which follows if the result is pinned"
    ),
    "aten._pad_circular": (
        "the padded dimension: PyTorch takes it apart into copies of both ends, each of which"
        " lies on one process"
    ),
}
"""Splits that a rule could have if shards exchanged more than it can say, and why it hasn't."""


def reason_for(kind: str, split: str) -> str:
    """Returns why the rule of an op lacks a split, or why there is none; "" if nobody says."""
    for reason, kinds in NO_RULE.items():
        if kind in kinds.split():
            return reason
    for reason, splits in MISSING.items():
        if split in splits.get(kind, ()):
            return reason
    return ""


def stated(kind: str) -> list[str]:
    """Returns the splits of an op for whose absence there is a reason."""
    return [split for splits in MISSING.values() for split in splits.get(kind, ())]
