"""Which ops are a device's own, and what takes their places on others.

Programs are captured on the CPU. Most of what stands in them has kernels on every device; where the
CPU has an op of its own, one of ours that any device computes takes its place in programs for
others. It has the same arguments and results. What has no such form is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping

from autopar.ir.devices import CPU
from autopar.ir.ops.products.attention import ATTENTION, FLASH
from autopar.ir.ops.products.attention_backward import ATTENTION_BACKWARD, FLASH_BACKWARD

NEUTRAL: Mapping[str, str] = {FLASH: ATTENTION, FLASH_BACKWARD: ATTENTION_BACKWARD}
"""What takes the place of an op of the CPU's own."""

_OF_CPUS = frozenset(
    f"aten.{name if '.' in name else f'{name}.default'}"
    for name in (
        "_add_relu.Scalar",
        "_add_relu.Tensor",
        "_convert_weight_to_int4pack_for_cpu",
        "_dyn_quant_matmul_4bit",
        "_dyn_quant_pack_4bit_weight",
        "_histogramdd_bin_edges",
        "_histogramdd_from_bin_cts",
        "_histogramdd_from_bin_tensors",
        "_mkldnn_reshape",
        "_mkldnn_transpose",
        "_spdiags",
        "_upsample_lanczos2d_aa",
        "_upsample_lanczos2d_aa_backward",
        "_weight_int4pack_mm_for_cpu",
        "histogram.bin_ct",
        "histogram.bins_tensor",
        "mkldnn_adaptive_avg_pool2d",
        "mkldnn_adaptive_avg_pool2d_backward",
        "mkldnn_linear",
        "mkldnn_linear_backward",
        "mkldnn_linear_backward_input",
        "mkldnn_linear_backward_weights",
        "mkldnn_max_pool2d",
        "mkldnn_max_pool2d_backward",
        "mkldnn_max_pool3d",
        "mkldnn_max_pool3d_backward",
        "mkldnn_reorder_conv2d_weight",
        "mkldnn_reorder_conv3d_weight",
        "mkldnn_rnn_layer",
        "mkldnn_rnn_layer_backward",
        "quantized_batch_norm",
        "quantized_max_pool1d",
        "quantized_max_pool3d",
        "slow_conv3d_forward",
        "to_mkldnn",
    )
)
"""Ops of torch that only the CPU has a kernel for, as torch's own list of its ops says."""

_NAMESPACES = ("mkldnn", "onednn", "quantized")
"""The namespaces of oneDNN's and quantized ops, which are the CPU's."""


def is_own(kind: str, device: str) -> bool:
    """Returns whether an op is another device's own, so that this one has no kernel for it."""
    if device == CPU:
        return False
    return kind in NEUTRAL or kind in _OF_CPUS or kind.partition(".")[0] in _NAMESPACES
