"""Cuts: how iterations share a tensor along one dimension.

    Cut(dim=0, outer=1, inner=4096, runs=[512 x 8])   rows 512 t to 512 t + 512 of 4,096
    Cut(dim=0, outer=2, inner=2048, runs=[256 x 8])   of each half, rows 256 t to 256 t + 256

Iterations of a loop are alike, and as many whatever a size is that is open, so how many elements
they have follows from that. Blocks are by the floor then. What is left is less than an element for
each iteration. Where that may be more than the planned size has in a block, it is run through in
the same way, in fewer iterations, so that no smaller size has larger parts:

    Cut(dim=0, outer=1, inner=$rows, runs=[$rows // 64 x 64, ...])
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from autopar.ir.dims import block_size
from autopar.ir.expr.expression import IntExpr, planned


class Run(NamedTuple):
    """Iterations, one after another, that are alike.

    Attributes:
        block: How many elements each has.
        times: How many iterations there are.
    """

    block: IntExpr
    times: int


class Cut(NamedTuple):
    """How iterations share a tensor.

    Attributes:
        dim: The dimension that is cut. It is `outer` times `inner` elements.
        outer: How often there is what is cut, side by side.
        inner: How many elements are cut.
        runs: The iterations; what these leave is one more.
    """

    dim: int
    outer: IntExpr
    inner: IntExpr
    runs: tuple[Run, ...]

    @classmethod
    def into(
        cls,
        parts: int,
        dim: int,
        outer: IntExpr,
        size: IntExpr,
        unit: IntExpr = 1,
        spared: int = 0,
    ) -> Cut:
        """Returns how iterations share a dimension.

        Args:
            parts: How many there are at most, if the size is known; else in the first run.
            dim: The dimension.
            outer: How often there is what is cut, side by side.
            size: How many units are cut.
            unit: How many elements stay together.
            spared: How many units are in no block, so that what has so many less can be cut too.
        """
        if isinstance(size, int):
            block = block_size(size, parts)
            return cls(dim, outer, size * unit, (Run(block * unit, size // block),))
        runs = (Run(run.block * unit, run.times) for run in _runs(size - spared, parts))
        return cls(dim, outer, size * unit, tuple(runs))

    @property
    def parts(self) -> int:
        """How many iterations there are, with that which has what is left."""
        return sum(run.times for run in self.runs) + (self.rest != 0)

    @property
    def rest(self) -> IntExpr:
        """What is left for one more iteration."""
        return self.inner - self.start(len(self.runs))

    @property
    def number(self) -> tuple[int, ...]:
        """How many iterations there are in each run, and behind them."""
        return (*(run.times for run in self.runs), int(self.rest != 0))

    @property
    def share(self) -> float:
        """Which part of what is cut an iteration has at most, as planned."""
        blocks = (self.rest, *(run.block for run in self.runs))
        return max(map(planned, blocks)) / max(1, planned(self.inner))

    @property
    def is_known(self) -> bool:
        """Whether the size of what is cut is known."""
        return isinstance(self.inner, int)

    def of_blocks(self, inner: int, block: int) -> Cut:
        """Returns how it is shared in blocks, with one of what is left."""
        return self._replace(inner=inner, runs=(Run(block, inner // block),))

    def fills(self, parts: int) -> bool:
        """Whether there is something for each of so many iterations, as planned."""
        return planned(self.inner) >= parts and planned(self.runs[0].block) > 0

    def start(self, at: int) -> IntExpr:
        """Returns the first element of a run, or of what is left."""
        begin: IntExpr = 0
        for run in self.runs[:at]:
            begin = begin + run.times * run.block
        return begin

    def size(self, at: int) -> IntExpr:
        """Returns how many elements an iteration of a run has, or of what is left."""
        return self.runs[at].block if at < len(self.runs) else self.rest

    def shorter(self, number: int) -> Cut:
        """Returns how an open size is shared so that what has some elements less can be, too."""
        return Cut.into(self.runs[0].times, self.dim, self.outer, self.inner, spared=number)

    def times(self, more: IntExpr) -> Cut:
        """Returns how iterations share what has so many elements for each."""
        runs = tuple(Run(run.block * more, run.times) for run in self.runs)
        return self._replace(inner=self.inner * more, runs=runs)


def known(size: IntExpr) -> int:
    """Returns a size that isn't open."""
    assert isinstance(size, int), size
    return size


def _runs(size: IntExpr, times: int) -> Iterator[Run]:
    """Yields iterations over an open size, of which no smaller one has larger blocks."""
    most = max(1, planned(size) // times)
    while True:
        run = Run(size // times, times)
        yield run
        size = size - times * run.block
        # That is less than `times`.
        if size == 0 or times <= most + 1:
            return
        times = block_size(times, most + 1)
