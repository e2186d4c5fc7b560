"""Denominators: what terms of a loss are divided by, of the whole batch in place of a microbatch.

The mean over the targets that aren't ignored is, of the whole batch,

    sum over microbatches i of  losses_i / (count_1 + ... + count_n)

and a step weights the loss of microbatch i by its share s_i in the rows. So each microbatch divides
by s_i times the count of all. That depends on the targets alone, and is there before any forward
pass: the captured graph gets it as an input.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from autopar.frontend.torch.capture.described import Denominator
from autopar.frontend.torch.capture.joint import Joint
from autopar.frontend.torch.origin import is_backward
from autopar.frontend.torch.step.loss.terms import (
    TOTALS,
    Term,
    Terms,
    ancestors,
    arg,
    reached,
    trained,
)
from autopar.ir.ops.losses.nll import SUM

aten = torch.ops.aten

_ARRANGED = frozenset(
    (
        aten.view.default,
        aten.reshape.default,
        aten._unsafe_view.default,
        aten.slice.Tensor,
        aten.select.int,
        aten.transpose.int,
        aten.permute.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.unsqueeze.default,
        aten.expand.default,
        aten.constant_pad_nd.default,
        aten.clone.default,
        aten.alias.default,
        aten.detach.default,
        aten._to_copy.default,
        aten.full.default,
        aten.full_like.default,
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
    )
)
"""Ops besides pointwise ones from which counts are made."""

_LOOKUPS = (
    aten.index.Tensor,
    aten.index_select.default,
    aten.gather.default,
    aten.embedding.default,
)
"""Ops that look elements up, in what comes first."""


class Uncounted(Exception):
    """What a term is divided by isn't made of the batch alone, element by element."""


def with_denominators(joint: Joint, terms: Sequence[Term]) -> Joint:
    """Returns a captured graph in which terms are divided by numbers of the whole batch.

    The graph itself is changed.

    Args:
        joint: The captured graph.
        terms: Those terms of its loss, `counted` or `ratio`.

    Raises:
        Uncounted: If one isn't (see `is_counted`).
    """
    counts = [_count_of(joint, term) for term in terms]
    outputs, made = joint.outputs, []
    for term, count in zip(terms, counts, strict=True):
        given = _placeholder(joint.graph, term.node)
        made.append(Denominator(given, count.graph, count.sources, count.result, count.then))
        if term.kind == "ratio":
            _divide(term.node, given)
        else:
            divided = _divide_sum(joint.graph, term.node, given)
            outputs = tuple(divided if node is term.node else node for node in outputs)
    return replace(joint, outputs=outputs, denominators=tuple(made))


def is_counted(joint: Joint, term: Term) -> bool:
    """Whether what a term is divided by is made of the batch alone, element by element."""
    try:
        _count_of(joint, term)
    except Uncounted:
        return False
    return True


def divisor(term: Term) -> fx.Node:
    """Returns what a ratio is divided by."""
    below = term.node.args[1]
    assert isinstance(below, fx.Node)
    return below


def _placeholder(graph: fx.Graph, like: fx.Node) -> fx.Node:
    with graph.inserting_before(next(iter(graph.nodes))):
        node = graph.placeholder("denominator")
    node.meta["val"] = like.meta["val"]
    return node


def _divide(ratio: fx.Node, given: fx.Node) -> None:
    """Divides by another number, in the backward pass too."""
    local = ratio.args[1]
    assert isinstance(local, fx.Node)
    ratio.update_arg(1, given)
    local.replace_all_uses_with(given, delete_user_cb=is_backward)


def _divide_sum(graph: fx.Graph, mean: fx.Node, given: fx.Node) -> fx.Node:
    """Makes a mean of cross-entropies their sum, divided by a number, and returns that."""
    forward: Any = mean.args[0]
    forward.update_arg(3, SUM)
    for local in [user for user in forward.users if user is not mean]:
        local.replace_all_uses_with(given)
    with graph.inserting_after(mean):
        divided = graph.call_function(aten.div.Tensor, (mean, given))
    divided.meta = dict(mean.meta)
    mean.replace_all_uses_with(divided, delete_user_cb=lambda user: user is not divided)
    return divided


