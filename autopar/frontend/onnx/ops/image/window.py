"""Geometry of sliding windows, which convolutions and pools share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from autopar.frontend.lower.asking import is_sure
from autopar.frontend.onnx.ops.shape.layout import larger
from autopar.frontend.onnx.trace.node import Node, Refused


@dataclass(frozen=True, slots=True)
class Window:
    """A window that slides over the spatial dimensions, one entry per dimension.

    Attributes:
        kernel: Its extent in elements.
        stride: How far it moves.
        dilation: The distance of its elements.
        before, after: Elements of padding at either end.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def extent(self) -> tuple[int, ...]:
        """How many positions the window spans, gaps included."""
        return tuple(
            (size - 1) * gap + 1 for size, gap in zip(self.kernel, self.dilation, strict=True)
        )

    @property
    def symmetric(self) -> bool:
        """Whether the padding is the same at both ends, and adds elements."""
        pairs = zip(self.before, self.after, strict=True)
        return all(is_sure(first == last) and is_sure(first >= 0) for first, last in pairs)


def window(node: Node, sizes: tuple[int, ...], kernel: list[int] | None = None) -> Window:
    """Returns the window of a convolution or pool.

    Args:
        node: The node.
        sizes: Sizes of the spatial dimensions of its input.
        kernel: The extent of its weight, if it has one.

    Raises:
        Refused: If its attributes don't fit the input.
    """
    rank = len(sizes)
    if not 1 <= rank <= 3:
        raise Refused(f"{rank} spatial dimensions; 1 to 3 are supported")
    shape = kernel if kernel is not None else _listed(node, "kernel_shape", rank, 0, 1)
    stride = _listed(node, "strides", rank, 1, 1)
    dilation = _listed(node, "dilations", rank, 1, 1)
    extent = [(size - 1) * gap + 1 for size, gap in zip(shape, dilation, strict=True)]
    auto = node.text("auto_pad", "NOTSET")
    before, after = [0] * rank, [0] * rank
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        for at in range(rank):
            count = (sizes[at] + stride[at] - 1) // stride[at]
            total = larger((count - 1) * stride[at] + extent[at] - sizes[at], 0)
            less, more = total // 2, total - total // 2
            before[at], after[at] = (less, more) if auto == "SAME_UPPER" else (more, less)
    elif auto == "NOTSET":
        pads = _listed(node, "pads", 2 * rank, 0, None)
        before, after = pads[:rank], pads[rank:]
    elif auto != "VALID":
        raise Refused(f"auto_pad {auto!r} isn't supported")
    return Window(tuple(shape), tuple(stride), tuple(dilation), tuple(before), tuple(after))


def _listed(node: Node, name: str, count: int, default: int, least: int | None) -> list[int]:
    values = node.integers(name)
    values = [default] * count if values is None else values
    if len(values) != count or (least is not None and any(v < least for v in values)):
        raise Refused(f"its {name} {values} don't fit {count} entries of at least {least}")
    return values


def pad_spatial(
    x: torch.Tensor, before: tuple[int, ...], after: tuple[int, ...], value: float = 0.0
) -> torch.Tensor:
    """Pads the last dimensions of `x`; negative amounts crop."""
    if all(is_sure(amount == 0) for amount in (*before, *after)):
        return x
    pairs = zip(reversed(before), reversed(after), strict=True)
    return F.pad(x, [amount for pair in pairs for amount in pair], value=value)
