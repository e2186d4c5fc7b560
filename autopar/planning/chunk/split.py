"""Splits over time: which part of a tensor an iteration has, and what its ops make of their parts.

Time is like a mesh axis of which a coordinate is an iteration: the factor rule of an op says what
becomes of its results where a factor is split. What an iteration needs of an operand, and leaves of
a result, is cut along one dimension:

    Cut(dim=0, outer=1, inner=4096, block=512)   rows 512 t to 512 t + 512 of 4,096
    Cut(dim=0, outer=2, inner=2048, block=256)   of each half, rows 256 t to 256 t + 256
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from autopar.ir.dims import DimLayout, SubDim, block_size
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops import rule_of
from autopar.ir.program import Op, OpDist, Value
from autopar.ir.rules.rule import Dims, Rule
from autopar.ir.rules.window import Window


class Cut(NamedTuple):
    """How iterations share a tensor.

    Attributes:
        dim: The dimension that is cut. It is `outer` times `inner` elements.
        outer: How often there is what is cut, side by side.
        inner: How many elements are cut.
        block: How many of them an iteration has; the last one may have fewer.
    """

    dim: int
    outer: int
    inner: int
    block: int

    @property
    def parts(self) -> int:
        """How many iterations there are."""
        return math.ceil(self.inner / self.block)

    @property
    def full(self) -> int:
        """How many iterations have a whole block."""
        return self.inner // self.block

    @property
    def rest(self) -> int:
        """What is left for one more iteration."""
        return self.inner % self.block


Part = Cut | str
"""What an iteration leaves of a result: a part of it, the monoid by which all are reduced, or
`SAME` if each makes all of it."""


@dataclass(frozen=True)
class Cutting:
    """An op as iterations share it.

    Attributes:
        rule: Its rule.
        factor: The factor that is split.
        outer: How often there is what is split of it, side by side.
        block: How much of it an iteration has.
        layout: How it is split over an axis of the name of the loop, as over processes; empty if
            these would have other blocks.
        operands: What an iteration needs of each operand.
        results: What it leaves of each result.
    """

    rule: Rule
    factor: str
    outer: int
    block: int
    layout: DimLayout
    operands: tuple[Cut | None, ...]
    results: tuple[Part, ...]

    @property
    def inner(self) -> int:
        """How many elements of the factor are split."""
        return _number(self.rule, self.factor) // self.outer

    def dist(self, axis: str, parts: int) -> OpDist:
        """Returns the op's choice on a mesh of the iterations."""
        mesh = ProcessMesh.of_shape((parts,), (axis,))
        return OpDist(mesh, ((self.factor, self.layout),))


class Inadmissible(Exception):
    """Why an op can't be split so over iterations."""


class Misaligned(Inadmissible):
    """Parts of another size would do."""


