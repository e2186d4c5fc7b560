"""Buckets: the sums of a plan that travel together, and what that saves.

Gradients are read by the update, which comes after all of them. Sums of such values, for which
nobody waits, are joined by `partition.coalesce`, and so are others until one of them is read. Which
values nobody waits for is known before anything is decided; which buckets a plan fills is known as
soon as its forms are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from autopar.completion.problem.graph import Graph, Node
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.space import Form, bytes_of
from autopar.cost.reshard.buckets import BUCKET_BYTES, Sum, bucket_seconds, sums_of
from autopar.cost.reshard.deferred_sums import awaited
from autopar.ir.ops.shape.view import VIEWS

Steps = tuple[tuple[Form, Form], ...]
"""The reshards of a value, each from a form to another."""

Chain = tuple[Sum | None, ...]
"""Moves that follow one another: the sums that they are, and None for all others."""

UPDATE, AWAITED = "update", "awaited"


class DeferredSums:
    """The values of a graph whose sums are deferred, or are awaited.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        read = awaited([node.op for node in graph.nodes])
        groups: dict[int, str] = {}
        for node in graph.nodes:
            group = UPDATE if node.op.phase == UPDATE else ""
            for value in node.results:
                groups[value] = AWAITED if graph.values[value].name in read else group
        ordered = sorted(graph.nodes, key=lambda node: graph.order[node.index])
        self.group = {value: groups[value] for node in ordered for value in node.results}
        """Per value that is computed, in the order of the program, with which others its sum may
        travel: with others that are deferred, those of updates apart, or with awaited ones."""

    def group_of(self, value: int) -> str | None:
        """Returns the group of a value for which nobody waits; None of others."""
        group = self.group.get(value, AWAITED)
        return None if group == AWAITED else group

    def joined_with(self, value: int) -> str | None:
        """Returns the group with whose sums those of a value may travel.

        None where they are alone: nobody joins tensors whose sizes are open (`sums_of`).
        """
        is_open = not all(isinstance(size, int) for size in self.graph.values[value].global_shape)
        return None if is_open else self.group.get(value, AWAITED)

    def most_bytes(self, group: str, may_defer: Iterable[int]) -> int:
        """Returns the bytes of all sums of a group.

        Args:
            group: The group.
            may_defer: The values that may have a sum pending.
        """
        graph, total = self.graph, 0
        for value in may_defer:
            made = graph.producer[value]
            if self.group[value] == group and made and made[0].op.kind not in VIEWS:
                total += bytes_of(graph.values[value])
        return total


@dataclass(frozen=True)
class _Sums:
    """What is left of a value's moves, and between which ops of the program they may stand."""

    value: int
    moves: Chain
    known: int
    read: float


@dataclass
class _Bucket:
    """Sums that travel together, of which the last isn't known yet."""

    members: list[_Sums] = field(default_factory=list)
    nbytes: int = 0
    last: int = 0
    read: float = math.inf


