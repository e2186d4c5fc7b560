"""Flops of products: matrix products, convolutions and attention, which is what people count.

The figures are those of `torch.utils.flop_counter`: two per multiplication and addition, and none
for ops that work element by element, whose time is that of moving memory. Attention counts as its
two products (five in its gradient), on every device alike. Two figures differ from the counter's:
products of experts, which it leaves out, and the gradient of the weight of a convolution in groups,
which it counts as if there were one group.
"""

from __future__ import annotations

from autopar.ir.ops import PRODUCTS
from autopar.ir.rules.distribution import serial_points
from autopar.ir.rules.rule import Rule


def product_flops(kind: str, rule: Rule | None) -> int:
    """Returns the flops of an op that is a product; 0 for any other.

    Args:
        kind: The op's kind.
        rule: Its rule, for the shapes that are computed.
    """
    if rule is None or kind not in PRODUCTS:
        return 0
    return round(rule.work * serial_points(rule))
