"""Terms: the means and sums that a loss consists of.

A loss is followed back through what is linear, as sums of losses, factors and casts, to where its
terms are made: means, which a step weights by the rows of microbatches, sums, and what is divided
by a number that the batch decides, as how many targets aren't ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from autopar.frontend.torch.capture.joint import Joint
from autopar.ir.ops.losses.nll import MEAN, SUM

aten = torch.ops.aten

Kind = Literal["mean", "counted", "ratio", "sum", "steady", "other"]
"""What a term is: a mean; a mean over the targets that count; a sum divided by what a batch
decides; a sum; what depends on no batch; anything else."""

NLL = (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
"""(scores, target, weight, reduction, ignore_index) -> loss, total weight."""

_PASSED = frozenset(
    (
        aten.view.default,
        aten.reshape.default,
        aten._unsafe_view.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.unsqueeze.default,
        aten.clone.default,
        aten.alias.default,
        aten.detach.default,
        aten._to_copy.default,
        aten.neg.default,
        aten.mul.Scalar,
        aten.div.Scalar,
    )
)
"""Ops that are linear in their first operand, the only one."""

TOTALS = (aten.sum.default, aten.sum.dim_IntList)
"""Ops that add elements up."""

_SUMS = (aten.add.Tensor, aten.sub.Tensor)
_MEANS = (aten.mean.default, aten.mean.dim)
_REDUCED = (
    aten.mse_loss.default,
    aten.smooth_l1_loss.default,
    aten.huber_loss.default,
    aten.binary_cross_entropy.default,
    aten.soft_margin_loss.default,
)
"""Losses of every element, which `reduction` says what becomes of."""


@dataclass(frozen=True)
class Term:
    """A term of a loss.

    Attributes:
        kind: What it is.
        node: The node that makes it.
    """

    kind: Kind
    node: fx.Node


def terms_of(joint: Joint) -> list[Term]:
    """Returns the terms of the loss that a captured graph returns first."""
    return [*Terms(joint).of(joint.outputs[0])]


def reached(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Returns all nodes that depend on some, with these."""
    queue = [*nodes]
    found = set(queue)
    while queue:
        fresh = queue.pop().users.keys() - found
        found |= fresh
        queue.extend(fresh)
    return found


def ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Returns all nodes on which some depend, with these."""
    queue = [*nodes]
    found = set(queue)
    while queue:
        fresh = set(queue.pop().all_input_nodes) - found
        found |= fresh
        queue.extend(fresh)
    return found


def trained(joint: Joint) -> set[fx.Node]:
    """Returns what depends on parameters that have a gradient, or on what forward changes."""
    changed = {*joint.gradients, *joint.updates}
    return reached(node for node, name in joint.stored.items() if name in changed)


def arg(node: fx.Node, name: str) -> Any:
    """Returns an argument of an op, or its default."""
    for at, each in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if each.name == name:
            given = node.args[at] if at < len(node.args) else each.default_value
            return node.kwargs.get(name, given)
    return None


class Terms:
    """The way back from a loss.

    Args:
        joint: The captured graph.

    Attributes:
        varying: The nodes that depend on the batch.
        trained: The nodes that depend on parameters.
        linear: The nodes that were passed on the way.
    """

    def __init__(self, joint: Joint) -> None:
        self.linear: set[fx.Node] = set()
        self.varying = reached(joint.batch)
        self.trained = trained(joint)

    def of(self, node: Any) -> Iterator[Term]:
        """Yields the terms that a node, or a number, is the sum of."""
        if not isinstance(node, fx.Node):
            return
        if node not in self.varying:
            yield Term("steady", node)
        elif node.target in _PASSED:
            self.linear.add(node)
            yield from self.of(node.args[0])
        elif node.target in _SUMS:
            self.linear.add(node)
            yield from (term for each in node.args[:2] for term in self.of(each))
        elif node.target in (aten.mul.Tensor, aten.div.Tensor):
            yield from self._of_product(node)
        else:
            yield Term(self._kind(node), node)

    def _of_product(self, node: fx.Node) -> Iterator[Term]:
        one, other = node.args[:2]
        if other in self.varying and (one in self.varying or node.target is aten.div.Tensor):
            yield Term("ratio" if self._is_ratio(node) else "other", node)
            return
        self.linear.add(node)
        yield from self.of(one if other not in self.varying else other)

    def _is_ratio(self, node: fx.Node) -> bool:
        """Whether an op divides sums by a number that no parameter has a part in."""
        above, below = node.args[:2]
        by_number = isinstance(below, fx.Node) and below.meta["val"].numel() == 1
        if node.target is not aten.div.Tensor or not by_number or below in self.trained:
            return False
        return all(term.kind == "sum" for term in self.of(above))

    def _kind(self, node: fx.Node) -> Kind:
        source: Any = node.args[0] if node.args else None
        if isinstance(source, fx.Node) and source.target in NLL:
            return _reduced(source, "counted")
        if node.target in _MEANS:
            return "mean"
        if node.target in TOTALS:
            return "sum"
        return _reduced(node, "mean") if node.target in _REDUCED else "other"


def _reduced(node: fx.Node, mean: Kind) -> Kind:
    """Returns what a loss is as its reduction says."""
    kinds: dict[Any, Kind] = {MEAN: mean, SUM: "sum"}
    return kinds.get(arg(node, "reduction"), "other")
