"""Transfers: how a program says that a tensor waits in its host's memory.

    %x.sent = autopar.offload(self=%x)                   a copy to the host is started
    %x.host = autopar.end_offload(self=%x.sent, of=%x)   it has arrived; until then %x is there
    ...
    %x.coming = autopar.reload(self=%x.host)             a copy to the device is started
    %x.back = autopar.end_reload(self=%x.coming)         it has arrived

What stands between start and end runs beside the transfer. Since the end of a transfer reads what
is sent, lifetimes are those of any other values.

A stored input that waits there is read by transfers alone, or by calls of what does so, and its new
content is sent over it:

    %w.coming = autopar.reload(self=%w)                  %w is in the host's memory
    %w.back = autopar.end_reload(self=%w.coming)
    ...
    %new.sent = autopar.offload(self=%new, over=%w)      which is what %w holds from then on
    %new.host = autopar.end_offload(self=%new.sent, of=%new)

An op whose plan has `place=host` is computed by the host, of what is in its memory: stored inputs
that wait there, what was transferred, and results of other such ops.

    %new = aten.add.Tensor(self=%w, other=%x.host) plan(place=host)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autopar.ir.emitted import END_OFFLOAD, END_RELOAD, OFFLOAD, OVER, RELOAD
from autopar.ir.program import CALLS, Function, Op, Program, callee_of, refs

STARTED = (OFFLOAD, RELOAD)
"""Kinds that start a transfer; their results are copies."""

ENDED = (END_OFFLOAD, END_RELOAD)
"""Kinds that wait for one; their results are what it left."""

PLAN = "offload"
"""The plan field of transfers; its value is the name of the tensor."""

EITHER, HOST, DEVICE = "auto", "host", "device"
PLACES = (EITHER, HOST, DEVICE)
"""Who updates what waits in the host's memory: whoever is faster, or one of both."""

ON_HOST = ("place", HOST)
"""The plan field of an op that the host computes."""


def is_on_host(op: Op) -> bool:
    """Whether the host computes an op."""
    return ON_HOST in op.plan


def on_host(op: Op) -> Op:
    """Returns an op as the host computes it."""
    return op if is_on_host(op) else replace(op, plan=(*op.plan, ON_HOST))


def hosted(program: Program, function: Function | None = None) -> frozenset[str]:
    """Returns the inputs that wait in the host's memory.

    They are those that transfers read or write, or ops that the host computes, there or in what is
    called.

    Args:
        program: The program.
        function: The function whose inputs they are; by default `main`.
    """
    return _hosted(program, function or program.main, {})


def _hosted(
    program: Program, function: Function, known: dict[str, frozenset[str]]
) -> frozenset[str]:
    """Returns the same; what is known of functions by now is noted, so one may call itself."""
    if function.name in known:
        return known[function.name]
    known[function.name] = frozenset()
    found: set[str] = set()
    for op in function.ops:
        if op.kind == RELOAD or is_on_host(op):
            found.update(op.operands)
        elif op.kind == OFFLOAD:
            found.update(ref.name for ref in refs(op.arg(OVER)))
        elif op.kind in CALLS and callee_of(op) in program.functions:
            callee = program.functions[callee_of(op)]
            there = _hosted(program, callee, known)
            both = zip(op.operands, callee.inputs, strict=False)
            found.update(outer for outer, inner in both if inner in there)
    known[function.name] = frozenset(found.intersection(function.inputs))
    return known[function.name]


def host_values(program: Program, function: Function) -> frozenset[str]:
    """Returns all that is in the host's memory: `hosted`, what was sent, what the host computes."""
    return hosted(program, function).union(_made_on_host(function))


def _made_on_host(function: Function) -> Iterator[str]:
    for op in function.ops:
        if op.kind in (OFFLOAD, END_OFFLOAD) or is_on_host(op):
            yield from op.results
