"""Where a program may write the new content of a stored input into its storage.

Aliases of a function say which outputs are the new content of which inputs. Training keeps these
inputs, so a new value is written over the old one as soon as nothing reads that any more: memory
holds the state and one new value, not the state twice.

Kernels may return views of their operands. So an input is read as long as anything is that may be
a view of it, and where the new content itself may be one, it takes the input's place instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from autopar.ir.program import Function, Op, Program
from autopar.runtime.kernels import may_alias

Sources = Mapping[str, frozenset[str]]
"""The inputs of a function whose storage each of its values may share; none if absent."""


class Abandoned(BaseException):
    """A guard ended a run before anything was overwritten.

    Not an `Exception`: no rank failed, so it passes all that makes messages of failures.
    """


@dataclass(frozen=True)
class InPlace:
    """That new content is written in place, and what is looked at before.

    Attributes:
        guard: Called with the first output before anything is overwritten. If it raises
            `Abandoned`, the stored inputs are what they were.
    """

    guard: Callable[[Tensor], None]


@dataclass(frozen=True)
class Writes:
    """What is written when.

    Attributes:
        guard: The op after which the guard is called.
        after: Pairs (output, input) to write, by the op after which nothing reads the input.
    """

    guard: int
    after: Mapping[int, tuple[tuple[str, str], ...]]


def plan_writes(program: Program) -> Writes:
    """Returns what `main` may write in place, and when; positions are those of its ops."""
    main = program.main
    found = _Reads(program, main)
    guard = _guard(main, found.producers)
    shared = {name for output, _ in main.aliases for name in found.sources.get(output, ())}
    shared.update(_returned(main, found.sources))
    after: dict[int, list[tuple[str, str]]] = {}
    for output, source in main.aliases:
        if output in found.producers and source not in shared and not found.sources.get(output):
            at = max(guard, found.producers[output], found.last.get(source, -1))
            after.setdefault(at, []).append((output, source))
    return Writes(guard, {at: tuple(pairs) for at, pairs in after.items()})


def _guard(main: Function, producers: Mapping[str, int]) -> int:
    """Returns the last op before the first update, by which the first output is known."""
    updates = (at - 1 for at, op in enumerate(main.ops) if op.phase == "update")
    known = producers.get(main.outputs[0], -1) if main.outputs else -1
    return max(known, next(updates, -1))


def _returned(main: Function, sources: Sources) -> set[str]:
    """Returns the inputs of which the caller gets the old content, or a view of it."""
    updates = {output for output, _ in main.aliases}
    plain = [name for name in main.outputs if name not in updates]
    return {name for output in plain for name in sources.get(output, ())}


class _Reads:
    """What may share the inputs' storage, and when each is read for the last time."""

    def __init__(self, program: Program, function: Function) -> None:
        self.program = program
        self.sources: dict[str, frozenset[str]] = {n: frozenset((n,)) for n in function.inputs}
        self.producers: dict[str, int] = {}
        self.last: dict[str, int] = {}
        for at, op in enumerate(function.ops):
            self._add(at, op)

    def _add(self, at: int, op: Op) -> None:
        for name in op.operands:
            self.last.update((source, at) for source in self.sources.get(name, ()))
        for name, operands in self._shared(op):
            self.producers[name] = at
            found = frozenset().union(*(self.sources.get(each, ()) for each in operands))
            if found:
                self.sources[name] = found

    def _shared(self, op: Op) -> list[tuple[str, tuple[str, ...]]]:
        """Returns each result with the operands whose storage it may share."""
        if op.kind == "barrier":
            return [(r, (o,)) for r, o in zip(op.results, op.operands, strict=True)]
        if op.kind == "call":
            callee = self.program.functions[str(op.arg("callee"))]
            inside = _Reads(self.program, callee).sources
            given = dict(zip(callee.inputs, op.operands, strict=True))
            return [
                (result, tuple(given[name] for name in sorted(inside.get(output, ()))))
                for result, output in zip(op.results, callee.outputs, strict=True)
            ]
        shares = op.kind == "repeat" or op.kind.startswith("comm.") or may_alias(op.kind)
        return [(result, op.operands if shares else ()) for result in op.results]
