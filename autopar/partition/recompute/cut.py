"""Which ops of consecutive blocks to repeat: the best ways between saving all and saving nothing.

Repeating costs seconds, saving costs bytes. At any price of a byte the best choice is a minimum
cut, as Jain et al. and torch's partitioner have it: an op on the sink's side is repeated, a value
between the sides is saved, or offloaded where the transfers cost less than its bytes. The prices
at which the choice changes give all best ways but those inside the convex hull (Eisner and
Severance, "Mathematical techniques for efficient record segmentation in large shared databases",
1976).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from autopar.base.minimum_cut import FlowGraph
from autopar.partition.recompute.tape import Tape

HUGE = 1e12
"""More than any sum of normalized costs."""

NOTHING = 1e-15
"""Normalized costs below are rounding errors."""


@dataclass(frozen=True)
class Problem:
    """Ops of consecutive blocks, and values by their number; equal ones have equal solutions.

    Attributes:
        seconds: Of each op, None if it must not be repeated.
        reads: The values of these blocks that each op reads if it is repeated.
        made: The op that makes each value.
        nbytes: What saving each value costs; 0 if it is there anyway.
        needed: The values that the backward pass reads.
        bases: Of a value in the memory of another one, that; -1 of others.
        transfers: Seconds of bringing each value to the host and back, None if it must not leave;
            () if none may.
    """

    seconds: tuple[float | None, ...]
    reads: tuple[tuple[int, ...], ...]
    made: tuple[int, ...]
    nbytes: tuple[int, ...]
    needed: tuple[int, ...]
    bases: tuple[int, ...]
    transfers: tuple[float | None, ...] = ()

    def transfer(self, value: int) -> float | None:
        """Returns the seconds of bringing a value to the host and back, None if it must not."""
        return self.transfers[value] if self.transfers else None


class Mix(NamedTuple):
    """A way: the ops that are repeated, and the values that wait in the host's memory."""

    repeated: frozenset[int] = frozenset()
    offloaded: frozenset[int] = frozenset()


def problem_of(tape: Tape, ops: Sequence[int], batch: int, backward: Sequence[int] = ()) -> Problem:
    """Returns the problem that forward ops in order pose. What later ones read is saved.

    Args:
        tape: The tape.
        ops: The forward ops.
        batch: Their microbatch.
        backward: The backward ops during which values that have left may come back.
    """
    inside = {op: number for number, op in enumerate(ops)}
    numbers: dict[int, int] = {}
    for op in ops:
        for value in tape.makes[op]:
            numbers[value] = len(numbers)
    saved = {value for value in numbers if _is_kept(tape, value, inside)}
    free = {piece for value in saved for piece in tape.places[value]}
    owners = {
        piece: numbers[value]
        for op in ops
        for value in tape.makes[op]
        for piece in tape.places[value]
        if piece in tape.takes[op]
    }

    def cost(value: int) -> int:
        return sum(
            tape.nbytes[piece]
            for piece in tape.places[value]
            if piece in owners and piece not in free and not tape.stays[piece]
        )

    def base(value: int) -> int:
        owned = {owners.get(piece, -1) for piece in tape.places[value]} - {numbers[value]}
        return owned.pop() if len(owned) == 1 else -1

    needed = [
        number
        for value, number in numbers.items()
        if value not in saved
        and any(tape.late[op] and tape.batches[op] == batch for op in tape.readers[value])
    ]
    return Problem(
        tuple(None if tape.again[op] is None else tape.again_seconds[op] for op in ops),
        tuple(
            tuple(numbers[v] for v in tape.again_reads[op] if v in numbers and v not in saved)
            for op in ops
        ),
        tuple(inside[tape.makers[value]] for value in numbers),
        tuple(map(cost, numbers)),
        tuple(needed),
        tuple(map(base, numbers)),
        tuple(_transfers(tape, numbers, {*ops, *backward})) if tape.free_candidates else (),
    )


def _transfers(tape: Tape, values: Iterable[int], inside: Set[int]) -> Iterator[float | None]:
    """Yields the seconds of bringing each value to the host and back; None if it can't here."""
    for value in values:
        candidate = tape.free_candidates.get(value)
        fits = candidate is not None and {candidate.behind, candidate.before} <= inside
        yield candidate.seconds if candidate is not None and fits else None


def _is_kept(tape: Tape, value: int, inside: dict[int, int]) -> bool:
    """Whether a value is there anyway for the backward pass: the caller or later blocks read it."""
    if any(tape.stays[piece] for piece in tape.places[value]):
        return True
    return any(tape.early[op] and op not in inside for op in tape.readers[value])


