"""Regions: which ops iterations share, when a value is cut over time.

A region grows from the value, both ways, through the factors of the ops' rules, as long as values
are about as large: what is much smaller costs little to be put together. It ends where the rule of
an op doesn't allow the cut, or what is cut is summed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from autopar.ir.expr.expression import planned
from autopar.ir.ops import PRODUCTS, rule_of
from autopar.ir.ops.loops import ENTERS, LEAVES
from autopar.ir.program import Function, Loops, Op, Value
from autopar.ir.rules.rule import SAME
from autopar.planning.chunk.cut import Cut
from autopar.planning.chunk.narrow import narrowing_of
from autopar.planning.chunk.searching import searching_of
from autopar.planning.chunk.split import Cutting, Inadmissible, Misaligned, cutting_of

Key = tuple[str, ...]
"""Names an op: its results."""

NOTHING: Mapping[Key, str] = MappingProxyType({})
"""No ops."""

Known = dict[tuple[int, Cut, int, int], tuple[Op, Cutting | Inadmissible]]
"""How iterations of a loop share ops, or why they can't, as regions that grew before know."""


@dataclass
class Region:
    """Ops that iterations share.

    Attributes:
        main: The function.
        loop: The name of the loop.
        seed: The value from which the region grows.
        phases_apart: Whether what is computed in one phase waits for no other one.
        ops: How iterations share its ops.
        cuts: How they share values.
        refused: Why ops that read or make what is cut are in no iteration.
        banned: What is known of that from before.
        is_misaligned: Whether one of these would be in another number of parts.
    """

    main: Function
    loop: str
    seed: str
    phases_apart: bool = False
    ops: dict[Key, Cutting] = field(default_factory=dict)
    cuts: dict[str, Cut] = field(default_factory=dict)
    refused: dict[Key, str] = field(default_factory=dict)
    banned: Mapping[Key, str] = field(default_factory=dict)
    is_misaligned: bool = False

    def gained(self, values: Collection[str]) -> int:
        """Returns the bytes of values that are never there as a whole, less those that still are.

        Args:
            values: Those that count.
        """
        gained = 0
        for name in (name for key in self.ops for name in key):
            if name in values and name in self.cuts and self.is_large(name):
                size = self.bytes_of(name)
                gained += -size if self.is_left(name, ()) else size
        return gained

    def reads_part(self, op: Op, name: str) -> bool:
        """Whether an op reads a value in the parts that iterations make."""
        found, cut = self.ops.get(op.results), self.cuts.get(name)
        if found is None or cut is None:
            return False
        needs = zip(op.operands, found.operands, strict=True)
        return all(need == cut for each, need in needs if each == name)

    def is_left(self, name: str, wanted: Collection[str]) -> bool:
        """Whether anything reads a result as a whole.

        Args:
            name: The result.
            wanted: What other levels read, put together.
        """
        if name in self.main.outputs or name in wanted:
            return True
        return not all(self.reads_part(op, name) for op in self.readers[name])

    @cached_property
    def is_known(self) -> bool:
        """Whether the sizes of all that is cut are known, once it has grown."""
        owns = (found.own for found in self.ops.values())
        return all(cut.is_known for cut in (*self.cuts.values(), *owns))

    @cached_property
    def around(self) -> Loops:
        """The loops around it."""
        return next((op.loops for op in self.main.ops if self.seed in op.results), ())

    def loop_beside(self, op: Op) -> Loops:
        """Returns the outermost loop of an op that isn't around the region, behind those around it.

        Nothing if there is none.
        """
        for at, loop in enumerate(op.loops):
            if self.around[at : at + 1] != (loop,):
                return op.loops[: at + 1]
        return ()

    @cached_property
    def places(self) -> Mapping[Key, int]:
        """Where its ops are in the program, once it has grown; in order."""
        return {op.results: at for at, op in enumerate(self.main.ops) if op.results in self.ops}

    @cached_property
    def makers(self) -> Mapping[str, Op]:
        """The op that makes each value."""
        return self.main.producers()

    @cached_property
    def readers(self) -> Mapping[str, Sequence[Op]]:
        """The ops that read each value."""
        return self.main.consumers()

    def bytes_of(self, name: str) -> int:
        """Returns the bytes of a value."""
        return bytes_of(self.main.values[name])

    def is_large(self, name: str) -> bool:
        """Whether a value is at least half as large as the one that is cut."""
        return 2 * _count(self.main.values[name]) >= self._seed_count

    @cached_property
    def _seed_count(self) -> int:
        return _count(self.main.values[self.seed])


