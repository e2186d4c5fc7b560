"""Strided views of a captured graph as what they are: permutations, reshapes, slices.

`as_strided` says where elements lie in memory, which nothing but one whole tensor can follow. Torch
takes it for views that it can't name otherwise, as for those of a pooled transposition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from autopar.frontend.torch.added import add_before

aten = torch.ops.aten


@dataclass(frozen=True)
class Strides:
    """How elements lie in memory.

    Attributes:
        sizes, strides: Of each dimension.
        offset: Of the first element.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor) -> Strides:
        """Returns those of a tensor."""
        return cls(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    @property
    def order(self) -> list[int]:
        """The dimensions of more than one element, the outermost first."""
        several = (at for at, size in enumerate(self.sizes) if size > 1)
        return sorted(several, key=lambda at: -self.strides[at])

    @property
    def dense(self) -> bool:
        """Whether elements fill a stretch of memory, each once."""
        expected = 1
        for at in reversed(self.order):
            if self.strides[at] != expected:
                return False
            expected *= self.sizes[at]
        return True


def name_strided_views(graph: fx.Graph) -> None:
    """Replaces strided views, and writes to all of one, by ops that say what they are."""
    for node in list(graph.nodes):
        if node.target is aten.as_strided.default:
            _replace(node, _viewed(node))
        elif node.target is aten.as_strided_scatter.default:
            _replace(node, _written(node))


def _replace(node: fx.Node, found: fx.Node | None) -> None:
    if found is not None:
        node.replace_all_uses_with(found)
        node.graph.erase_node(node)


def _viewed(node: fx.Node) -> fx.Node | None:
    """Returns what a strided view shows; None if it can't be named."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    whole, part = Strides.of(source.meta["val"]), _strides(node, source, node.args[1:])
    build = _Build(node)
    if _covers(whole, part):
        return build.laid_out(build.flat(source, whole), part)
    return build.sliced(source, whole, part)


def _written(node: fx.Node) -> fx.Node | None:
    """Returns what is left where all of a tensor is written to; None if some of it isn't."""
    source, written = node.args[:2]
    assert isinstance(source, fx.Node)
    assert isinstance(written, fx.Node)
    whole, part = Strides.of(source.meta["val"]), _strides(node, source, node.args[2:])
    if not _covers(whole, part):
        return None
    build = _Build(node)
    # In the order in which they lie in memory, whatever the strides of what is written.
    return build.laid_out(build.flat(written, part), whole)


def _strides(node: fx.Node, source: fx.Node, args: Sequence[Any]) -> Strides:
    given: list[Any] = [*args, *node.kwargs.values(), None]
    offset = Strides.of(source.meta["val"]).offset if given[2] is None else given[2]
    return Strides(tuple(given[0]), tuple(given[1]), offset)


def _covers(whole: Strides, part: Strides) -> bool:
    """Whether a view shows each element of a tensor once."""
    same = math.prod(whole.sizes) == math.prod(part.sizes) > 0
    return same and whole.offset == part.offset and whole.dense and part.dense


class _Build:
    """Adds ops in place of a node."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node

    def flat(self, source: fx.Node, strides: Strides) -> fx.Node:
        """Returns the elements of a dense tensor in the order in which they lie in memory."""
        rest = [at for at, size in enumerate(strides.sizes) if size == 1]
        return self._reshaped(self._permuted(source, [*rest, *strides.order]), [-1])

    def laid_out(self, flat: fx.Node, strides: Strides) -> fx.Node:
        """Returns the dense tensor whose elements lie in memory like this."""
        order = strides.order
        found = self._reshaped(flat, [strides.sizes[at] for at in order])
        found = self._permuted(found, [order.index(at) for at in sorted(order)])
        return self._reshaped(found, strides.sizes)

    def sliced(self, source: fx.Node, whole: Strides, part: Strides) -> fx.Node | None:
        """Returns the slices of a tensor that a view shows; None if it shows something else."""
        rest = part.offset - whole.offset
        if rest < 0 or not whole.dense or 0 in part.sizes:
            return None
        shown = {part.strides[at]: at for at in part.order}
        if len(shown) < len(part.order):
            return None
        found, kept = source, []
        for at in whole.order:
            start, rest = divmod(rest, whole.strides[at])
            to = shown.pop(whole.strides[at], None)
            length = 1 if to is None else part.sizes[to]
            if start + length > whole.sizes[at]:
                return None
            found = add_before(self.node, aten.slice.Tensor, found, at, start, start + length)
            kept.extend([] if to is None else [(at, to)])
        if shown:
            return None
        names = [to for _, to in sorted(kept)]
        found = self._reshaped(found, [part.sizes[to] for to in names])
        found = self._permuted(found, [names.index(to) for to in sorted(names)])
        return self._reshaped(found, part.sizes)

    def _permuted(self, source: fx.Node, dims: Sequence[int]) -> fx.Node:
        if list(dims) == list(range(len(dims))):
            return source
        return add_before(self.node, aten.permute.default, source, list(dims))

    def _reshaped(self, source: fx.Node, sizes: Sequence[int]) -> fx.Node:
        if list(source.meta["val"].shape) == list(sizes):
            return source
        return add_before(self.node, aten.reshape.default, source, list(sizes))
