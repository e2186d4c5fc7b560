"""Totals: what denominators of the loss are, of all microbatches, ahead of their passes.

Microbatches of one size are counted at once, side by side, so ops are as many however many there
are. Each is split as in its pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from autopar.frontend.torch.capture.described import Denominator
from autopar.frontend.torch.capture.joint import Joint
from autopar.frontend.torch.step import loop
from autopar.frontend.torch.step.graph import START, Step
from autopar.frontend.torch.step.inputs import Inputs
from autopar.frontend.torch.step.microbatches import Microbatches

aten = torch.ops.aten


def totals_of(
    step: Step, joints: Sequence[Joint], inputs: Inputs, microbatches: Microbatches
) -> list[fx.Node]:
    """Adds, for each denominator of the loss, that of the whole batch.

    Args:
        step: The step to which they are added.
        joints: The captured passes of each microbatch.
        inputs: The step's inputs.
        microbatches: How the batch is cut.
    """
    runs = [*_runs(joints, inputs, microbatches)]
    found = []
    for at, first in enumerate(joints[0].denominators):
        total: fx.Node | None = None
        for run in runs:
            part = _counted(step, run, run.joint.denominators[at])
            total = part if total is None else step.call(START, aten.add.Tensor, total, part)
        assert total is not None
        for op in first.then:
            given = dict.fromkeys(op.all_input_nodes, total)
            args, kwargs = fx.node.map_arg((op.args, op.kwargs), given.__getitem__)
            total = step.call(START, op.target, *args, **kwargs)
        found.append(total)
    return found


class _Run(NamedTuple):
    """Microbatches of one size, one behind another.

    Attributes:
        joint: Their captured passes.
        number: How many there are.
        inputs: The step's inputs.
        ranges: For each tensor of the batch, their first row and the one behind the last.
    """

    joint: Joint
    number: int
    inputs: Inputs
    ranges: Sequence[tuple[int, int]]


def _runs(joints: Sequence[Joint], inputs: Inputs, microbatches: Microbatches) -> list[_Run]:
    found, first = [], 0
    for _, group in groupby(joints, key=id):
        run = [*group]
        behind = first + len(run)
        ranges = [(bounds[first], bounds[behind]) for bounds in microbatches.bounds]
        found.append(_Run(run[0], len(run), inputs, ranges))
        first = behind
    return found


def _counted(step: Step, run: _Run, denominator: Denominator) -> fx.Node:
    """Adds what some microbatches have of a denominator."""
    sources = denominator.sources
    given = {own: _source(step, run, node) for own, node in sources.items()}
    if run.number == 1:
        return step.copy(denominator.graph, given, START)[denominator.result]
    cut = [own for own, node in sources.items() if node in run.joint.batch]
    if not cut:
        one = step.copy(denominator.graph, given, START)[denominator.result]
        return step.call(START, aten.mul.Scalar, one, run.number)
    at_once = _at_once(step, denominator, cut, given)
    made = step.copy(at_once.graph, dict(zip(at_once.sources, given.values(), strict=True)), START)
    return step.call(START, aten.sum.dim_IntList, made[at_once.result], [0])


def _source(step: Step, run: _Run, node: fx.Node) -> fx.Node:
    """Returns the counterpart of what microbatches read, ahead of their turns."""
    joint = run.joint
    if node in joint.stored:
        return run.inputs.read[joint.stored[node]]
    if node not in joint.batch:
        return run.inputs.constants[node]
    position = joint.batch[node]
    rows, (begin, end) = run.inputs.batch[position], run.ranges[position]
    shape = list(rows.meta["val"].shape)
    if end - begin < shape[0]:
        rows = step.call(START, aten.slice.Tensor, rows, 0, begin, end)
    if run.number == 1:
        return rows
    return step.call(START, loop.parts, rows, run.number)


def _at_once(
    step: Step, denominator: Denominator, cut: Sequence[fx.Node], given: dict[fx.Node, fx.Node]
) -> Denominator:
    """Returns how a denominator is computed for several microbatches, which are rows of the result.

    Args:
        step: The step.
        denominator: The denominator.
        cut: What differs between microbatches; these are rows of it.
        given: The counterpart of what it reads.
    """
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(denominator.graph, made)
    graph.output(made[denominator.result])
    module = fx.GraphModule(torch.nn.Module(), graph)
    dims = tuple(0 if own in cut else None for own in denominator.sources)

    def count(*read: Tensor) -> Tensor:
        result: Tensor = torch.vmap(fx.Interpreter(module).run, dims)(*read)
        return result

    with step.mode, preserve_node_meta():
        traced = make_fx(count)(*(node.meta["val"] for node in given.values())).graph
    *ops, end = traced.nodes
    sources = dict(zip((op for op in ops if op.op == "placeholder"), given, strict=True))
    return replace(denominator, graph=traced, sources=sources, result=end.args[0])
