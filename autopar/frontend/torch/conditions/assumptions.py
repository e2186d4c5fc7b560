"""Assumptions of a captured graph: what its questions were answered, and what it asserts."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from autopar.base.errors import InvalidInputError
from autopar.base.units import counted
from autopar.frontend.lower.source_line import source_line
from autopar.frontend.lower.spelling import kind_of
from autopar.frontend.torch.added import add_before
from autopar.frontend.torch.conditions.conditions import (
    ASSERTIONS,
    CHECKS,
    QUESTIONS,
    Answer,
    Answering,
)
from autopar.ir.assumptions import Assumption, Scalar

aten = torch.ops.aten


@dataclass(frozen=True)
class Assumed:
    """A scalar of a graph, and what it must be."""

    node: fx.Node
    assumption: Assumption


def take_assumptions(graph: fx.Graph, answering: Answering) -> tuple[Assumed, ...]:
    """Takes what asks and asserts out of a graph, and returns what it comes to.

    Args:
        graph: The graph, which is changed.
        answering: What it was traced with, which knows the answers.

    Raises:
        InvalidInputError: If the graph's questions aren't those that were answered.
    """
    _free_effects(graph)
    answers = iter(answering.asked)
    found: list[Assumed] = []
    questions = [node for node in graph.nodes if node.target in QUESTIONS]
    _check_same(questions, answering)
    for node in list(graph.nodes):
        if node.target in QUESTIONS:
            question = next(answers)
            asked = _asked(node) if question.varies else None
            if asked is not None:
                for scalar, answer in _scalars(node, asked, question.answer):
                    found.append(_assumed(node, scalar, answer))
        elif node.target in ASSERTIONS:
            told = add_before(node, aten.ne.Scalar, node.args[0], 0)
            text = str(node.args[1]) if len(node.args) > 1 else "an assertion"
            found.append(_assumed(node, _scalar(node, told), True, text))
        elif node.target in CHECKS:
            right = add_before(node, aten.eq.Scalar, node.args[0], 0)
            text = f"{node.args[1]}: a matrix is singular, or not of the kind that it takes"
            found.append(_assumed(node, add_before(node, aten.all.default, right), True, text))
        else:
            continue
        graph.erase_node(node)
    return tuple(_distinct(found))


def _check_same(questions: Sequence[fx.Node], answering: Answering) -> None:
    traced, answered = [node.target for node in questions], [each.func for each in answering.asked]
    if traced != answered:
        raise InvalidInputError(
            f"the code asked for {counted(len(answered), 'value')} of tensors, and"
            f" {counted(len(traced), 'question')} of them were traced; ask in forward only, and"
            " for nothing where another thread compiles a model"
        )


def _asked(node: fx.Node) -> fx.Node | None:
    """Returns what a question is about as a node; None if shapes answer it."""
    first, *others = node.args
    assert isinstance(first, fx.Node)
    if node.target is aten._local_scalar_dense.default:
        return first
    second, *rest = others
    assert isinstance(second, fx.Node)
    if first.meta["val"].shape != second.meta["val"].shape:
        return None
    if node.target is aten.equal.default:
        same = add_before(node, aten.eq.Tensor, first, second)
    else:
        same = add_before(node, aten.isclose.default, first, second, *rest, **node.kwargs)
    return add_before(node, aten.all.default, same)


def _scalars(node: fx.Node, asked: fx.Node, answer: Answer) -> Iterator[tuple[fx.Node, Scalar]]:
    """Yields what a question comes to, and what that is; of a complex number, both parts."""
    if not isinstance(answer, complex):
        yield _scalar(node, asked), answer
        return
    parts = add_before(node, aten.view_as_real.default, asked)
    for at, part in enumerate((answer.real, answer.imag)):
        chosen = add_before(node, aten.select.int, parts, -1, at)
        yield _scalar(node, chosen), part


def _scalar(node: fx.Node, asked: fx.Node) -> fx.Node:
    """Returns a value of one element without dimensions, which no rank can hold alone."""
    if asked.meta["val"].ndim == 0:
        return asked
    return add_before(node, aten.reshape.default, asked, [])


def _assumed(node: fx.Node, scalar: fx.Node, answer: Scalar, message: str = "") -> Assumed:
    loc = source_line(node)
    code = linecache.getline(loc.file, loc.line).strip() or kind_of(scalar)
    return Assumed(scalar, Assumption(answer, code, loc, message))


def _distinct(found: Sequence[Assumed]) -> Iterator[Assumed]:
    """Yields assumptions but those that say the same of one node."""
    seen = set()
    for each in found:
        key = each.node, repr(each.assumption.expected)
        if key not in seen:
            seen.add(key)
            yield each


def _free_effects(graph: fx.Graph) -> None:
    """Calls ops for what they do without the tokens that keep them in order.

    Their order is that of the graph, and the tokens are no results of the model.
    """
    for node in list(graph.nodes):
        if getattr(node.target, "_name", "") != "with_effects":
            continue
        token, target, *args = node.args
        with graph.inserting_before(node):
            freed = graph.call_function(target, tuple(args), dict(node.kwargs))
        freed.meta.update(node.meta)
        for pick in list(node.users):
            position = pick.args[1]
            pick.replace_all_uses_with(token if position == 0 else freed)
            graph.erase_node(pick)
        graph.erase_node(node)
