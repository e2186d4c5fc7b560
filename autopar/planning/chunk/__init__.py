"""Chunks: parts of a program that are computed piece by piece, one after another.

Time is taken for a mesh axis, whose coordinate is an iteration. What the user names is cut along a
dimension; the region around it that follows (`region`) becomes ops of a loop (`write`). All that is
behind this sees ordinary ops, which count as often as they run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.annotate import ChunkPin
from autopar.base.errors import AnnotationError
from autopar.base.units import counted
from autopar.ir.program import Program
from autopar.planning.chunk.best import Made, NothingGained, best_cut
from autopar.planning.chunk.region import bytes_of
from autopar.planning.chunk.wanted import Wanted, marked, matching


@dataclass(frozen=True)
class Left:
    """What a pin matches that is in no parts.

    Attributes:
        pin: The pin.
        matches: How many modules and values it matches.
        misses: Those of them that can't be cut, and why.
    """

    pin: ChunkPin
    matches: int
    misses: tuple[NothingGained, ...]


@dataclass(frozen=True)
class Chunks:
    """A program in which what the user names is computed in parts.

    Attributes:
        program: The program.
        made: The cuts, in the order in which they were made.
        left: What pins match besides.
    """

    program: Program
    made: tuple[Made, ...] = ()
    left: tuple[Left, ...] = ()


def chunked(program: Program, pins: Sequence[ChunkPin], *, phases_apart: bool = False) -> Program:
    """Returns a program in which what the user names is computed in parts.

    Args:
        program: A serial program.
        pins: What is named, besides what the model marks.
        phases_apart: Whether what is computed in one phase waits for no other one.

    Raises:
        AnnotationError: If a name matches nothing, or nothing that it matches can be cut so.
    """
    return in_chunks(program, pins, phases_apart=phases_apart).program


def in_chunks(program: Program, pins: Sequence[ChunkPin], *, phases_apart: bool = False) -> Chunks:
    """Returns the same, with what was cut, and what wasn't; arguments as `chunked`."""
    cuts, left = _Cuts(program, phases_apart), []
    for wanted in marked(program.main):
        cuts.add([wanted])
    for pin in pins:
        found, misses = matching(cuts.main, pin), []
        for name, values in found:
            try:
                cuts.add([Wanted(name, each, pin.dim, pin.parts, pin.place) for each in values])
            except NothingGained as miss:
                misses.append(miss)
        if len(misses) == len(found):
            raise _none(misses, pin)
        if misses:
            left.append(Left(pin, len(found), tuple(misses)))
    if cuts.made:
        program = program.with_main(cuts.main)
    return Chunks(program, tuple(cuts.made), tuple(left))


def _none(misses: Sequence[NothingGained], pin: ChunkPin) -> AnnotationError:
    """Returns the error of a pin that matches nothing that can be cut."""
    if len(misses) == 1:
        return misses[0]
    return AnnotationError(
        f"{pin.place}: none of {counted(len(misses), 'module')} and values that match can be"
        f" computed in {pin.parts} parts; {misses[0].name!r}: {misses[0].why}; name another value"
        " or dimension, or leave it out"
    )


class _Cuts:
    """Cuts one value after another.

    Args:
        program: The serial program.
        phases_apart: As of `chunked`.

    Attributes:
        main: Its main function, as far as it is cut.
        made: The cuts.
    """

    def __init__(self, program: Program, phases_apart: bool) -> None:
        self.main, self.made = program.main, list[Made]()
        self._program, self._phases_apart = program, phases_apart
        self._loops: dict[tuple[int | None, int], set[str]] = {}

    def add(self, wanted: Sequence[Wanted]) -> None:
        """Cuts a value, unless it is cut in the same way since that follows from another's cut.

        Args:
            wanted: Values of which one is to be cut.

        Raises:
            AnnotationError: If nothing is gained by any.
        """
        known = self._loops.setdefault((wanted[0].dim, wanted[0].parts), set())
        known_as = {**self.main.values, **self._program.main.values}
        largest = max((each.value for each in wanted), key=lambda name: bytes_of(known_as[name]))
        makers = self.main.producers()
        if largest not in makers or not known.isdisjoint(dict(makers[largest].loops)):
            return
        there = [one for one in wanted if one.value in makers]
        made = best_cut(self.main, self._program, there, self._phases_apart)
        known.update(made.loops)
        self.main = made.after
        self.made.append(made)
