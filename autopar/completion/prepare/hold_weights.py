"""Held weights: what all iterations of a loop read of a weight is brought to them in front of it.

A weight that is split over processes is gathered where it is read. Within a loop that is once for
each iteration, though all of them read the same. Held in front of it, it is gathered once; and it
may stay split, where that is better.

Chunks are there to hold less. So more than one weight is held only where all but the largest are
together no larger than what an iteration makes. A loop over microbatches holds none: it runs
through the whole model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from autopar.completion.problem.space import bytes_of
from autopar.ir import emitted
from autopar.ir.ops.loops import ENTERS, HOLD, behind
from autopar.ir.program import MICROBATCH, STORED_ROLES, Function, Loops, Op, Ref


class _Held(NamedTuple):
    """A value as the iterations of a loop read it in a phase."""

    name: str
    loops: Loops
    phase: str


def hold_weights(function: Function) -> Function:
    """Returns the function with weights held in front of the loops that read them."""
    if not any(_chunks(op) for op in function.ops):
        return function
    weights = _of_weights(function)
    read: dict[Loops, set[str]] = defaultdict(set)
    for op in function.ops:
        if op.kind not in ENTERS and _chunks(op):
            read[_chunks(op)].update(weights.intersection(op.operands))
    return _written(function, read)


def _chunks(op: Op) -> Loops:
    """Returns the loops around an op as far as the first one that isn't over microbatches."""
    for count, (name, _) in enumerate(op.loops, 1):
        if name != MICROBATCH:
            return op.loops[:count]
    return ()


def _of_weights(function: Function) -> set[str]:
    """Returns the names of weights, and of what is made of them alone outside of chunks."""
    found = {name for name, value in function.values.items() if value.role in STORED_ROLES}
    for op in function.ops:
        alone = bool(op.operands) and found.issuperset(op.operands)
        if alone and op.kind not in (HOLD, *ENTERS) and not _chunks(behind(op)):
            found.update(op.results)
    return found


def _written(function: Function, read: Mapping[Loops, set[str]]) -> Function:
    made, values = _made(function), dict(function.values)
    few = {loops: names for loops, names in read.items() if _are_few(function, names, made[loops])}
    ops, held = list[Op](), dict[_Held, str]()
    for op in function.ops:
        loops = _chunks(op)
        if op.kind in ENTERS or loops not in few:
            ops.append(op)
            continue
        known = [_Held(name, loops, op.phase) for name in op.operands]
        for key in known:
            if key.name in few[loops] and key not in held:
                held[key] = emitted.unused(f"{key.name}.held", values)
                kept = replace(values[key.name], name=held[key], role="activation")
                values[held[key]] = replace(kept, dist=None, origin=None)
                ops.append(_hold(op, key, held[key]))
        ops.append(op.with_operands([held.get(key, key.name) for key in known]))
    return replace(function, values=values, ops=tuple(ops))


def _hold(reader: Op, key: _Held, result: str) -> Op:
    """Returns what holds a value in front of the loop in which an op reads it."""
    *around, (loop, _) = key.loops
    args = (("self", Ref(key.name)), ("loop", loop))
    held = replace(reader, kind=HOLD, args=args, results=(result,), loops=tuple(around))
    return replace(held, dist=None, origin=None, plan=())


def _made(function: Function) -> Mapping[Loops, int]:
    """Returns the bytes that an iteration of each loop makes."""
    made: dict[Loops, int] = defaultdict(int)
    for op in function.ops:
        made[_chunks(behind(op))] += sum(bytes_of(function.values[name]) for name in op.results)
    return made


def _are_few(function: Function, names: Collection[str], made: int) -> bool:
    sizes = sorted(bytes_of(function.values[name]) for name in names)
    return sum(sizes[:-1]) <= made
