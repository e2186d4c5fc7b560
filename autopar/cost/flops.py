"""Flops of products: matrix products, convolutions and attention, which is what people count.

The figures are those of `torch.utils.flop_counter`: two per multiplication and addition, and none
for ops that work element by element, whose time is that of moving memory. Attention counts as its
two products (five in its gradient), on every device alike.
"""

from __future__ import annotations

from autopar.ir.distribution import serial_points
from autopar.ir.rule import Rule

PRODUCTS = frozenset(
    f"aten.{name}.default"
    for name in (
        "mm",
        "bmm",
        "mv",
        "dot",
        "vdot",
        "addmm",
        "baddbmm",
        "addmv",
        "addbmm",
        "matmul",
        "linear",
        "_addmm_activation",
        "_grouped_mm",
        "_scaled_mm",
        "_int_mm",
        "_trilinear",
        "convolution",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "convolution_backward",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "scaled_dot_product_attention",
        "_scaled_dot_product_attention_math",
    )
) | {"aten.conv_transpose2d.input", "aten.conv_transpose3d.input"}
"""Ops that multiply and add."""


def product_flops(kind: str, rule: Rule | None) -> int:
    """Returns the flops of an op that is a product; 0 for any other.

    Args:
        kind: The op's kind.
        rule: Its rule, for the shapes that are computed.
    """
    if rule is None or kind not in PRODUCTS:
        return 0
    return round(rule.work * serial_points(rule))
