"""Crowd: which microbatches are under way at the same time, and what each of them holds.

A microbatch holds what lies between those of its calls that are done and the others. How many there
are, and what each has done, is read off the order in which a rank's program calls, whichever
schedule made it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autopar.cost import Lifetimes
from autopar.cost.memory.buffers import HOST
from autopar.ir.program import CALL, CALLS, Function, Op, called, callee_of

Done = frozenset[str]
"""The functions that a microbatch has run."""

Others = tuple[tuple[Done, int], ...]
"""How many other microbatches have run some functions, of each kind."""


@dataclass(frozen=True)
class Crowd:
    """Which microbatches are under way while one runs a function.

    Attributes:
        beside: By function, what this microbatch has run, and what others have; each combination
            once.
    """

    beside: Mapping[str, frozenset[tuple[Done, Others]]]

    @classmethod
    def of(cls, main: Function) -> Crowd:
        """Returns that of a rank's program, in which microbatches are told apart."""
        all_done = frozenset(called(main))
        done: dict[int, Done] = defaultdict(frozenset)
        beside: dict[str, set[tuple[Done, Others]]] = defaultdict(set)
        for op in main.ops:
            if op.kind in CALLS:
                others = Counter(
                    ran for batch, ran in done.items() if batch != op.microbatch and ran != all_done
                )
                counted = sorted(others.items(), key=lambda each: sorted(each[0]))
                beside[callee_of(op)].add((done[op.microbatch], tuple(counted)))
                done[op.microbatch] |= {callee_of(op)}
        return cls({name: frozenset(each) for name, each in beside.items()})

    def held_bytes(self, name: str, held: Callable[[Done], int]) -> tuple[int, int]:
        """Returns the most that microbatches hold when one runs a function: all, and the others.

        Args:
            name: The function.
            held: What one holds that has run some functions.
        """
        both = []
        for own, others in self.beside.get(name, ()):
            beside = sum(count * held(ran) for ran, count in others)
            both.append((held(own) + beside, beside))
        return max(both, default=(0, 0))


class Held:
    """What a microbatch holds on a rank, by the functions that it has run.

    Args:
        memory: The memory of what is done for it.
        is_own: Whether what an op makes is its own.
    """

    def __init__(self, memory: Lifetimes, is_own: Callable[[Op], bool]) -> None:
        self._calls = {at: callee_of(op) for at, op in enumerate(memory.ops) if op.kind == CALL}
        self._known: dict[Done, int] = {}
        touching: dict[int, list[int]] = defaultdict(list)
        for at in self._calls:
            for name in memory.ops[at].operands:
                for piece in memory.buffers_of[name]:
                    touching[piece].append(at)
        # What is received is there from the call on that reads it first.
        self._buffers = [
            (each, [*([each.first] if each.first in self._calls else []), *touching[piece]])
            for piece, each in enumerate(memory.buffers)
            if each.kind != HOST and each.first >= 0 and is_own(memory.ops[each.first])
        ]

    def held(self, done: Done) -> int:
        """Returns the bytes that it holds if it has run some functions."""
        if done not in self._known:
            self._known[done] = sum(
                each.nbytes
                for each, touching in self._buffers
                if touching
                and self._calls[touching[0]] in done
                and not done.issuperset(self._calls[at] for at in touching[1:])
            )
        return self._known[done]

    def before(self, call: int) -> int:
        """Returns the bytes that it holds before a call if calls are in their order."""
        both = ((each, touching) for each, touching in self._buffers if touching)
        return sum(b.nbytes for b, touching in both if touching[0] < call <= b.last)

    @property
    def most(self) -> int:
        """The most that it holds between two calls."""
        return max(self._known.values(), default=0)