def ways(problem: Problem, most: int = 16) -> list[Mix]:
    """Returns the best ways, from the fastest to the one that saves least.

    Args:
        problem: The problem.
        most: How many at most.
    """
    known = (s for s in (*problem.seconds, *problem.transfers) if s is not None)
    scale = max(known, default=0.0) or 1.0
    largest = max(problem.nbytes, default=0) or 1
    least = _best(problem, scale, HUGE / 1e3 / largest)
    nothing = Mix()
    mixes = {nothing: _figures(problem, nothing, scale), least: _figures(problem, least, scale)}
    queue = [(nothing, least)]
    while queue and len(mixes) < most:
        left, right = queue.pop(0)
        (bytes_left, cost_left), (bytes_right, cost_right) = mixes[left], mixes[right]
        if bytes_left <= bytes_right:
            continue
        price = (cost_right - cost_left) / (bytes_left - bytes_right)
        between = _best(problem, scale, price)
        nbytes, cost = figures = _figures(problem, between, scale)
        bound = cost_left + price * bytes_left
        if between not in mixes and cost + price * nbytes < bound * (1 - 1e-9):
            mixes[between] = figures
            queue += [(left, between), (between, right)]
    return sorted(mixes, key=lambda way: (mixes[way][1], -mixes[way][0], *map(sorted, way)))


def _figures(problem: Problem, way: Mix, scale: float) -> tuple[int, float]:
    """Returns the bytes that a way saves on the device, and its normalized cost."""
    cost = sum((problem.seconds[op] or 0.0) / scale for op in way.repeated)
    cost += sum((problem.transfer(value) or 0.0) / scale for value in way.offloaded)
    memory: dict[int, int] = {}
    for value in _read(problem, way.repeated):
        if problem.made[value] not in way.repeated and value not in way.offloaded:
            base = problem.bases[value]
            memory[value if base < 0 else base] = problem.nbytes[value]
    return sum(memory.values()), cost


def _read(problem: Problem, repeated: Iterable[int]) -> set[int]:
    """Returns the values that the backward pass or repeated ops read."""
    return {*problem.needed, *(value for op in repeated for value in problem.reads[op])}


def _best(problem: Problem, scale: float, price: float) -> Mix:
    """Returns the way that is best if a byte costs this much, and of such ways the shortest."""
    graph = FlowGraph(tolerance=NOTHING)
    ops = [graph.node() for _ in problem.seconds]
    values = [graph.node() for _ in problem.made]
    for op, seconds in enumerate(problem.seconds):
        graph.edge(graph.source, ops[op], HUGE if seconds is None else seconds / scale + 1e-9)
        for value in problem.reads[op]:
            graph.edge(values[value], ops[op], HUGE)
    for value, op in enumerate(problem.made):
        leaves = _is_offloaded(problem, value, scale, price)
        transfer = (problem.transfer(value) or 0.0) / scale
        graph.edge(ops[op], values[value], transfer if leaves else price * problem.nbytes[value])
    for value in problem.needed:
        graph.edge(values[value], graph.sink, HUGE)
    sides = graph.sink_side()
    repeated = {op for op, node in enumerate(ops) if node in sides}
    offloaded = frozenset(
        value
        for value in _read(problem, repeated)
        if problem.made[value] not in repeated and _is_offloaded(problem, value, scale, price)
    )
    return Mix(frozenset(repeated - _free_views(problem, repeated, offloaded)), offloaded)


def _is_offloaded(problem: Problem, value: int, scale: float, price: float) -> bool:
    """Whether a value that isn't repeated leaves if a byte costs this much."""
    seconds = problem.transfer(value)
    return seconds is not None and seconds / scale < price * problem.nbytes[value]


def _free_views(problem: Problem, repeated: set[int], offloaded: frozenset[int]) -> set[int]:
    """Returns the repeated views of memory that is there anyway."""
    results: dict[int, list[int]] = {}
    for value, op in enumerate(problem.made):
        results.setdefault(op, []).append(value)
    free = set()
    for op in repeated:
        bases = [problem.bases[value] for value in results.get(op, ())]
        if bases and all(base >= 0 and problem.made[base] not in repeated for base in bases):
            base = bases[0]
            read = _read(problem, repeated)
            if base not in offloaded and (base in read or not problem.nbytes[base]):
                free.add(op)
    return free
