"""Sections: fused dimensions that a program only ever uses in parts.

The weights of query, key and value are often stored side by side: the columns of one matrix. Where
all three are alike, as 3 times 12 heads, a split goes between the sub-dimensions of that dimension.
Where several query heads share one of key and value, the parts differ, and what each rank needs, a
piece of every part, is no product of sub-dimensions.

Here it is found out which values are sections of one another: from an op that takes unequal pieces
of a dimension, the boundaries are carried through the factors of the ops around it, back to the
stored weights (and on to their gradients, if a program returns them), until each way ends at
an op that takes or puts such pieces, or that sums them up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from autopar.ir.expr.expression import is_open, prod
from autopar.ir.ops import rule_of
from autopar.ir.ops.shape.pieces import put, taken
from autopar.ir.program import STORED_ROLES, Function, Op, Value
from autopar.ir.rules.local_arg import Size, Sizes
from autopar.ir.rules.rule import Dims, Rule

MAX_PARTS = 8
"""The most parts: a dimension that is cut into more isn't one of a fused weight."""


@dataclass(frozen=True, slots=True)
class Section:
    """How a value consists of parts: their sizes along one of its dimensions."""

    dim: int
    sizes: tuple[int, ...]

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """(First index, index behind the last) of each part."""
        return tuple(pairwise((0, *accumulate(self.sizes))))


Sections = Mapping[str, Section]
"""The sections by the names of the values that consist of parts."""


class _Whole(Exception):
    """A value can't be taken apart, so none of those around it can."""


def find_sections(function: Function) -> Sections:
    """Returns the values that can be taken apart where that changes how they may be split.

    Those of one fused weight are all there or none of them. Every op around them reads and writes
    parts of them only: see `factor_parts`.
    """
    sections: dict[str, Section] = {}
    if function.aliases:
        # Whoever reads and writes state in place knows tensors, not parts of them.
        return sections
    around = _Around(function)
    for name, section in _seeds(function, around):
        if name in sections:
            continue
        try:
            group = _Group(around, name, section).found
        except _Whole:
            continue
        stored = [n for n in group if around.function.values[n].role in STORED_ROLES]
        if stored and sections.keys().isdisjoint(group):
            sections |= group
    return sections


class _Around:
    """A function with the ops around each value."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.producers = function.producers()
        self.consumers = function.consumers()

    def ops(self, name: str) -> Sequence[Op]:
        """Returns the ops that produce or read a value."""
        producer = self.producers.get(name)
        return (*([producer] if producer else []), *self.consumers[name])


def _seeds(function: Function, around: _Around) -> Iterator[tuple[str, Section]]:
    """Yields the values of which ops take unequal pieces, with these as sections."""
    for op in function.ops:
        pieces = taken(op, function.values)
        if pieces is None or op.operands[0] not in around.producers:
            continue
        name = op.operands[0]
        size = function.values[name].global_shape[pieces.dim]
        if not isinstance(size, int):
            continue
        bounds = {0, size}
        for other in around.consumers[name]:
            also = taken(other, function.values)
            if also is not None and also.dim == pieces.dim:
                bounds.update(bound for ends in also.ranges for bound in ends)
        stops = sorted(bounds)
        sizes = tuple(b - a for a, b in pairwise(stops))
        if 1 < len(sizes) <= MAX_PARTS and len(set(sizes)) > 1:
            yield name, Section(pieces.dim, sizes)


class _Group:
    """The values that must be taken apart together with one.

    Attributes:
        found: Their sections.
    """

    def __init__(self, around: _Around, name: str, section: Section) -> None:
        self.around = around
        self.values = around.function.values
        self.found: dict[str, Section] = {}
        self._queue: list[str] = []
        self._add(name, section)
        while self._queue:
            self._visit(self._queue.pop())
        # An op at which boundaries ended may by now have parts on its other side too.
        for value in tuple(self.found):
            for op in self.around.ops(value):
                self._through(op)
        if self._queue:
            raise _Whole

    def _add(self, name: str, section: Section) -> None:
        if name not in self.found:
            self.found[name] = section
            self._queue.append(name)
        elif self.found[name] != section:
            raise _Whole

    def _visit(self, name: str) -> None:
        value, section = self.values[name], self.found[name]
        producer = self.around.producers.get(name)
        if (producer is None and value.role not in STORED_ROLES) or not _can_part(value, section):
            raise _Whole
        if name in self.around.function.outputs and any(map(is_open, value.global_shape)):
            raise _Whole  # outputs are put together by their parts' places, which are numbers
        for op in self.around.ops(name):
            self._through(op)

    def _through(self, op: Op) -> None:
        """Carries the boundaries through an op, unless they end there."""
        if ends_sections(op, self.values, self.found):
            return
        rule = rule_of(op, self.values)
        parts = factor_parts(op, rule, self.found) if rule is not None else None
        if rule is None or parts is None:
            raise _Whole
        factor, sizes = parts
        tensors = (*rule.operands, *rule.results)
        for dims, name in zip(tensors, (*op.operands, *op.results), strict=True):
            numbers = [number for number, dim in enumerate(dims) if factor in dim]
            if len(numbers) > 1 or any(dims[number][0] != factor for number in numbers):
                raise _Whole
            for number in numbers:
                unit = _unit(rule, dims, number)
                self._add(name, Section(number, tuple(size * unit for size in sizes)))


def _can_part(value: Value, section: Section) -> bool:
    """Whether a value's pin, if it has one, says something about its parts."""
    if value.dist is None:
        return True
    return len(value.dist.dims[section.dim]) == 1 and not value.dist.partial


