"""How dense kernels want their operands, beside the rules that say what they compute.

What is said here is what torch's kernels on the CPU do: they refuse other operands, or read them
wrong. Ops that aren't here take operands as they lie.
"""

from __future__ import annotations

from autopar.ir.ops.elementwise.optimizer import FUSED_STEPS
from autopar.ir.ops.products.attention import FLASH
from autopar.ir.ops.products.attention_backward import FLASH_BACKWARD

DENSE = frozenset(
    (
        "aten.native_layer_norm_backward.default",
        "aten.native_group_norm.default",
        "aten.native_group_norm_backward.default",
        "aten.nll_loss2d_backward.default",
        "aten._weight_int8pack_mm.default",
        "aten.view.dtype",
        "aten._linalg_det.default",
        "aten._grouped_mm.default",
        "aten._scaled_mm.default",
        "aten._linalg_slogdet.default",
        "aten._masked_softmax.default",
        "aten._pdist_forward.default",
        "aten._pdist_backward.default",
        "aten._weight_norm_interface.default",
        "aten._weight_norm_interface_backward.default",
        "aten.view_copy.dtype",
        "aten.isin.Tensor_Tensor",
        "aten.adaptive_max_pool3d_backward.default",
        "aten._embedding_bag.default",
        "aten._embedding_bag_forward_only.default",
        "aten._embedding_bag_backward.default",
        "aten._embedding_bag_dense_backward.default",
        "aten._embedding_bag_per_sample_weights_backward.default",
        "aten.fractional_max_pool2d_backward.default",
        "aten.fractional_max_pool3d_backward.default",
        "aten.view_as_complex.default",
        "aten.view_as_complex_copy.default",
        "aten.mkldnn_rnn_layer.default",
        "aten.mkldnn_rnn_layer_backward.default",
        *FUSED_STEPS,
    )
)
"""Ops whose kernels ignore strides on the CPU, so that they get contiguous copies of operands."""

DENSE_ROWS = frozenset((FLASH, FLASH_BACKWARD))
"""Ops whose kernels ignore the stride of the last dimension."""

ALONE = frozenset(
    (
        "aten.as_strided.default",
        "aten.as_strided_copy.default",
        "aten.as_strided_scatter.default",
    )
)
"""Ops that read memory and not elements, of which an operand must have one of its own."""

STRICT = (DENSE | DENSE_ROWS | ALONE) - frozenset(FUSED_STEPS)
"""Ops that may get copies of operands, so that none of them can be written to."""