def _count(value: Value) -> int:
    return math.prod(map(planned, value.shape))


def bytes_of(value: Value) -> int:
    """Returns the bytes of a value, as planned."""
    return _count(value) * value.itemsize


def grown(
    main: Function,
    loop: str,
    seed: str,
    cut: Cut,
    *,
    phases_apart: bool = False,
    banned: Mapping[Key, str] = NOTHING,
    known: Known | None = None,
) -> Region:
    """Returns the region of a value that is cut.

    Args:
        main: The function.
        loop: The name of the loop.
        seed: The value.
        cut: How it is cut.
        phases_apart: Whether what is computed in one phase waits for no other one.
        banned: Ops that are in no iteration, and why.
        known: What regions of the same loop have found out; more is added.
    """
    region = Region(main, loop, seed, phases_apart, cuts={seed: cut}, banned=banned)
    _Growth(region, {} if known is None else known).grow()
    return region


class _Growth:
    """Lets a region grow.

    Args:
        region: The region.
        known: What others have found out.
    """

    def __init__(self, region: Region, known: Known) -> None:
        self._region, self._main, self._known = region, region.main, known
        self._makers = region.makers
        self._ops = [(op, op.operands) for op in self._main.ops]
        self._made: set[str] = set()
        self._small: dict[str, Cut] = {}

    def grow(self) -> None:
        """Adds all ops around large values, and then those on ways between them."""
        waiting, count = [self._region.seed], -1
        while waiting or count < len(self._region.ops):
            if waiting:
                waiting += self._around(waiting.pop())
            else:
                count = len(self._region.ops)
                waiting += [*self._between(), *self._spread()]

    def _around(self, name: str) -> Iterator[str]:
        """Adds the ops around a value; yields the large values around these."""
        made = self._makers.get(name)
        cut = self._region.cuts[name]
        if made is not None:
            yield from self._add(made, cut, result=made.results.index(name))
        for op in self._region.readers[name]:
            yield from self._add(op, cut, operand=op.operands.index(name))

    def _add(self, op: Op, cut: Cut, operand: int = -1, result: int = -1) -> Iterator[str]:
        """Adds an op, if its rule allows it; yields the large values around it."""
        region = self._region
        if op.results in region.ops or op.phase == "update" or op.loops != region.around:
            return
        if op.kind in (*ENTERS, *LEAVES):
            return
        try:
            if op.results in region.banned:
                raise Inadmissible(region.banned[op.results])
            found = self._cutting(op, cut, operand, result)
            self._check(op, found)
        except Inadmissible as why:
            region.is_misaligned |= isinstance(why, Misaligned)
            region.refused.setdefault(op.results, str(why))
            return
        region.ops[op.results] = found
        self._made.update(op.results)
        for name, part in zip(op.results, found.results, strict=True):
            if isinstance(part, Cut) and name not in region.cuts:
                region.cuts[name] = part
                if region.is_large(name):
                    yield name
                else:
                    self._small[name] = part
        for name, need in zip(op.operands, found.operands, strict=True):
            made = self._makers.get(name)
            if made is not None and made.results in region.ops:
                continue
            if need is None or name in region.cuts:
                continue
            if region.is_large(name):
                region.cuts[name] = need
                yield name
            else:
                self._small.setdefault(name, need)

    def _cutting(self, op: Op, cut: Cut, operand: int, result: int) -> Cutting:
        """Returns an op as iterations share it.

        Raises:
            Inadmissible: If they can't.
        """
        way = id(op), cut, operand, result
        if way not in self._known:
            # With the op, so that no other one gets its number.
            self._known[way] = op, self._found(op, cut, operand, result)
        _, found = self._known[way]
        if isinstance(found, Inadmissible):
            raise found
        return found

    def _found(self, op: Op, cut: Cut, operand: int, result: int) -> Cutting | Inadmissible:
        values = self._main.values
        try:
            found = narrowing_of(op, values, cut, operand) or searching_of(op, values, cut, operand)
            return found or cutting_of(op, values, self._region.loop, cut, operand, result)
        except Inadmissible as why:
            return why

    def _check(self, op: Op, found: Cutting) -> None:
        """Refuses an op that leaves another part of a value than its readers need."""
        for name, part in zip(op.results, found.results, strict=True):
            if name in self._region.cuts and self._region.cuts[name] != part:
                raise Inadmissible("another part of it is needed")
            if part == SAME and (self._region.readers[name] or name in self._main.outputs):
                raise Inadmissible(f"each part would compute all of %{name}")
        seed = self._region.cuts[self._region.seed]
        for cut in (*found.operands, *found.results):
            if isinstance(cut, Cut) and cut.number != seed.number:
                raise Misaligned("it has another number of parts")

    def _between(self) -> Iterator[str]:
        """Adds ops between ops of the region; yields the large values around them."""
        after = self._made.copy()
        for op, operands in self._ops:
            if not after.isdisjoint(operands):
                after.update(op.results)
        before: set[str] = set()
        for op, operands in reversed(self._ops):
            if op.results in self._region.ops:
                before.update(operands)
            elif not before.isdisjoint(op.results):
                before.update(operands)
                if not after.isdisjoint(operands):
                    yield from self._join(op, operands)

    def _spread(self) -> Iterator[str]:
        """Adds ops that spread small values over a gradient, as that of what was picked of scores.

        Yields:
            The large values around them.
        """
        for name, cut in [*self._small.items()]:
            for op in self._region.readers[name]:
                if op.phase == "backward" and op.kind not in PRODUCTS and self._spreads(op, cut):
                    yield from self._add(op, cut, operand=op.operands.index(name))

    def _spreads(self, op: Op, cut: Cut) -> bool:
        """Whether an op that reads a small value makes a large one, which is cut as that."""
        shapes = (self._main.values[name].shape for name in op.results)
        large = [self._region.is_large(name) for name in op.results]
        return any(large) and all(
            len(shape) > cut.dim and shape[cut.dim] == cut.outer * cut.inner for shape in shapes
        )

    def _join(self, op: Op, operands: Sequence[str]) -> Iterator[str]:
        """Adds an op on a way between others, by what it reads of them."""
        for at, name in enumerate(operands):
            if name in self._made and name in self._region.cuts:
                yield from self._add(op, self._region.cuts[name], operand=at)


def with_bodies(main: Function, ops: Sequence[Op]) -> Function:
    """Returns a function in which the first body of some ops stands for them."""
    values, keys = dict(main.values), {op.results for op in ops}

    def fresh(hint: str) -> str:
        name, count = hint, 0
        while name in values:
            name, count = f"{hint}_{count + 1}", count + 1
        values[name] = main.values[main.outputs[0]]
        return name

    done: list[Op] = []
    for op in main.ops:
        rule = rule_of(op, main.values) if op.results in keys else None
        if rule is None or not rule.bodies:
            done.append(op)
            continue
        written, new = rule.bodies[0].expand(op, values, fresh)
        done.extend(written)
        values.update((value.name, value) for value in new)
    used = {*main.inputs, *(name for op in done for name in op.results)}
    return Function(
        main.name,
        main.inputs,
        main.outputs,
        {name: value for name, value in values.items() if name in used},
        tuple(done),
        main.aliases,
    )
