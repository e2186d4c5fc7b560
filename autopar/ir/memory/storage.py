"""Which values may share memory, and when each piece of memory is read for the last time.

Kernels may return views of their operands. So a value may be in the memory of several others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autopar.ir.collectives import is_collective
from autopar.ir.emitted import END_OFFLOAD
from autopar.ir.memory.kernels import may_alias
from autopar.ir.program import CALLS, REPEAT, Function, Op, Program, callee_of, refs


class Storage:
    """The memory behind the values of a function; ops by their position.

    Args:
        program: The program.
        function: The function.
        is_separate: Whether a collective is started and awaited where its result is read first, and
            that is in memory of its own, or in that of an operand that nobody else reads.

    Attributes:
        roots: The inputs and results, without an operand that they may be a view of, whose memory
            each value may be.
        producers: The op that computes each value.
        last: The op that reads a root's memory last; the number of ops for what a collective sends
            whose result no op reads.
        read: The values that an op or the caller reads.
    """

    def __init__(
        self,
        program: Program,
        function: Function,
        is_separate: Callable[[Op], bool] = lambda op: False,
    ) -> None:
        self.program = program
        self.is_separate = is_separate
        self.given = frozenset(function.inputs)
        self.read = set(function.outputs)
        self.roots: dict[str, frozenset[str]] = {n: frozenset((n,)) for n in function.inputs}
        self.producers: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self._inside: dict[str, Storage] = {}
        self._sent: dict[str, tuple[int, frozenset[str]]] = {}
        self._under_way: dict[str, list[tuple[int, int]]] = {}
        for at, op in enumerate(function.ops):
            self._add(at, op)
        for name in tuple(self._sent):
            sent = self._await(name, len(function.ops)) & self.given
            self.last.update((root, len(function.ops)) for root in sent)
        self.kept = frozenset().union(*(self.roots[name] for name in function.outputs))

    def inputs_of(self, name: str) -> frozenset[str]:
        """Returns the inputs whose memory a value may share."""
        return self.roots[name] & self.given

    def is_dead(self, name: str, at: int) -> bool:
        """Returns whether after an op nobody reads the memory of a value, which is no input.

        Nor does a collective that is under way while the op runs.
        """
        roots = self.roots[name]
        if not roots.isdisjoint(self.given | self.kept) or any(self.last[r] > at for r in roots):
            return False
        return not any(
            start < at < end for root in roots for start, end in self._under_way.get(root, ())
        )

    def _add(self, at: int, op: Op) -> None:
        self.read.update(op.operands)
        for name in op.operands:
            # An input that a collective sends is read until somebody waits for that.
            roots = self.roots[name] | (self._await(name, at) & self.given)
            self.last.update((root, at) for root in roots)
        for name, operands in self._sharing(at, op):
            self.producers[name] = at
            found = frozenset().union(*(self.roots[each] for each in operands))
            self.roots[name] = found or frozenset((name,))

    def _await(self, name: str, at: int) -> frozenset[str]:
        """Returns the memory that was sent for a value until an op that waits for it."""
        start, sent = self._sent.pop(name, (at, frozenset[str]()))
        for root in sent:
            self._under_way.setdefault(root, []).append((start, at))
        return sent

    def _sharing(self, at: int, op: Op) -> list[tuple[str, tuple[str, ...]]]:
        """Returns each result with the operands whose memory it may share."""
        if op.kind == "barrier":
            return [(r, (o,)) for r, o in zip(op.results, op.operands, strict=True)]
        if op.kind == END_OFFLOAD:  # What was sent isn't what has arrived.
            return [(op.results[0], op.operands[:1])]
        callee = self.program.functions.get(callee_of(op)) if op.kind in CALLS else None
        if callee is not None:
            return self._shared_by(op, callee)
        if is_collective(op.kind):
            shares = not self.is_separate(op)
            if not shares:
                self._sent[op.results[0]] = at, self.roots[op.operands[0]]
        else:
            shares = op.kind in CALLS or may_alias(op.kind)
        return [(result, op.operands if shares else ()) for result in op.results]

    def _shared_by(self, op: Op, callee: Function) -> list[tuple[str, tuple[str, ...]]]:
        """Returns each result of a call with the operands whose memory it may share."""
        if callee.name not in self._inside:
            self._inside[callee.name] = Storage(self.program, callee)
        inside, over = self._inside[callee.name], dict(callee.aliases)
        given = dict(zip(callee.inputs, op.operands, strict=True))
        shared = {
            output: frozenset((over[output],)) if output in over else inside.inputs_of(output)
            for output in callee.outputs
        }
        if op.kind == REPEAT:
            shared = _carried_on(op, callee, shared)
        operands = {
            output: tuple(given[name] for name in sorted(names)) for output, names in shared.items()
        }
        return [
            (
                result,
                () if output in over and self._is_alone(operands[output]) else operands[output],
            )
            for result, output in zip(op.results, callee.outputs, strict=True)
        ]

    def _is_alone(self, operands: Sequence[str]) -> bool:
        """Returns whether an operand that is given away is the only name of its memory.

        Nobody reads it any more, so what is written over it has that for itself.
        """
        return len(operands) == 1 and self.roots[operands[0]] - self.given == {operands[0]}


def _carried_on(
    op: Op, body: Function, shared: Mapping[str, frozenset[str]]
) -> dict[str, frozenset[str]]:
    """Returns the inputs whose memory the results of a loop may share, by output of its body.

    Args:
        op: The loop.
        body: What it runs.
        shared: The same of one iteration.
    """
    count = len([*refs(op.arg("carried", ()))])
    carried = dict(zip(body.inputs, body.outputs[:count], strict=False))
    found = {output: shared[output] for output in body.outputs[:count]}
    for _ in carried:
        for output, names in found.items():
            before = (found[carried[name]] for name in names if name in carried)
            found[output] = names.union(*before)
    # What is stacked is in memory of its own.
    return {**dict.fromkeys(body.outputs, frozenset[str]()), **found}