def cutting_of(
    op: Op, values: Mapping[str, Value], axis: str, cut: Cut, operand: int = -1, result: int = -1
) -> Cutting:
    """Returns an op as iterations share it that have such parts of an operand or a result.

    Args:
        op: The op.
        values: Those of its function.
        axis: The name of the loop.
        cut: Of the operand or result.
        operand: The operand's position.
        result: The result's, if it isn't an operand.

    Raises:
        Inadmissible: If the rule doesn't allow it, or parts would be no blocks.
    """
    rule = rule_of(op, values)
    if rule is None:
        raise Inadmissible("it has no rule")
    dims = rule.operands[operand] if operand >= 0 else rule.results[result]
    factor, outer, block = _shared(rule, dims, cut)
    _check(rule, factor, outer)
    layout = _layout(_number(rule, factor) // outer, outer, block, axis)
    if not layout or (len(layout) > 1 and factor in rule.flat):
        if outer > 1:
            raise Inadmissible("parts would be no blocks")
        layout = ()
    given = [_cut_of(rule, each, factor, outer, block) for each in rule.operands]
    made: list[Part] = []
    for at, each in enumerate(rule.results):
        left = _cut_of(rule, each, factor, outer, block) or rule.reduce.get((factor, at))
        if left is None:
            raise Inadmissible(f"result {at} is no reduction over what is cut")
        made.append(left)
    return Cutting(rule, factor, outer, block, layout, tuple(given), tuple(made))


def is_splittable(rule: Rule, dims: Dims, cut: Cut) -> bool:
    """Returns whether a rule lets iterations share a tensor of these dimensions."""
    try:
        factor, outer, _ = _shared(rule, dims, cut)
        _check(rule, factor, outer)
    except Misaligned:
        return True
    except Inadmissible:
        return False
    return True


def _layout(inner: int, outer: int, block: int, axis: str) -> DimLayout:
    """Returns how a factor is split over the iterations, each of which has a block of it."""
    parts = math.ceil(inner / block)
    unit = 1 if block_size(inner, parts) == block else math.gcd(inner, block)
    if block_size(inner // unit, parts) * unit != block:
        return ()
    subs = SubDim(outer), SubDim(inner // unit, (axis,)), SubDim(unit)
    return tuple(sub for sub in subs if sub.axes or sub.size != 1)


def windows_of(rule: Rule, factor: str) -> dict[str, Window]:
    """Returns the factors that are read through windows of a factor, with these."""
    return {name: window for name, window in rule.windows.items() if window.of == factor}


def _check(rule: Rule, factor: str, outer: int) -> None:
    """Refuses factors that iterations can't share."""
    if factor not in rule.splittable:
        raise Inadmissible("it needs all of what is cut at once")
    if factor in rule.once:
        raise Inadmissible("it would add an operand once for each part")
    for window in windows_of(rule, factor).values():
        is_ahead = window.stride > 0 and isinstance(window.start, int)
        if outer > 1 or not is_ahead or window.fill in _CONTINUED:
            raise Inadmissible("it reads what is cut through windows that aren't side by side")


_CONTINUED = ("none", "wrap", "reflect")
"""What windows read beyond a border isn't near it, or they end there."""


def _number(rule: Rule, factor: str) -> int:
    size = rule.sizes[factor]
    if not isinstance(size, int):
        raise Inadmissible(f"the size {size} is open")
    return size


def _names(rule: Rule, dim: tuple[str, ...]) -> list[str]:
    """Returns the factors of a dimension, major to minor, that are no single elements."""
    return [name for name in dim if rule.sizes[name] != 1]


def _shared(rule: Rule, dims: Dims, cut: Cut) -> tuple[str, int, int]:
    """Returns which factor iterations share if a tensor is cut, and its own `outer` and `block`.

    That is the one of which the tensor is read in windows, if it is.
    """
    factor, outer, block = _factor_at(rule, dims, cut)
    window = rule.windows.get(factor)
    if window is None:
        return factor, outer, block
    if block % window.stride:
        raise Misaligned(f"parts would be no blocks of {window.stride}, from window to window")
    return window.of, outer, block // abs(window.stride)


def _factor_at(rule: Rule, dims: Dims, cut: Cut) -> tuple[str, int, int]:
    """Returns which factor of a tensor a cut splits, and its own `outer` and `block`."""
    outer, names = cut.outer, _names(rule, dims[cut.dim])
    while names and outer > 1 and outer % _number(rule, names[0]) == 0:
        outer //= _number(rule, names.pop(0))
    if not names:
        raise Inadmissible("it has nothing of what is cut")
    minor = math.prod(_number(rule, name) for name in names[1:])
    if _number(rule, names[0]) % outer or cut.block % minor:
        kind = Misaligned if rule.windows else Inadmissible
        raise kind("parts would be no blocks of it")
    return names[0], outer, cut.block // minor


def _cut_of(rule: Rule, dims: Dims, factor: str, outer: int, block: int) -> Cut | None:
    """Returns how a tensor is cut if a factor is; None if it is whole."""
    shared = {factor, *windows_of(rule, factor)}
    found = [at for at, dim in enumerate(dims) if not shared.isdisjoint(_names(rule, dim))]
    if not found:
        return None
    names = _names(rule, dims[found[0]])
    own = [name for name in names if name in shared]
    if len(found) > 1 or len(own) > 1:
        raise Inadmissible("it has what is cut in two dimensions of one tensor")
    at, window = names.index(own[0]), rule.windows.get(own[0])
    before = math.prod(_number(rule, name) for name in names[:at])
    minor = math.prod(_number(rule, name) for name in names[at + 1 :])
    inner = _number(rule, own[0]) // outer
    block *= window.stride if window else 1
    return Cut(found[0], before * outer, inner * minor, block * minor)


def read_of(rule: Rule, dims: Dims, factor: str) -> tuple[Window | None, int]:
    """Returns how a tensor that has a factor has it: through which window, and how many minor.

    Args:
        rule: The rule.
        dims: The dimensions of the tensor.
        factor: The factor.
    """
    shared = {factor, *windows_of(rule, factor)}
    for dim in dims:
        names = _names(rule, dim)
        for at, name in enumerate(names):
            if name in shared:
                minor = math.prod(_number(rule, each) for each in names[at + 1 :])
                return rule.windows.get(name), minor
    raise AssertionError(f"no dimension has the factor {factor}")
