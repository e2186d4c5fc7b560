"""Assumptions of a captured graph: what its questions were answered, and what it asserts."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from autopar.frontend.source_line import source_line
from autopar.frontend.spelling import kind_of
from autopar.frontend.torch.conditions import QUESTIONS, Answer, Example
from autopar.ir.assumptions import Assumption, Scalar
from autopar.ir.errors import InvalidInputError
from autopar.ir.units import counted

aten = torch.ops.aten

_ASSERTIONS = (aten._assert_async.default, aten._assert_async.msg)
_CHECKS = (aten._linalg_check_errors.default,)
_ORIGIN = ("stack_trace", "custom", "seq_nr", "partitioner_tag")


@dataclass(frozen=True)
class Assumed:
    """A scalar of a graph, and what it must be."""

    node: fx.Node
    assumption: Assumption


def take_assumptions(graph: fx.Graph, example: Example) -> tuple[Assumed, ...]:
    """Takes what asks and asserts out of a graph, and returns what it comes to.

    Args:
        graph: The graph, which is changed.
        example: What it was traced with, which knows the answers.

    Raises:
        InvalidInputError: If the graph's questions aren't those that were answered.
    """
    _free_effects(graph)
    mode, answers = example.mode, iter(example.asked)
    found: list[Assumed] = []
    questions = [node for node in graph.nodes if node.target in QUESTIONS]
    _check_same(questions, example)
    for node in list(graph.nodes):
        if node.target in QUESTIONS:
            question = next(answers)
            asked = _asked(node, mode) if question.varies else None
            if asked is not None:
                for scalar, answer in _scalars(node, asked, question.answer, mode):
                    found.append(_assumed(node, scalar, answer))
        elif node.target in _ASSERTIONS:
            told = _add(node, mode, aten.ne.Scalar, node.args[0], 0)
            text = str(node.args[1]) if len(node.args) > 1 else "an assertion"
            found.append(_assumed(node, _scalar(node, told, mode), True, text))
        elif node.target in _CHECKS:
            right = _add(node, mode, aten.eq.Scalar, node.args[0], 0)
            text = f"{node.args[1]}: a matrix is singular, or not of the kind that it takes"
            found.append(_assumed(node, _add(node, mode, aten.all.default, right), True, text))
        else:
            continue
        graph.erase_node(node)
    return tuple(_distinct(found))


def _check_same(questions: Sequence[fx.Node], example: Example) -> None:
    traced, answered = [node.target for node in questions], [each.func for each in example.asked]
    if traced != answered:
        raise InvalidInputError(
            f"the code asked for {counted(len(answered), 'value')} of tensors, and"
            f" {counted(len(traced), 'question')} of them were traced; ask in forward only, and"
            " for nothing where another thread compiles a model"
        )


def _asked(node: fx.Node, mode: FakeTensorMode) -> fx.Node | None:
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
        same = _add(node, mode, aten.eq.Tensor, first, second)
    else:
        same = _add(node, mode, aten.isclose.default, first, second, *rest, **node.kwargs)
    return _add(node, mode, aten.all.default, same)


def _scalars(
    node: fx.Node, asked: fx.Node, answer: Answer, mode: FakeTensorMode
) -> Iterator[tuple[fx.Node, Scalar]]:
    """Yields what a question comes to, and what that is; of a complex number, both parts."""
    if not isinstance(answer, complex):
        yield _scalar(node, asked, mode), answer
        return
    parts = _add(node, mode, aten.view_as_real.default, asked)
    for at, part in enumerate((answer.real, answer.imag)):
        chosen = _add(node, mode, aten.select.int, parts, -1, at)
        yield _scalar(node, chosen, mode), part


def _scalar(node: fx.Node, asked: fx.Node, mode: FakeTensorMode) -> fx.Node:
    """Returns a value of one element without dimensions, which no rank can hold alone."""
    if asked.meta["val"].ndim == 0:
        return asked
    return _add(node, mode, aten.reshape.default, asked, [])


def _add(node: fx.Node, mode: FakeTensorMode, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """Adds an op before a node, with its origin."""
    with node.graph.inserting_before(node):
        added = node.graph.call_function(target, args, kwargs)
    given, named = fx.node.map_arg((args, kwargs), lambda each: each.meta["val"])
    with mode:
        value = target(*given, **named)
    assert isinstance(value, Tensor)
    added.meta.update({key: node.meta[key] for key in _ORIGIN if key in node.meta}, val=value)
    return added


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