@dataclass(frozen=True)
class _Count:
    """How a microbatch's part of a denominator is computed; see `Denominator`."""

    graph: fx.Graph
    sources: dict[fx.Node, fx.Node]
    result: fx.Node
    then: tuple[fx.Node, ...] = ()


def _count_of(joint: Joint, term: Term) -> _Count:
    _check_linear(joint, term)
    if term.kind == "ratio":
        local = divisor(term)
        _check_users(joint, local, term.node)
        total, then = total_of(local)
        made, count = _copied(joint, [total])
        return replace(count, result=made[total], then=tuple(then))
    forward: Any = term.node.args[0]
    target, weight, ignored = (arg(forward, n) for n in ("target", "weight", "ignore_index"))
    made, count = _copied(joint, [target] if weight is None else [target, weight])
    dtype = term.node.meta["val"].dtype
    if dtype == torch.float16:
        raise Uncounted  # A sum over a few thousand targets exceeds its range.
    result = _weights(count.graph, made[target], made.get(weight), ignored)
    wide = torch.promote_types(dtype, torch.float32)
    return replace(count, result=_call(count.graph, aten.sum.default, result, dtype=wide))


def _check_linear(joint: Joint, term: Term) -> None:
    """Refuses a term that the loss depends on in other ways than as one."""
    loss, terms = joint.outputs[0], Terms(joint)
    if term.node not in [each.node for each in terms.of(loss)]:
        raise Uncounted
    behind = reached([term.node]) & ancestors([loss])
    if not behind <= {term.node, *terms.linear}:
        raise Uncounted


def _check_users(joint: Joint, local: fx.Node, ratio: fx.Node) -> None:
    """Refuses a number that the loss or a gradient depends on but by being divided by it."""
    others = [user for user in local.users if user is not ratio and not is_backward(user)]
    behind = reached(user for user in others if user.op == "call_function")
    if joint.outputs[0] in behind or any(map(is_backward, behind)):
        raise Uncounted


def total_of(local: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """Returns the sum that a number is made of, and what is done to it afterwards, in order.

    Raises:
        Uncounted: If it isn't made of one sum.
    """
    then: list[fx.Node] = []
    node = local
    while node.target not in TOTALS:
        if not _is_counting(node) or len(node.all_input_nodes) != 1:
            raise Uncounted
        then.insert(0, node)
        (node,) = node.all_input_nodes
    return node, then


def _is_counting(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags:
        return False
    return torch.Tag.pointwise in tags or node.target in _ARRANGED


def _copied(joint: Joint, ends: Iterable[fx.Node]) -> tuple[dict[fx.Node, fx.Node], _Count]:
    """Returns a graph that computes some nodes of the batch, with their counterparts.

    Raises:
        Uncounted: If they depend on something else, or aren't made element by element.
    """
    wanted, learned, varying = ancestors(ends), trained(joint), reached(joint.batch)
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    sources: dict[fx.Node, fx.Node] = {}
    for node in joint.graph.nodes:
        if node not in wanted:
            continue
        if node in learned:
            raise Uncounted
        if node.op == "call_function":
            looked_up = node.target in _LOOKUPS and node.args[0] not in varying
            total = node in ends and node.target in TOTALS
            if not (looked_up or total or _is_counting(node)):
                raise Uncounted
            made[node] = graph.node_copy(node, made.__getitem__)
        else:
            made[node] = graph.placeholder(f"given_{len(sources)}")
            made[node].meta["val"] = node.meta["val"]
            sources[made[node]] = node
    return made, _Count(graph, sources, next(iter(made.values())))


def _weights(graph: fx.Graph, target: fx.Node, weight: fx.Node | None, ignored: int) -> fx.Node:
    """Adds how much each target counts."""
    if weight is None:
        return _call(graph, aten.ne.Scalar, target, ignored)
    flat = _call(graph, aten.reshape.default, target, [-1])
    left_out = _call(graph, aten.eq.Scalar, flat, ignored)
    classes = _call(graph, aten.masked_fill.Scalar, flat, left_out, 0)
    weights = _call(graph, aten.index_select.default, weight, 0, classes)
    return _call(graph, aten.masked_fill.Scalar, weights, left_out, 0)


def _call(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = target(*fx.node.map_arg(args, lambda each: each.meta["val"]), **kwargs)
    return node
