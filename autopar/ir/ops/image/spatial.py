"""The spatial dimensions of convolutions: each part of the output reads a window of the input.

So a part needs its own block and a halo, which covers what padding would: the part itself pads
nothing. A transposed convolution with stride s is split into runs of s outputs, which are the
positions that one input element begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autopar.ir.expr.expression import IntExpr, planned
from autopar.ir.expr.facts import divides
from autopar.ir.ops.table import per_dim
from autopar.ir.rules.local_arg import IfSplit, LocalArg
from autopar.ir.rules.rule import OpCall, as_number
from autopar.ir.rules.window import Window


@dataclass(frozen=True)
class Axis:
    """One spatial dimension of a convolution.

    Attributes:
        coarse, fine: Sizes on the side with fewer positions (a convolution's output, a transposed
            one's input) and on the other.
        kernel, stride, padding, dilation: As in the arguments.
    """

    coarse: IntExpr
    fine: IntExpr
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def reach(self) -> int:
        """From the first to the last element of the fine side that a position is joined with."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def missing(self) -> IntExpr:
        """The output padding with which a transposed convolution gives the fine side."""
        return self.fine - (self.coarse - 1) * self.stride + 2 * self.padding - self.reach

    @property
    def is_pointwise(self) -> bool:
        """Whether both sides have the same positions."""
        return self.kernel == self.stride == 1 and self.padding == 0

    def gathered(self, of: str) -> Window:
        """Returns the window of the fine side that the coarse side reads."""
        return Window(of, self.stride, -self.padding, self.reach)

    def touching(self, of: str) -> Window:
        """Returns the window of the coarse side that runs of `stride` fine positions belong to."""
        start, length = self._touched
        return Window(of, 1, start, length)

    @property
    def _touched(self) -> tuple[int, int]:
        """The first coarse position that the first run belongs to, and how many it does."""
        start = -((self.reach - 1 - self.padding) // self.stride)
        stop = (self.stride - 1 + self.padding) // self.stride + 1
        return start, stop - start

    def scattered(self, of: str) -> tuple[Window, int, int]:
        """Returns that window with the padding and output padding that a part of a result needs.

        It is made wider until both are possible.
        """
        start, length = self._touched
        while True:
            padding = self.padding - start * self.stride
            more = 2 * padding - self.reach - (length - 2) * self.stride
            if padding >= 0 and more >= 0:
                break
            start, length = start - 1, length + 1
        return Window(of, 1, start, length + more // self.stride), padding, more % self.stride


def axes_of(
    call: OpCall, weight_at: int, coarse: Sequence[IntExpr], fine: Sequence[IntExpr]
) -> list[Axis]:
    """Returns the spatial dimensions, the weight being operand `weight_at`.

    `same` padding counts as none.
    """
    weight = tuple(map(as_number, call.operands[weight_at].shape[2:]))
    count = len(weight)
    text = isinstance(call.args.get("padding"), str)
    padding = (0,) * count if text else per_dim(call, "padding", count, 0)
    strides = per_dim(call, "stride", count, 1)
    dilations = per_dim(call, "dilation", count, 1)
    sizes = zip(coarse, fine, weight, strides, padding, dilations, strict=True)
    return [Axis(*each) for each in sizes]


@dataclass
class Space:
    """The factors of the spatial dimensions.

    Attributes:
        inside, kernel, outside: Those of input, weight and output.
        whole: Those that must not be split.
        sizes: Sizes that don't follow from the shapes.
        windows: How the input is read.
        padding, output_padding: What a part passes.
        excess: Of the points (input x kernel x output), one in so many is computed.
    """

    inside: list[tuple[str, ...]] = field(default_factory=list)
    kernel: list[tuple[str, ...]] = field(default_factory=list)
    outside: list[tuple[str, ...]] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    windows: dict[str, Window] = field(default_factory=dict)
    padding: list[int | LocalArg] = field(default_factory=list)
    output_padding: list[int | LocalArg] = field(default_factory=list)
    excess: int = 1

    def add(self, at: int, axis: Axis, more: int, transposed: bool) -> None:
        """Adds a dimension with its kernel and the output padding of a transposed convolution."""
        kernel = () if axis.kernel == 1 else (f"k{at}",)
        self.kernel.append(kernel)
        self.whole.extend(kernel)
        self.sizes.update(dict.fromkeys(kernel, axis.kernel))
        if axis.is_pointwise and axis.coarse == axis.fine:
            self._append(at, (f"y{at}",), (f"y{at}",), 0, 0)
            return
        self.excess *= planned(axis.fine)
        if transposed and not divides(axis.stride, axis.fine):
            self.whole.extend((f"x{at}", f"y{at}"))
            self._append(at, (f"x{at}",), (f"y{at}",), axis.padding, more)
        elif transposed:
            self._add_transposed(at, axis, more)
        else:
            self.windows[f"x{at}"] = axis.gathered(f"y{at}")
            inside, outside = (f"x{at}",), (f"y{at}",)
            self._append(at, inside, outside, IfSplit(f"y{at}", 0, axis.padding), 0)

    def _add_transposed(self, at: int, axis: Axis, more: int) -> None:
        run = (f"r{at}",) if axis.stride > 1 else ()
        self.whole.extend(run)
        self.sizes.update(dict.fromkeys(run, axis.stride))
        window, padding, rest = axis.scattered(f"y{at}")
        self.windows[f"x{at}"] = window
        padded = IfSplit(f"y{at}", padding, axis.padding)
        self._append(at, (f"x{at}",), (f"y{at}", *run), padded, IfSplit(f"y{at}", rest, more))

    def _append(
        self,
        at: int,
        inside: tuple[str, ...],
        outside: tuple[str, ...],
        padding: int | LocalArg,
        more: int | LocalArg,
    ) -> None:
        self.inside.append(inside)
        self.outside.append(outside)
        self.padding.append(padding)
        self.output_padding.append(more)


def spatial(call: OpCall, transposed: bool) -> Space:
    """Returns the spatial factors of a convolution."""
    inside, outside = call.operands[0].shape[2:], call.results[0].shape[2:]
    ends = (inside, outside) if transposed else (outside, inside)
    found = Space()
    more = per_dim(call, "output_padding", len(inside), 0)
    for at, each in enumerate(axes_of(call, 1, *ends)):
        found.add(at, each, more[at], transposed)
    return found
