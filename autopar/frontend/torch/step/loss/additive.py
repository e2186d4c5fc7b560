"""Additive: whether the sums of microbatches add up to the sum of the batch.

They do if no element depends on how many rows there are, by a number in the code as the size of the
batch, or by something that rows have in common, as a sum of them. Both are seen by capturing the
code once more, with one row more: everything made of the batch has grown by just that row, and
numbers are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from autopar.frontend.torch.capture.joint import Joint
from autopar.frontend.torch.step.loss.terms import ancestors, arg, reached

aten = torch.ops.aten

_SIZED = frozenset(
    (aten.slice.Tensor, aten.arange.default, aten.arange.start, aten.arange.start_step)
)
"""Ops with sizes among their numbers; others have them in lists alone."""

_ACROSS = frozenset(
    (
        aten._softmax.default,
        aten._log_softmax.default,
        aten.cumsum.default,
        aten.cumprod.default,
        aten.logcumsumexp.default,
    )
)
"""Ops by which all elements along a dimension have to do with one another, and none is left out."""


class Sum(NamedTuple):
    """A sum in a captured graph.

    Attributes:
        joint: The graph.
        node: The op that sums up.
        end: What is made of it.
    """

    joint: Joint
    node: fx.Node
    end: fx.Node


def power_of_rows(ours: Sum, theirs: Sum) -> int | None:
    """Returns with which power of the number of rows a sum of as many like elements grows.

    That is 1 for a sum, and 0 if it is divided by the rows once. None if that can't be told.

    Args:
        ours: A sum.
        theirs: That of the same code for one row more.
    """
    joint, more = ours.joint, theirs.joint
    rows, grown = _rows(joint), _rows(more)
    behind, before = _between(ours), _before(ours)
    others_behind, others_before = _between(theirs), _before(theirs)
    if (
        not rows
        or _kinds(behind) != _kinds(others_behind)
        or _kinds(before) != _kinds(others_before)
    ):
        return None
    varying = reached(joint.batch)
    for one, two in zip(before, others_before, strict=True):
        if not _same_numbers(one, two) or not _same_constant(joint, one, more, two):
            return None
        if one in varying and not _has_grown(one, two, rows, grown):
            return None
    power = 1
    for one, two in zip(behind, others_behind, strict=True):
        if not _same_numbers(one, two):
            if not _divides_by_rows(one, two, rows, grown):
                return None
            power -= 1
    return power


def _kinds(nodes: Sequence[fx.Node]) -> list[Any]:
    return [node.target if node.op == "call_function" else node.op for node in nodes]


def _divides_by_rows(one: fx.Node, two: fx.Node, rows: int, grown: int) -> bool:
    if one.target not in (aten.div.Tensor, aten.div.Scalar):
        return False
    ours, theirs = one.args[1], two.args[1]
    if not isinstance(ours, (int, float)) or not isinstance(theirs, (int, float)):
        return False
    return ours * grown == theirs * rows


def _between(found: Sum) -> list[fx.Node]:
    """Returns what is made of a sum, in order."""
    behind = reached([found.node]) & ancestors([found.end])
    return [node for node in found.joint.graph.nodes if node in behind and node is not found.node]


def _before(found: Sum) -> list[fx.Node]:
    """Returns what a sum, and what is made of it, depends on besides, in order."""
    wanted = ancestors([found.end]) - reached([found.node])
    wanted = ancestors([found.node]) | (wanted - reached(found.joint.batch))
    return [
        node
        for node in found.joint.graph.nodes
        if node in wanted and node is not found.node and node.op != "placeholder"
    ]


def _rows(joint: Joint) -> int:
    """Returns the rows of a batch; 0 if its tensors have different ones."""
    sizes = {node.meta["val"].shape[0] for node in joint.batch}
    return int(sizes.pop()) if len(sizes) == 1 else 0


def _same_numbers(one: fx.Node, two: fx.Node) -> bool:
    if one.op != "call_function" or one.target in _SIZED:
        return True
    pairs = zip(_numbers(one), _numbers(two), strict=True)
    return all(a == b for a, b in pairs)


def _numbers(node: fx.Node) -> list[Any]:
    given = (*node.args, *(node.kwargs[name] for name in sorted(node.kwargs)))
    return [None if isinstance(each, (fx.Node, list, tuple)) else each for each in given]


def _same_constant(joint: Joint, one: fx.Node, more: Joint, two: fx.Node) -> bool:
    ours, theirs = joint.constants.get(one), more.constants.get(two)
    if ours is None or theirs is None:
        return ours is theirs
    return ours.shape == theirs.shape and torch.equal(ours, theirs)


def _has_grown(one: fx.Node, two: fx.Node, rows: int, grown: int) -> bool:
    before, after = one.meta.get("val"), two.meta.get("val")
    if not isinstance(before, Tensor) or not isinstance(after, Tensor):
        return True  # Of what has several results, each is looked at where it is taken.
    if before.numel() * grown != after.numel() * rows:
        return False
    if one.target not in _ACROSS:
        return True
    dim = arg(one, "dim")
    return bool(before.shape[dim] == after.shape[dim])
