"""Spans: the ops of an emitted graph, told when each begins and ends."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import fx

from autopar.ir.collectives import is_collective
from autopar.ir.deployment import Deployment
from autopar.ir.layers import layer_of
from autopar.ir.program import Function, Op, Program
from autopar.runtime.execute.control import Call, Repeat, boxed, unboxed

Args = Mapping[str, Any]
"""What a trace says of an op, besides its name and times."""

Spanned = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""Returns, for a label and a function, a function that records when that one runs."""

ENDS = " (end)"
"""What follows the label of a collective that was started before, where somebody waits for it."""

_FREE = (operator.getitem, boxed, unboxed)
"""What passes values on; it isn't an op."""


def add_spans(module: fx.GraphModule, spanned: Spanned) -> None:
    """Lets each op of a graph, and of all functions that it calls, be recorded.

    Args:
        module: What runs, as it is emitted or tuned.
        spanned: See `Spanned`.
    """
    # Functions that are called come first: `run` is the code that they have by then.
    for each in reversed([*module.modules()]):
        if isinstance(each, fx.GraphModule):
            _add_spans(each.graph, spanned)
            each.recompile()
    for each in module.modules():
        if isinstance(each, Call | Repeat):
            each.run = each.body.forward


def _add_spans(graph: fx.Graph, spanned: Spanned) -> None:
    started = set[Op]()
    for node in graph.nodes:
        op = node.meta.get("op")
        if node.op == "call_function" and node.target not in _FREE and op is not None:
            ends = op in started and is_collective(op.kind)
            node.target = spanned(label_of(op) + ENDS * ends, node.target)
            started.add(op)


def label_of(op: Op) -> str:
    """Returns by which name a trace knows an op."""
    return f"{op.kind} %{op.results[0]}" if op.results else op.kind


def descriptions(program: Program, deployment: Deployment, rank: int) -> dict[str, Args]:
    """Returns what a trace says of each op of a rank's program, by label.

    Args:
        program: The program.
        deployment: All ranks.
        rank: The one that runs it.
    """
    found = dict[str, Args]()
    for function in program.functions.values():
        for op in function.ops:
            found[label_of(op)] = args = dict(_described(op, function, deployment, rank))
            if is_collective(op.kind):
                found[label_of(op) + ENDS] = args
    return found


def _described(
    op: Op, function: Function, deployment: Deployment, rank: int
) -> Iterable[tuple[str, Any]]:
    yield "op", op.kind
    yield from (("value", name) for name in op.results[:1])
    yield from (("module", name) for name in [layer_of(op)] if name)
    yield from (("source", str(op.loc)) for _ in [op.loc] if op.loc.line or op.loc.name)
    yield "phase", op.phase
    if not is_collective(op.kind):
        return
    group = op.arg("group")
    if isinstance(group, str):
        yield "group", group
        if group in deployment.groups:
            yield "ranks", list(deployment.group_of(group, rank))
    values = [function.values[name] for name in op.operands]
    if all(isinstance(size, int) for value in values for size in value.shape):
        yield "bytes", sum(math.prod(each.known_shape) * each.itemsize for each in values)
