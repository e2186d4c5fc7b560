"""Slots: where in a tensor mesh axes split it, in the form in which a single move can change it.

A layout whose split divides evenly is a set of digits: over axis `a` of 4 processes, `768@a` means
that the digit of radix 4 at stride 192 of the index is the coordinate of `a`. Digits come and go
independently of one another, in any order, and a permutation of axes moves digits about. A split
that doesn't divide evenly is one region whose blocks all axes make together; only its minor axes
come and go, and only where the remaining block boundaries coincide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from autopar.cost.collectives import Border
from autopar.cost.reshard.places import Place, cut, nests, places_of
from autopar.ir.dims import DimLayout, SubDim, block_size, dim_size, normalize_dim
from autopar.ir.expr.expression import IntExpr, planned, prod
from autopar.ir.expr.facts import divides
from autopar.ir.mesh import ProcessMesh

Dims = tuple[DimLayout, ...]
Numbers = tuple[int, ...]
"""Dimensions as a `SlotTable` numbers them."""

Span = tuple[int, int]
"""Between which strides axes split a dimension: of their digits, and of what these make up."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Axes that split a sub-dimension and can be put there, or taken away, by one move.

    Attributes:
        axes: The axes, major to minor.
        place: The sub-dimension.
        prefix: The axes, major to these, that split the sub-dimension already.
        region: All axes of a split that doesn't divide evenly; empty for digits.
    """

    axes: tuple[str, ...]
    place: Place
    prefix: tuple[str, ...] = ()
    region: tuple[str, ...] = ()

    @property
    def is_digit(self) -> bool:
        """Whether this is a single digit, independent of all other slots."""
        return len(self.axes) == 1 and not self.region


@dataclass(frozen=True, slots=True)
class Cut:
    """A dimension of which each process holds one stretch.

    Attributes:
        axes: The axes that number the stretches, major to minor.
        block: Elements of each but the last ones.
        size: Elements of all.
    """

    axes: tuple[str, ...]
    block: IntExpr
    size: IntExpr


class SlotTable:
    """The slots of layouts on one mesh; what was derived for a dimension is remembered.

    Args:
        mesh: The mesh.
        axes: Those of its axes that may split.
        borders: Those around groups of processes along these axes.
    """

    def __init__(self, mesh: ProcessMesh, axes: tuple[str, ...], borders: Sequence[Border]) -> None:
        self.mesh = mesh
        self.axes = axes
        self.borders = tuple(borders)
        self._counts: dict[tuple[str, ...], int] = {}
        self._numbers: dict[DimLayout, int] = {}
        self._dims: list[DimLayout] = []
        self._axes: list[tuple[str, ...]] = []
        self._even: list[bool] = []
        self._runs: list[int] = []
        self._elements: list[int] = []
        self._shared: list[dict[tuple[int, int], int]] = [{} for _ in borders]
        self._spans: dict[int, tuple[Span, ...] | None] = {}
        self._slots: dict[tuple[int, int], tuple[Slot, ...]] = {}
        self._single: dict[tuple[int, int], dict[Slot, None]] = {}
        self._changes: dict[object, int | None] = {}
        self._vacant: dict[tuple[int, int, tuple[str, ...]], tuple[Slot, ...]] = {}
        self._recut: dict[tuple[IntExpr, tuple[str, ...]], int] = {}
        self._cuts: dict[int, Cut | None] = {}
        self._relabeled: dict[tuple[int, tuple[tuple[str, ...], ...]], int] = {}
        self._refines: dict[tuple[int, tuple[int, int]], bool] = {}

    def numbered(self, dims: Dims) -> Numbers:
        """Returns dimensions as numbers, which are fast to compare and to look up."""
        return tuple(self._number(dim) for dim in dims)

    def dims(self, numbers: Numbers) -> Dims:
        """Returns the dimensions with these numbers."""
        return tuple(self._dims[number] for number in numbers)

    def _number(self, dim: DimLayout) -> int:
        number = self._numbers.get(dim)
        if number is None:
            number = self._numbers[dim] = len(self._dims)
            self._dims.append(dim)
            self._runs.append(sum(bool(sub.axes) for sub in dim))
            self._even.append(all(divides(self.count(sub.axes), sub.size) for sub in dim))
            self._axes.append(tuple(axis for sub in dim for axis in sub.axes))
            self._elements.append(
                planned(prod(block_size(sub.size, self.count(sub.axes)) for sub in dim))
            )
        return number

    def count(self, axes: tuple[str, ...]) -> int:
        """Returns the number of processes along axes."""
        count = self._counts.get(axes)
        if count is None:
            count = self._counts[axes] = self.mesh.axes_size(axes)
        return count

    def elements(self, numbers: Numbers) -> int:
        """Returns the number of elements of the largest piece."""
        product = 1
        for number in numbers:
            product *= self._elements[number]
        return product

    def uneven(self, numbers: Numbers) -> int:
        """Returns how many dimensions have pieces that differ in size."""
        return sum(not self._even[number] for number in numbers)

    def shared(self, numbers: Numbers, others: Numbers, border: int = 0) -> int:
        """Returns at most how many elements of another layout's piece a group of devices holds.

        Args:
            numbers: The layout that the group's devices have.
            others: The other layout.
            border: Which border is around the group.
        """
        known = self._shared[border]
        product = 1
        for pair in zip(numbers, others, strict=True):
            shared = known.get(pair)
            if shared is None:
                shared = known[pair] = self._group_shared(*pair, self.borders[border])
            product *= shared
        return product

    def _group_shared(self, number: int, other: int, border: Border) -> int:
        """Elements of a dimension: what each of the group's pieces shares, unless they agree."""
        shared = self._dim_shared(number, other)
        if number == other:
            return shared
        pieces = border.members(axis for sub in self._dims[number] for axis in sub.axes)
        return min(pieces * shared, self._elements[other])

    def _dim_shared(self, number: int, other: int) -> int:
        """Elements of a dimension: of digits, those where all that either layout splits agree."""
        least = min(self._elements[number], self._elements[other])
        one, another = self._spans_of(number), self._spans_of(other)
        shared = dim_size(self._dims[number])
        if one is None or another is None or not isinstance(shared, int):
            return least
        spans = one + another
        for low, high in pairwise(sorted({end for span in spans for end in span})):
            if high % low:
                return least
            if any(start <= low and high <= end for start, end in spans):
                shared //= high // low
        return shared

    def _spans_of(self, number: int) -> tuple[Span, ...] | None:
        """Returns between which strides a dimension is split; None if it doesn't divide evenly."""
        if number not in self._spans:
            spans: list[Span] = []
            for place, sub in places_of(0, self._dims[number]):
                count = self.count(sub.axes)
                if count > 1 and isinstance(place.size, int) and isinstance(place.inner, int):
                    spans.append((place.inner * (place.size // count), place.inner * place.size))
            self._spans[number] = tuple(spans) if self._even[number] else None
        return self._spans[number]

    def filled(self, numbers: Numbers) -> list[Slot]:
        """Returns every slot that a layout fills: digits, runs of digits, parts of regions."""
        return [
            slot
            for position, number in enumerate(numbers)
            for slot in self.filled_in(position, number)
        ]

    def filled_in(self, position: int, number: int) -> tuple[Slot, ...]:
        """Returns the slots that a dimension fills."""
        slots = self._slots.get((position, number))
        if slots is None:
            slots = self._slots[position, number] = tuple(
                self._dim_slots(position, self._dims[number])
            )
        return slots

    def vacant(self, numbers: Numbers, axes: tuple[str, ...]) -> list[Slot]:
        """Returns slots for these axes that nothing fills yet, in every dimension.

        Of the many places in a sub-dimension that nothing splits it is enough to try those that
        leave room for some other axes outside, and the innermost one.
        """
        vacant: list[Slot] = []
        for position, number in enumerate(numbers):
            key = (position, number, axes)
            slots = self._vacant.get(key)
            if slots is None:
                slots = self._vacant[key] = tuple(
                    self._vacancies(position, self._dims[number], axes)
                )
            vacant += slots
        return vacant

    def axes_of(self, number: int) -> tuple[str, ...]:
        """Returns the axes that split a dimension."""
        return self._axes[number]

    def runs_count(self, numbers: Numbers) -> int:
        """Returns how many sub-dimensions are split."""
        return sum(self._runs[number] for number in numbers)

    def is_even(self, numbers: Numbers) -> bool:
        """Returns whether every split of a layout divides evenly."""
        return all(self._even[number] for number in numbers)

    def runs(self, numbers: Numbers) -> tuple[tuple[str, ...], ...]:
        """Returns the axes of every sub-dimension."""
        return tuple(sub.axes for number in numbers for sub in self._dims[number])

    def relabeled(self, numbers: Numbers, runs: Sequence[tuple[str, ...]]) -> Numbers:
        """Returns the layout with other axes, as many processes each, in every sub-dimension."""
        relabeled, start = [], 0
        for number in numbers:
            after = start + len(self._dims[number])
            relabeled.append(self._relabeled_dim(number, tuple(runs[start:after])))
            start = after
        return tuple(relabeled)

    def _relabeled_dim(self, number: int, runs: tuple[tuple[str, ...], ...]) -> int:
        key = (number, runs)
        found = self._relabeled.get(key)
        if found is None:
            pairs = zip(self._dims[number], runs, strict=True)
            found = self._number(tuple(SubDim(sub.size, run) for sub, run in pairs))
            self._relabeled[key] = found
        return found

    def recut(self, number: int, axes: tuple[str, ...]) -> int:
        """Returns a dimension as it is when cut by these axes alone."""
        size = dim_size(self._dims[number])
        if (size, axes) not in self._recut:
            dim = normalize_dim((SubDim(size, axes),), self.mesh)
            self._recut[size, axes] = self._number(dim)
        return self._recut[size, axes]

    def cut_of(self, number: int) -> Cut | None:
        """Returns how a dimension is cut; None if it isn't, or processes hold several stretches."""
        if number not in self._cuts:
            self._cuts[number] = self._cut_of(self._dims[number])
        return self._cuts[number]

    def _cut_of(self, dim: DimLayout) -> Cut | None:
        major, *minor = dim
        if not major.axes or any(sub.axes for sub in minor) or (minor and major.size == 1):
            return None
        inner = prod(sub.size for sub in minor)
        if not isinstance(inner, int):
            return None
        block = block_size(major.size, self.count(major.axes)) * inner
        return Cut(major.axes, block, major.size * inner)

    def may_become(self, numbers: Numbers, goal: Numbers) -> bool:
        """Returns whether local moves alone may lead to a goal: what is split stays so."""
        for pair in enumerate(zip(numbers, goal, strict=True)):
            refines = self._refines.get(pair)
            if refines is None:
                refines = self._refines[pair] = self._is_refined(pair[0], *pair[1])
            if not refines:
                return False
        return True

    def _is_refined(self, position: int, coarse: int, fine: int) -> bool:
        kept = self._single_in(position, fine)
        regions = {(slot.place, slot.region) for slot in kept}
        return all(
            slot in kept
            # A region may be cut further, but digits that aren't in the goal don't vanish in one.
            or (slot.region and self._is_cut_further(slot, regions))
            for slot in self._single_in(position, coarse)
        )

    def _single_in(self, position: int, number: int) -> dict[Slot, None]:
        """Returns the slots of a single axis that a dimension fills, in order."""
        found = self._single.get((position, number))
        if found is None:
            slots = self.filled_in(position, number)
            found = {slot: None for slot in slots if len(slot.axes) == 1}
            self._single[position, number] = found
        return found

    @staticmethod
    def _is_cut_further(slot: Slot, regions: Iterable[tuple[Place, tuple[str, ...]]]) -> bool:
        """Whether one of some regions is that of a slot, with as many axes or more."""
        count = len(slot.region)
        return any(p == slot.place and axes[:count] == slot.region for p, axes in regions)

    def fill(self, numbers: Numbers, slot: Slot) -> Numbers | None:
        """Returns the layout with the slot's axes put there, or None if they don't fit."""
        return self._change(numbers, slot.place, slot.prefix, slot.prefix + slot.axes)

    def clear(self, numbers: Numbers, slot: Slot) -> Numbers | None:
        """Returns the layout with the slot's axes taken away, or None if they aren't there."""
        return self._change(numbers, slot.place, slot.prefix + slot.axes, slot.prefix)

    def _change(
        self, numbers: Numbers, place: Place, before: tuple[str, ...], after: tuple[str, ...]
    ) -> Numbers | None:
        position = place.dim
        key = (numbers[position], place.outer, place.size, place.inner, before, after)
        if key not in self._changes:
            dim = self._changed(self._dims[numbers[position]], place, before, after)
            self._changes[key] = None if dim is None else self._number(dim)
        number = self._changes[key]
        return None if number is None else (*numbers[:position], number, *numbers[position + 1 :])

    def _changed(
        self, dim: DimLayout, place: Place, before: tuple[str, ...], after: tuple[str, ...]
    ) -> DimLayout | None:
        parts = cut(dim, [place], self.mesh)
        if parts is None or parts[1] != (SubDim(place.size, before),):
            return None
        changed = (*parts[0], SubDim(place.size, after), *parts[2])
        return normalize_dim(changed, self.mesh)

    def _dim_slots(self, position: int, dim: DimLayout) -> Iterator[Slot]:
        for place, sub in places_of(position, dim):
            if not sub.axes:
                continue
            if place.size != 0 and divides(self.count(sub.axes), place.size):
                yield from self._digits(place, sub.axes)
            else:
                yield from self._region(place, sub.axes)

    def _vacancies(self, position: int, dim: DimLayout, axes: tuple[str, ...]) -> Iterator[Slot]:
        count = self.count(axes)
        for place, sub in places_of(position, dim):
            taken = self.count(sub.axes)
            if place.size != 0 and divides(taken * count, place.size):
                minor = place.size // (taken * count)
                for room in self._rooms(minor, axes):
                    inner = minor // room * place.inner
                    outer = place.outer * taken * room
                    yield Slot(axes, Place(position, outer, count, inner))
            elif nests(place.size, taken, count):
                yield Slot(axes, place, sub.axes, sub.axes + axes)

    def _rooms(self, size: IntExpr, axes: tuple[str, ...]) -> dict[IntExpr, None]:
        """Returns how many elements to leave outside of axes: as other axes may need, or all."""
        others = [axis for axis in self.axes if axis not in axes]
        products = [
            self.count(chosen)
            for count in range(max(1, len(others)))
            for chosen in combinations(others, count)
        ]
        return dict.fromkeys([*(room for room in products if divides(room, size)), size])

    def _digits(self, place: Place, axes: tuple[str, ...]) -> Iterator[Slot]:
        outer, rest = place.outer, place.size
        for first in range(len(axes)):
            for last in range(first + 1, len(axes) + 1):
                count = self.count(axes[first:last])
                digits = Place(place.dim, outer, count, rest // count * place.inner)
                yield Slot(axes[first:last], digits)
            step = self.count(axes[first : first + 1])
            outer, rest = outer * step, rest // step

    def _region(self, place: Place, axes: tuple[str, ...]) -> Iterator[Slot]:
        for first in range(len(axes)):
            for last in range(first + 1, len(axes) + 1):
                prefix, mine = axes[:first], axes[first:last]
                if nests(place.size, self.count(prefix), self.count(mine)):
                    yield Slot(mine, place, prefix, axes)