def ends_sections(op: Op, values: Mapping[str, Value], sections: Sections) -> bool:
    """Returns whether an op takes pieces of a value, or puts them, that consist of its parts."""
    cut = taken(op, values)
    if cut is not None and (section := sections.get(op.operands[0])) is not None:
        bounds = {bound for ends in section.ranges for bound in ends}
        ends = {bound for ends in cut.ranges for bound in ends}
        return cut.dim == section.dim and ends <= bounds and sections.keys().isdisjoint(op.results)
    joined = put(op, values)
    if joined is not None and (section := sections.get(op.results[0])) is not None:
        bounds = {bound for ends in section.ranges for bound in ends}
        ends = {bound for ends in joined.ranges for bound in ends}
        return (
            joined.dim == section.dim and bounds <= ends and sections.keys().isdisjoint(op.operands)
        )
    return False


def factor_parts(op: Op, rule: Rule, sections: Sections) -> tuple[str, tuple[int, ...]] | None:
    """Returns the factor of an op that consists of parts, and their sizes; None if none can.

    It is major in each dimension that it is in. Results without it are sums over it.
    """
    parts: set[tuple[str, tuple[int, ...]]] = set()
    tensors = (*rule.operands, *rule.results)
    for dims, name in zip(tensors, (*op.operands, *op.results), strict=True):
        section = sections.get(name)
        if section is None:
            continue
        unit = _unit(rule, dims, section.dim)
        if not dims[section.dim] or not unit or any(size % unit for size in section.sizes):
            return None
        parts.add((dims[section.dim][0], tuple(size // unit for size in section.sizes)))
    if len(parts) != 1:
        return None
    factor, sizes = parts.pop()
    return (factor, sizes) if _is_free(rule, factor) else None


def _unit(rule: Rule, dims: Dims, dim: int) -> int:
    """Returns how many elements of a dimension one of its major factor has; 0 if that is open."""
    unit = prod(rule.sizes[factor] for factor in dims[dim][1:])
    return unit if isinstance(unit, int) else 0


def _is_free(rule: Rule, factor: str) -> bool:
    """Whether an op computes a part of a factor as it computes all of it."""
    read = {window.of for window in rule.windows.values()}
    aware = rule.indexed.keys() | rule.numbered.keys() | rule.windows.keys() | rule.once.keys()
    if factor in rule.whole | read | aware:
        return False
    if any(
        rule.reduce.get((factor, position), "sum") != "sum" for position in range(len(rule.results))
    ):
        return False
    return all(isinstance(arg, (Size, Sizes)) for arg in rule.local.values())
