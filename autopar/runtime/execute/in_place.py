"""New content over the old one: the body of a program that overwrites its stored inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from autopar.ir import emitted
from autopar.ir.memory.joining import runs
from autopar.ir.memory.overlap import plan_overlap
from autopar.ir.memory.transfers import is_on_host
from autopar.ir.memory.updates import Mutation, Writes
from autopar.ir.program import Op
from autopar.runtime.collectives.host_transfers import on_host
from autopar.runtime.execute.body import Body
from autopar.runtime.kernels.joining import joined
from autopar.runtime.kernels.table import Kernel


def add_in_place(body: Body, writes: Writes) -> None:
    """Adds all ops to a body, and writes new content over the old one.

    Args:
        body: Has inputs only.
        writes: What is written where.
    """
    ops = body.function.ops
    overlap = plan_overlap(body.function, body.started, writes)
    _write(body, writes, -1)
    for run in runs(body.function, writes):
        for at in run:
            body.wait(overlap.before.get(at, ()))
        if run.start in writes.mutations:
            _mutate(body, [ops[at] for at in run], [writes.mutations[at] for at in run])
        else:
            body.add(run.start, ops[run.start])
        body.wait(overlap.after.get(run[-1], ()))
        _write(body, writes, run[-1])
    body.wait(overlap.before.get(len(ops), ()))
    _write(body, writes, len(ops))


def _mutate(body: Body, ops: Sequence[Op], mutations: Sequence[Mutation]) -> None:
    """Adds ops in the form that writes their results into operands."""
    placed = on_host if is_on_host(ops[0]) else _on_device
    clone = placed(torch.ops.aten.clone.default)
    dense = {"memory_format": torch.contiguous_format}
    before = {name: body.node(name) for mutation in mutations for name in mutation.copied}
    for name, node in before.items():
        copied = Op(*emitted.clone(), (name,), phase="update")
        body.nodes[name] = body.create(copied, "call_function", clone, (node,), dense)
    function, op = joined(ops)
    body.create(op, "call_function", placed(function), *body.arguments(op))
    for mutation in mutations:
        for result, operand in mutation.results.items():
            body.nodes[result] = body.nodes[operand]
    body.nodes.update(before)


def _write(body: Body, writes: Writes, at: int) -> None:
    """Adds what is written after an op, and before that a look at what decides about it."""
    if at == writes.guard:
        body.look()
    for output, source in writes.after.get(at, ()):
        written = Op(*emitted.overwrite(), (output,), phase="update")
        args = (body.node(source), body.node(output))
        placed = on_host if source in body.hosted else _on_device
        copy = placed(torch.ops.aten.copy_.default)
        body.nodes[output] = body.create(written, "call_function", copy, args)


def _on_device(function: Kernel) -> Kernel:
    """Returns a kernel as it is, unlike one of the host."""
    return function