class Buckets:
    """Fills buckets as `coalesce` does.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.model = graph.space.planner.model
        self._sums: dict[tuple[Steps, int, bool], tuple[Chain, ...]] = {}

    def saved_seconds(
        self, choices: Sequence[Choice], steps: Iterable[tuple[int, Steps]]
    ) -> Iterator[float]:
        """Yields what the sums of each bucket of several would take more alone.

        Args:
            choices: Per op.
            steps: Values with a sum pending, in the order of the program, and their reshards.
        """
        left = list(self._begun(choices, steps))
        is_done = not left
        while not is_done:
            closed, left, is_done = list(self._closed(left)), [], True
            for bucket in closed:
                if len(bucket.members) > 1:
                    yield self._saved_seconds(bucket)
                for each in bucket.members:
                    # What is left of the sums is joined next, with what is alone so far.
                    if any(each.moves[1:]):
                        left.append(replace(each, moves=each.moves[1:], known=bucket.last))
                        is_done = False
                    elif len(bucket.members) == 1:
                        left.append(each)

    def _begun(
        self, choices: Sequence[Choice], steps: Iterable[tuple[int, Steps]]
    ) -> Iterator[_Sums]:
        for value, pairs in steps:
            is_deferred = self.graph.shared(DeferredSums).group_of(value) is not None
            for moves in self._chains(pairs, self.graph.itemsizes[value], is_deferred):
                made = self.graph.producer[value]
                assert made is not None
                known = self.graph.order[made[0].index]
                yield _Sums(value, moves, known, self._first_read(choices, value))

    def _first_read(self, choices: Sequence[Choice], value: int) -> float:
        """Returns where in the program something reads what becomes of a pending sum."""
        graph, first = self.graph, math.inf
        made = graph.producer[value]
        assert made is not None
        left = choices[made[0].index].leaves(made[1])
        for node, position in graph.uses[value]:
            if any(need is not left for need in choices[node.index].reads(position)):
                first = min(first, self._reached(node))
        return first

    def _reached(self, node: Node) -> float:
        """Returns the position of an op; of one that computes nothing, of the first beyond it."""
        if node.op.kind not in VIEWS:
            return self.graph.order[node.index]
        after = (reader for reader, _ in self.graph.uses[node.results[0]])
        return min(map(self._reached, after), default=math.inf)

    def _closed(self, left: Iterable[_Sums]) -> Iterator[_Bucket]:
        """Yields the buckets of the first sums of values."""
        opened: dict[tuple[object, ...], _Bucket] = {}
        for each in sorted(left, key=lambda each: each.known):
            moves = each.moves
            while moves and moves[0] is None:
                moves = moves[1:]
            if not moves:
                continue
            first = moves[0]
            assert first is not None
            key = self._key(each.value, first)
            if key in opened and (
                opened[key].nbytes + first.nbytes > BUCKET_BYTES or opened[key].read <= each.known
            ):
                yield opened.pop(key)
            bucket = opened.setdefault(key, _Bucket())
            bucket.members.append(replace(each, moves=moves))
            bucket.nbytes += first.nbytes
            bucket.last, bucket.read = each.known, min(bucket.read, each.read)
            if len(moves) > 1 and (moves[1] is None or key[3] == AWAITED):
                # What comes next reads the result at once.
                yield opened.pop(key)
        yield from opened.values()

    def _key(self, value: int, first: Sum) -> tuple[object, ...]:
        graph = self.graph
        made = graph.producer[value]
        assert made is not None
        group, dtype = graph.shared(DeferredSums).group[value], graph.values[value].dtype
        lifetime = made[0].left_in
        return first.kind, first.axes, first.monoid, group, dtype, lifetime[1:]

    def _saved_seconds(self, bucket: _Bucket) -> float:
        model, outputs = self.model, self.graph.outputs
        made = self.graph.producer[bucket.members[0].value]
        times = made[0].left_in.times if made else 1
        sums = [each.moves[0] for each in bucket.members if each.moves[0] is not None]
        lane = sums[0].kind, sums[0].axes
        stored = sum(each.stored_bytes for each in sums)
        seconds = bucket_seconds(model, lane, bucket.nbytes, stored)
        for member, each in zip(bucket.members, sums, strict=True):
            if member.value in outputs and len(member.moves) == 1:
                # The caller gets a copy, and not the bucket with it.
                copied = model.local_copy((stored + each.stored_bytes) / 2)
                seconds += model.cluster.launch_seconds + copied
        return times * (sum(each.seconds for each in sums) - seconds)

    def _chains(self, pairs: Steps, itemsize: int, is_deferred: bool) -> tuple[Chain, ...]:
        """Returns the moves that follow one another: sums, and None for all others.

        What leads on from where nothing is pending stands where it is read, and isn't a part.
        """
        key = pairs, itemsize, is_deferred
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = tuple(self._new_chains(pairs, itemsize, is_deferred))
        return found

    def _new_chains(self, pairs: Steps, itemsize: int, is_deferred: bool) -> Iterator[Chain]:
        chains: dict[Form, Chain] = {}
        for source, target in pairs:
            if source.layout.partial:
                plan = self.graph.space.plan(source, target, itemsize, deferred=is_deferred)
                moves = sums_of(self.model, source.layout, plan, itemsize)
                chains[target] = (*chains.pop(source, ()), *(each for _, each in moves))
        return (chain for chain in chains.values() if any(chain))
