"""The halo: what iterations hold of what they make, where windows read more than their blocks.

An op of a chain of convolutions computes what the next one reads: its block and a halo around it,
which the iterations beside it compute again. So what an iteration holds follows from the last ops
to the first, by the windows of their rules. What is left of it, and what is summed, are blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

from autopar.ir.program import Op
from autopar.ir.rules.rule import SAME
from autopar.ir.rules.window import Fill
from autopar.planning.chunk.cut import Cut, known
from autopar.planning.chunk.levels import Level, levels_in
from autopar.planning.chunk.local import Piece, moved_call
from autopar.planning.chunk.narrow import Narrowing
from autopar.planning.chunk.reach import Reach
from autopar.planning.chunk.region import Key, Region
from autopar.planning.chunk.split import Cutting, Inadmissible, read_of, windows_of


class Read(NamedTuple):
    """What an op reads of an operand.

    Attributes:
        reach: The elements; they may lie beyond the border.
        fill: What stands there.
    """

    reach: Reach
    fill: Fill


class NoHalo(Inadmissible):
    """An op that can't compute a halo.

    Args:
        key: Its results.
    """

    def __init__(self, key: Key) -> None:
        super().__init__("what reads it through windows needs more than a part of it")
        self.key = key


@dataclass
class Held:
    """What the iterations of a piece hold.

    Attributes:
        region: The region.
        level: Whose ops they are.
        wanted: What other levels read, put together.
        piece: The piece.
        ops: How much of the factor that is split each op computes.
        values: How much of each value there is, along the dimension that is cut.
        is_known: Whether the sizes of all that the region cuts are known.
    """

    region: Region
    level: Level
    wanted: Collection[str]
    piece: Piece
    ops: dict[Key, Reach] = field(default_factory=dict)
    values: dict[str, Reach] = field(default_factory=dict)
    is_known: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_known = self.region.is_known
        if not self.is_known:
            for op in self.level.ops:
                self._compute_block(op, self.region.ops[op.results])
            return
        made = {name for op in self.level.ops for name in op.results}
        wants: dict[str, Reach] = {}
        for op in reversed(self.level.ops):
            self._compute(op, self.region.ops[op.results], wants)
            for at, (name, need) in enumerate(self._operands(op)):
                if need is None or name not in made or self.region.cuts.get(name) != need:
                    continue
                reach, inner = self.read(op, at).reach, known(need.inner)
                reach = reach.within(inner)
                others = wants.get(name)
                wants[name] = reach if others is None else others.joined(reach, inner)

    def own(self, cut: Cut) -> Reach:
        """Returns the block of an iteration."""
        inner, block, length = cut.inner, cut.runs[0].block, cut.size(self.piece.at)
        if isinstance(inner, int) and isinstance(block, int) and isinstance(length, int):
            return Reach.of_blocks(inner, block, length)
        return Reach.of_open(cut.start(self.piece.at), length)

    def read(self, op: Op, at: int) -> Read:
        """Returns what an op reads of an operand that is cut."""
        found = self.region.ops[op.results]
        if isinstance(found, Narrowing) or not self.is_known:
            need = found.operands[at]
            assert need is not None
            return Read(self.own(need), 0)
        window, behind = read_of(found.rule, found.rule.operands[at], found.factor)
        minor = known(behind)
        reach = self.ops[op.results]
        if window is None:
            return Read(reach.times(minor), 0)
        return Read(reach.read(window).times(minor), window.fill)

    def is_block(self, op: Op) -> bool:
        """Whether an op computes no halo."""
        found = self.region.ops[op.results]
        return self.ops[op.results].is_same(self.own(found.own), self.piece.iterations)

    def _operands(self, op: Op) -> Sequence[tuple[str, Cut | None]]:
        return list(zip(op.operands, self.region.ops[op.results].operands, strict=True))

    def _compute_block(self, op: Op, found: Cutting) -> None:
        """Notes that an op computes blocks, of which sizes are open.

        Raises:
            NoHalo: If it reads more than that.
        """
        if not isinstance(found, Narrowing) and windows_of(found.rule, found.factor):
            raise NoHalo(op.results)
        self.ops[op.results] = self.own(found.own)
        for name, part in zip(op.results, found.results, strict=True):
            if isinstance(part, Cut):
                self.values[name] = self.own(part)

    def _compute(self, op: Op, found: Cutting, wants: Mapping[str, Reach]) -> None:
        """Notes what an op computes of its results, of which others want something.

        Raises:
            NoHalo: If it can't.
        """
        if isinstance(found, Narrowing):
            self._narrow(op, found, wants)
            return
        again, share, needed, reduced = self.level.again, self.own(found.own), list[Reach](), False
        inner = known(found.own.inner)
        for at, (name, part) in enumerate(zip(op.results, found.results, strict=True)):
            if name in wants:
                needed.append(wants[name].over(self._minor(found, at)).within(inner))
            is_reduced = not isinstance(part, Cut) and part != SAME
            if name not in again and (is_reduced or self.region.is_left(name, self.wanted)):
                needed.append(share)
                reduced |= is_reduced
        reach = reduce(lambda one, other: one.joined(other, inner), needed or [share])
        if not reach.is_same(share, self.piece.iterations):
            parts = (part for part in (*found.operands, *found.results) if isinstance(part, Cut))
            side_by_side = found.own.outer != 1 or any(part.outer != 1 for part in parts)
            if reduced or side_by_side:
                raise NoHalo(op.results)
            if moved_call(found, op.kind, reach, self.piece) is None:
                raise NoHalo(op.results)
        self.ops[op.results] = reach
        for at, (name, part) in enumerate(zip(op.results, found.results, strict=True)):
            if isinstance(part, Cut):
                self.values[name] = reach.times(self._minor(found, at))

    def _narrow(self, op: Op, found: Narrowing, wants: Mapping[str, Reach]) -> None:
        """Notes that a slice, or its gradient, makes blocks.

        Raises:
            NoHalo: If others want more.
        """
        (name,), (part,) = op.results, found.results
        assert isinstance(part, Cut)
        self.ops[op.results], self.values[name] = self.own(found.own), self.own(part)
        if name in wants and not wants[name].is_same(self.own(part), self.piece.iterations):
            raise NoHalo(op.results)

    @staticmethod
    def _minor(found: Cutting, at: int) -> int:
        return known(read_of(found.rule, found.rule.results[at], found.factor)[1])


def pieces_of(region: Region, loop: str) -> list[Piece]:
    """Returns the pieces of a loop: those of whole blocks, and what is left.

    Args:
        region: The region.
        loop: The name of the loop.
    """
    cut, pieces, first = region.cuts[region.seed], list[Piece](), 0
    for at, (_, times) in enumerate(cut.runs):
        number = f"{at + 1}" if at else ""
        name = f"{loop}_run{number}" if at else loop
        pieces.append(Piece(name if times > 1 else "", first, times, f"part{number}", at))
        first += times
    if cut.rest != 0:
        pieces.append(Piece("", first, 1, "rest", len(cut.runs)))
    return pieces


def without_halo(region: Region) -> dict[Key, str]:
    """Returns why ops can't compute a halo that they would have to: of each level, the last one."""
    levels, found = levels_in(region), dict[Key, str]()
    wanted = frozenset(name for level in levels for name in level.reads)
    for level in levels:
        cuttings = (region.ops[op.results] for op in level.ops)
        if not any(windows_of(each.rule, each.factor) for each in cuttings):
            continue
        try:
            for piece in pieces_of(region, region.loop):
                Held(region, level, wanted, piece)
        except NoHalo as why:
            found[why.key] = str(why)
    return found
