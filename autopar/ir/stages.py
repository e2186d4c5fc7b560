"""Stages: from those of some forward ops to the stage of every op of a step.

Stages are numbers that never decrease along the forward pass, and so never increase along the
backward pass.

* A forward op is in the stage that it was put into, or a later one if an operand is made there.
* What is made of parameters alone, only rearranges inputs, or makes constants, is where it is read
  first, and so are numbers made of the batch alone, as how many targets count.
* What has as many elements as a parameter, and is made for its gradient alone, is where that
  parameter is read, if one stage reads it.
* What is carried from one microbatch to the next is where it is made.
* Another backward op is in the stage of the forward op whose gradient it computes: that of what it
  reads of the forward pass. A parameter that several stages read says so for the last of them from
  which a gradient can come.
* What only rearranges a gradient, or makes a constant, is where it is read last, and so is what is
  made of nothing but gradients that come from outside, as those of a module's outputs do. Sums of
  several gradients are in the first stage of those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from autopar.ir.expr.expression import planned, prod
from autopar.ir.ops.loops import LAST
from autopar.ir.ops.shape.view import FREE
from autopar.ir.program import STORED_ROLES, Function, Op

Results = tuple[str, ...]

_GIVEN = ("input", "constant")
"""Roles of inputs that no step changes."""


def has_stages(function: Function) -> bool:
    """Returns whether any op is in a stage behind the first one."""
    return any(op.stage for op in function.ops)


class Stages:
    """The stages of the forward and backward ops of a function.

    Args:
        function: The function; what is known of its forward ops is in `Op.stage`.

    Attributes:
        found: By the results of ops.
        gradients: The results of ops that make gradients of parameters, for which no stage waits.
        prepared: What is made where it is read, as of parameters alone.
        reading: The stages that read inputs and what is prepared.
    """

    def __init__(self, function: Function) -> None:
        self._values = function.values
        self._owned: set[str] = set()
        self._forward: dict[str, int] = {}
        self._backward: dict[str, int] = {}
        self.prepared: set[str] = set()
        self.reading: dict[str, set[int]] = defaultdict(set)
        forward = [op for op in function.ops if op.phase == "forward"]
        backward = [op for op in function.ops if op.phase == "backward"]
        self._counts = self._find_counts(forward)
        for op in forward:
            self._forward.update(dict.fromkeys(op.results, max(self._of_operands(op), op.stage)))
            if self._is_prepared(op):
                self.prepared.update(op.results)
        self._move_to_readers(forward)
        self._owners = self._find_owners(function, backward)
        undecided = self._find_backward(backward)
        self._find_by_readers(forward, backward, undecided)
        self._move_carried(forward)
        made = {**self._forward, **self._backward}
        self.gradients = {op.results for op in backward if op.results[0] in self._owners}
        self.found = {op.results: made.get(op.results[0], 0) for op in (*forward, *backward)}

    def _of_operands(self, op: Op) -> int:
        return max(
            (self._forward[name] for name in op.operands if name in self._forward), default=0
        )

    def _is_prepared(self, op: Op) -> bool:
        """Returns whether an op reads parameters alone, rearranges or counts inputs, or nothing."""
        if all(self._values[n].role in STORED_ROLES or n in self._owned for n in op.operands):
            self._owned.update(op.results)
            return True
        free = op.kind in FREE or op.results[0] in self._counts
        return free and all(n not in self._forward or n in self.prepared for n in op.operands)

    def _find_counts(self, forward: Sequence[Op]) -> set[str]:
        """Returns the numbers that are made of the batch alone, and what is made for them alone."""
        batch: set[str] = set()
        readers: dict[str, list[str]] = defaultdict(list)
        for op in forward:
            for name in op.operands:
                readers[name].append(op.results[0])
            if all(n in batch or self._values[n].role in _GIVEN for n in op.operands):
                batch.update(op.results)
        found: set[str] = set()
        for op in reversed(forward):
            for name in batch.intersection(op.results):
                is_read = bool(readers[name]) and found.issuperset(readers[name])
                if is_read or prod(self._values[name].shape) == 1:
                    found.add(name)
        return found

    def _move_to_readers(self, forward: Sequence[Op]) -> None:
        """Puts what is prepared where it is read first, and notes where inputs are read."""
        for op in reversed(forward):
            stages = {self._forward[op.results[0]]}
            for name in self.prepared.intersection(op.results):
                stages = self.reading.get(name) or {op.stage}
                self._forward[name] = min(stages)
            # What the next iteration finds follows what this one makes, not the other way round.
            for name in () if op.kind == LAST else op.operands:
                if name not in self._forward or name in self.prepared:
                    self.reading[name] |= stages

    def _move_carried(self, forward: Sequence[Op]) -> None:
        """Puts both ends of what is carried where an iteration makes it."""
        for op in forward:
            if op.kind == LAST:
                made, carried = op.operands
                stage = self._forward.get(made, self._forward[carried])
                self._forward.update(dict.fromkeys((carried, *op.results), stage))

    def _find_owners(self, function: Function, backward: Sequence[Op]) -> dict[str, str]:
        """Returns the parameters for whose gradients alone values are made."""
        wanted: dict[str, set[str]] = defaultdict(set)
        found: dict[str, str] = {}
        for op in reversed(backward):
            parameters = {each for name in op.results for each in self._wanted(name, wanted)}
            parameter = parameters.pop() if len(parameters) == 1 else ""
            if parameter:
                found.update(dict.fromkeys(op.results, parameter))
            for name in op.operands:
                is_as_large = parameter and _count(function, name) == _count(function, parameter)
                wanted[name].add(parameter if is_as_large else "")
        return found

    def _belongs(self, name: str) -> set[int]:
        """Returns the only stage that reads the parameter for whose gradient a value is made."""
        stages = self.reading[self._owners[name]] if name in self._owners else set[int]()
        return stages if len(stages) == 1 else set()

    def _wanted(self, name: str, wanted: Mapping[str, set[str]]) -> set[str]:
        """Returns for the gradients of which parameters a value is read; "" for anything else."""
        kind, slash, parameter = name.partition("/")
        if kind == "grad" and slash and self.reading.get(parameter):
            return {parameter}
        return wanted.get(name, {""})

    def _find_backward(self, backward: Sequence[Op]) -> list[Op]:
        """Finds the stages of backward ops; returns those that depend on who reads them."""
        undecided = []
        outside: set[str] = set()
        for op in backward:
            made = [name for name in op.operands if name in self._backward]
            stages = [self._backward[name] for name in made if name not in outside]
            known = [*self._read_of_forward(op, min(stages, default=None))]
            if op.stage:
                stage = op.stage
            elif belongs := self._belongs(op.results[0]):
                (stage,) = belongs
            elif known:
                stage = max(known)
            else:
                stage = min(stages, default=0)
                if not stages:
                    outside.update(op.results)
                # What is made of several gradients is less to send than they are.
                if len(stages) <= 1:
                    undecided.append(op)
            self._backward.update(dict.fromkeys(op.results, stage))
        return undecided

    def _read_of_forward(self, op: Op, latest: int | None) -> Iterator[int]:
        """Yields the stages of what an op reads of the forward pass.

        Args:
            op: A backward op.
            latest: The first stage from which it gets a gradient; None if it gets none.
        """
        for name in op.operands:
            if name in self._forward and name not in self.prepared:
                yield self._forward[name]
            elif self.reading.get(name):
                stages = self.reading[name]
                yield max((s for s in stages if latest is None or s <= latest), default=min(stages))

    def _find_by_readers(
        self, forward: Sequence[Op], backward: Sequence[Op], undecided: Sequence[Op]
    ) -> None:
        """Puts ops that read one gradient at most where their results are read last."""
        wanted: dict[str, int] = {}
        moved = {op.results for op in undecided}
        for op in reversed(backward):
            own = [wanted[name] for name in op.results if name in wanted]
            if own and op.results in moved:
                self._backward.update(dict.fromkeys(op.results, max(own)))
            stage = self._backward[op.results[0]]
            for name in op.operands:
                wanted[name] = max(wanted.get(name, stage), stage)
        for op in forward:
            for name in self.prepared.intersection(op.results):
                if not self.reading.get(name):
                    self._forward[name] = wanted.get(name, op.stage)


def _count(function: Function, name: str) -> int:
    """Returns how many elements a value has."""
    return planned(prod(function.values[name].shape))
