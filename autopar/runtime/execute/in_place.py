"""New content over the old one: the body of a program that overwrites its stored inputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from autopar.ir import emitted
from autopar.ir.memory.joining import runs
from autopar.ir.memory.overlap import plan_overlap
from autopar.ir.memory.transfers import is_on_host
from autopar.ir.memory.updates import Mutation, Writes
from autopar.ir.ops.elementwise.optimizer import FUSED_STEPS, ON_LISTS
from autopar.ir.program import Op
from autopar.runtime.collectives.host_transfers import on_host
from autopar.runtime.execute.body import Body
from autopar.runtime.execute.held import held, held_step, held_sum, kept
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
            _mutate(body, run, [writes.mutations[at] for at in run])
        else:
            body.add(run.start, ops[run.start])
        body.wait(overlap.after.get(run[-1], ()))
        _write(body, writes, run[-1])
    body.wait(overlap.before.get(len(ops), ()))
    _write(body, writes, len(ops))
    if body.right is not None:
        _keep(body, writes)


def _mutate(body: Body, run: range, mutations: Sequence[Mutation]) -> None:
    """Adds ops in the form that writes their results into operands."""
    ops = [body.function.ops[at] for at in run]
    holds = body.right is not None and any(map(partial(_is_stored, body), mutations))
    if holds and ops[0].kind not in (*FUSED_STEPS, *ON_LISTS):
        body.add(run.start, ops[0])
        for output, source in mutations[0].results.items():
            _overwrite(body, output, source)
        return
    placed = on_host if is_on_host(ops[0]) else _on_device
    clone = placed(torch.ops.aten.clone.default)
    dense = {"memory_format": torch.contiguous_format}
    before = {name: body.node(name) for mutation in mutations for name in mutation.copied}
    for name, node in before.items():
        copied = Op(*emitted.clone(), (name,), phase="update")
        body.nodes[name] = body.create(copied, "call_function", clone, (node,), dense)
    function, op = joined(ops)
    args, kwargs = body.arguments(op)
    if holds:
        function = held_step(function) if op.kind in FUSED_STEPS else held_sum
        kwargs = {**kwargs, "right": body.right}
    body.create(op, "call_function", placed(function), args, kwargs)
    for mutation in mutations:
        for result, operand in mutation.results.items():
            body.nodes[result] = body.nodes[operand]
    body.nodes.update(before)


def _write(body: Body, writes: Writes, at: int) -> None:
    """Adds what is written after an op, and before that a look at what decides about it."""
    if at == writes.guard:
        body.look()
    for output, source in writes.after.get(at, ()):
        _overwrite(body, output, source)


def _overwrite(body: Body, output: str, source: str) -> None:
    """Adds the copy of new content over a stored input, where it is right if that is held."""
    written = Op(*emitted.overwrite(), (output,), phase="update")
    new, old = body.node(output), body.node(source)
    if body.right is not None:
        node = body.create(written, "call_function", held, (new, old, body.right))
    else:
        placed = on_host if source in body.hosted else _on_device
        copy = placed(torch.ops.aten.copy_.default)
        node = body.create(written, "call_function", copy, (old, new))
    body.nodes[output] = node


def _keep(body: Body, writes: Writes) -> None:
    """Adds the content that is left of stored inputs which aren't written over, but replaced."""
    over = {output for pairs in writes.after.values() for output, _ in pairs}
    over |= {result for each in writes.mutations.values() for result in each.results}
    values = body.function.values
    for output, source in body.function.aliases:
        if output not in over and values[output].shape == values[source].shape:
            written = Op(*emitted.overwrite(), (output,), phase="update")
            args = (body.node(output), body.node(source), body.right)
            body.nodes[output] = body.create(written, "call_function", kept, args)


def _is_stored(body: Body, mutation: Mutation) -> bool:
    """Returns whether an op writes to a stored input."""
    stored = {source for _, source in body.function.aliases}
    return not stored.isdisjoint(mutation.results.values())


def _on_device(function: Kernel) -> Kernel:
    """Returns a kernel as it is, unlike one of the host."""
    return function
