"""Where a program may write the new content of a stored input into its storage.

Aliases of a function say which outputs are the new content of which inputs: of parameters and the
optimizer's state in training, of buffers in inference too. These inputs are kept from call to call,
so a new value is written over the old one as soon as nothing reads that any more: memory holds the
state and one new value, not the state twice. An op that has a form which writes into its
operands, as fused optimizer steps do, is carried out in that form. A fused step writes over
what came from the host's memory, too, or went there, which is as contiguous as what is stored.
Another operand that nobody reads any more may be a slice, over which fused steps write wrong
numbers.

Of another function they say what its callers give away, as sums that are handed from call to call:
nobody reads that any more.
A sum that is added up in turns is written over its total (see `accumulating`).

A tensor is read as long as anything is that may be a view of it, and where new content itself may
be a view of an input, it takes the input's place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from autopar.ir.assumptions import assumption_ports
from autopar.ir.emitted import END_OFFLOAD, END_RELOAD
from autopar.ir.memory.accumulating import may_overwrite
from autopar.ir.memory.kernels import written_arguments
from autopar.ir.memory.storage import Storage
from autopar.ir.ops.elementwise.optimizer import FUSED_STEPS
from autopar.ir.program import Function, Op, Program, refs

Pair = tuple[str, str]
"""(output, input): the output is the new content of the input."""


@dataclass(frozen=True)
class Mutation:
    """That an op writes its results into operands.

    Attributes:
        results: The operand that becomes each result.
        copied: The operands of which a copy is written to, since they are read later or elsewhere.
    """

    results: Mapping[str, str]
    copied: frozenset[str]


@dataclass
class Writes:
    """What is written when; ops by their position.

    Attributes:
        guard: The op after which the guard is called, if there is a guard; -1 for before the first,
            as where the first output is an input.
        looked: The outputs that are looked at then, the first one before those of assumptions.
        after: What to write after an op, since then nothing reads the input; under the number of
            ops, when all collectives have ended.
        mutations: The ops that write into their operands.
    """

    guard: int
    looked: tuple[str, ...] = ()
    after: dict[int, list[Pair]] = field(default_factory=dict)
    mutations: dict[int, Mutation] = field(default_factory=dict)


def plan_writes(
    program: Program,
    storage: Storage | None = None,
    *,
    guarded: bool = True,
    function: Function | None = None,
) -> Writes:
    """Returns what a function may write in place, and when.

    Args:
        program: The program.
        storage: The storage of the function, if it is known.
        guarded: Whether the first output is looked at before anything is written. Assumptions
            always are.
        function: The function, by default `main`. Into others nobody looks.
    """
    main = function or program.main
    storage = storage or Storage(program, main)
    looked = _looked_at(program, guarded) if main.name == "main" else ()
    writes = Writes(_guard(main, looked, storage.producers) if looked else -1, looked)
    shared = _shared(main, storage)
    for output, source in main.aliases:
        grows = main.values[output].shape != main.values[source].shape
        if grows or output not in storage.producers:
            continue
        if source not in shared and not storage.inputs_of(output):
            at = max(writes.guard, storage.producers[output], storage.last.get(source, -1))
            writes.after.setdefault(at, []).append((output, source))
    came = frozenset(_copies(main))
    for at, op in enumerate(main.ops):
        if may_overwrite(op) and (operand := overwritten(at, op, main, storage)):
            writes.mutations[at] = Mutation({op.results[0]: operand}, frozenset())
            continue
        pairs = writes.after.get(at, [])
        reloaded = came.intersection(op.operands) if op.kind in FUSED_STEPS else frozenset()
        possible = at > writes.guard and (pairs or reloaded)
        found = _mutation(at, op, pairs, storage, reloaded) if possible else None
        if found is not None:
            writes.mutations[at] = found
            writes.after[at] = [pair for pair in pairs if pair[0] not in found.results]
    return writes


def _copies(main: Function) -> Iterator[str]:
    """Yields what transfers of stored inputs leave, over which steps may write."""
    stored = frozenset(main.inputs)
    for op in main.ops:
        if op.kind == END_RELOAD or (op.kind == END_OFFLOAD and op.operands[-1] in stored):
            yield from op.results


def overwritten(at: int, op: Op, main: Function, storage: Storage) -> str:
    """Returns the operand over which an op is written: in memory of its own, and read no more.

    Args:
        at: The op's position.
        op: The op, which is wanted over what it reads.
        main: The function that it is part of.
        storage: What shares memory.

    Returns:
        The operand's name; "" if there is none.
    """
    written = [ref.name for name in written_arguments(op.kind) for ref in refs(op.arg(name))]
    if len(written) != 1 or len(op.results) != 1:
        return ""
    (name,), (result,) = written, op.results
    old, new, own = main.values[name], main.values[result], storage.roots[name]
    shared = sum(not own.isdisjoint(storage.roots[each]) for each in op.operands)
    alike = (old.dtype, old.shape) == (new.dtype, new.shape)
    return name if alike and own == {name} and shared == 1 and storage.is_dead(name, at) else ""


def _looked_at(program: Program, guarded: bool) -> tuple[str, ...]:
    """Returns the outputs that are looked at before anything is written."""
    assumed = tuple(port.name for port in assumption_ports(program, program.main))
    return (*program.main.outputs[:1], *assumed) if guarded or assumed else ()


def _guard(main: Function, seen: Collection[str], producers: Mapping[str, int]) -> int:
    """Returns the last op before the first update, by which what is looked at is known."""
    updates = (at - 1 for at, op in enumerate(main.ops) if op.phase == "update")
    return max(next(updates, -1), *(producers.get(name, -1) for name in seen))


def _shared(main: Function, storage: Storage) -> set[str]:
    """Returns the inputs that must not be overwritten: somebody gets their old content.

    The caller does, if an output that is no update is a view of it, and so does another input of
    which it may be the new content.
    """
    sources = dict(main.aliases)
    outputs = (name for name in main.outputs if name not in sources or storage.inputs_of(name))
    return {name for output in outputs for name in storage.inputs_of(output)}


def _mutation(
    at: int, op: Op, pairs: list[Pair], storage: Storage, reloaded: frozenset[str]
) -> Mutation | None:
    """Returns how an op writes new contents by itself; None if it can't.

    Args:
        at: The op's position.
        op: The op.
        pairs: The new contents that may be written there, with the inputs that get them.
        storage: What shares memory.
        reloaded: Which operands came from the host's memory, or went there.
    """
    written = [ref.name for name in written_arguments(op.kind) for ref in refs(op.arg(name))]
    if len(written) != len(op.results) or len(set(written)) < len(written):
        return None
    results = dict(zip(op.results, written, strict=True))
    direct = {source for output, source in pairs if results.get(output) == source}
    unscaled = _unscaled(op)
    dead = {
        operand
        for result, operand in results.items()
        if (operand in reloaded or result not in storage.read) and storage.is_dead(operand, at)
    }
    roots = [storage.roots[name] for name in op.operands]
    alone = {
        name
        for name in direct | dead
        if sum(not storage.roots[name].isdisjoint(each) for each in roots) == 1
    }
    if alone.isdisjoint(direct | (reloaded - unscaled)):
        return None
    return Mutation(results, frozenset(written) - alone - unscaled)


def _unscaled(op: Op) -> set[str]:
    """Returns the gradients of a fused step, which it writes to only if it scales them."""
    scaled = op.kind not in FUSED_STEPS or op.arg("grad_scale") is not None
    return set() if scaled else {ref.name for ref in refs(op.arg("grads"))}
