"""Splits over time: which part of a tensor an iteration has, and what its ops make of their parts.

Time is like a mesh axis of which a coordinate is an iteration: the factor rule of an op says what
becomes of its results where a factor is split. What an iteration needs of an operand, and leaves of
a result, is cut along one dimension (`cut.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autopar.ir.dims import DimLayout, Piece, SubDim
from autopar.ir.expr.expression import Coord, IntExpr, exact_quotient, prod
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops import rule_of
from autopar.ir.program import Op, OpDist, Value
from autopar.ir.rules.rule import Dims, Rule
from autopar.ir.rules.window import Window
from autopar.planning.chunk.cut import Cut, Run

Part = Cut | str
"""What an iteration leaves of a result: a part of it, the monoid by which all are reduced, or
`SAME` if each makes all of it."""


@dataclass(frozen=True)
class Cutting:
    """An op as iterations share it.

    Attributes:
        rule: Its rule.
        factor: The factor that is split.
        own: How it is split.
        layouts: The same, over an axis of the name of the loop, in each run and what is left.
        operands: What an iteration needs of each operand.
        results: What it leaves of each result.
    """

    rule: Rule
    factor: str
    own: Cut
    layouts: tuple[DimLayout, ...]
    operands: tuple[Cut | None, ...]
    results: tuple[Part, ...]

    def dist(self, axis: str, parts: int, at: int) -> OpDist:
        """Returns the op's choice on a mesh of the iterations.

        Args:
            axis: The name of the loop.
            parts: How many iterations there are.
            at: In which run, or behind all of them.
        """
        mesh = ProcessMesh.of_shape((parts,), (axis,))
        return OpDist(mesh, ((self.factor, self.layouts[at]),))


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
    factor, own = _shared(rule, dims, cut)
    _check(rule, factor, own)
    layouts = tuple(_layout(own, axis, at) for at in range(len(own.runs) + 1))
    if own.outer != 1 and factor in rule.flat:
        raise Inadmissible("parts would be no blocks")
    given = [_cut_of(rule, each, factor, own) for each in rule.operands]
    made: list[Part] = []
    for at, each in enumerate(rule.results):
        left: Part | None = _cut_of(rule, each, factor, own) or rule.reduce.get((factor, at))
        if left is None:
            raise Inadmissible(f"result {at} is no reduction over what is cut")
        made.append(left)
    return Cutting(rule, factor, own, layouts, tuple(given), tuple(made))


def is_splittable(rule: Rule, dims: Dims, cut: Cut) -> bool:
    """Returns whether a rule lets iterations share a tensor of these dimensions."""
    try:
        factor, own = _shared(rule, dims, cut)
        _check(rule, factor, own)
    except Misaligned:
        return True
    except Inadmissible:
        return False
    return True


def _layout(cut: Cut, axis: str, at: int) -> DimLayout:
    """Returns how a factor is split over the iterations of a run."""
    size, start = cut.size(at), cut.start(at)
    if at < len(cut.runs):
        start = start + Coord(axis) * size
    piece = Piece(cut.inner, (axis,), start, size)
    return (piece,) if cut.outer == 1 else (SubDim(cut.outer), piece)


def windows_of(rule: Rule, factor: str) -> dict[str, Window]:
    """Returns the factors that are read through windows of a factor, with these."""
    return {name: window for name, window in rule.windows.items() if window.of == factor}


def _check(rule: Rule, factor: str, own: Cut) -> None:
    """Refuses factors that iterations can't share."""
    if factor not in rule.splittable:
        raise Inadmissible("it needs all of what is cut at once")
    if factor in rule.once:
        raise Inadmissible("it would add an operand once for each part")
    for window in windows_of(rule, factor).values():
        is_ahead = window.stride > 0 and isinstance(window.start, int)
        if own.outer != 1 or not is_ahead or window.fill in _CONTINUED:
            raise Inadmissible("it reads what is cut through windows that aren't side by side")
        if not own.is_known:
            raise Inadmissible(_WINDOWS)


_WINDOWS = "it reads what is cut through windows, for which the size must be known"

_CONTINUED = ("none", "wrap", "reflect")
"""What windows read beyond a border isn't near it, or they end there."""


def _names(rule: Rule, dim: tuple[str, ...]) -> list[str]:
    """Returns the factors of a dimension, major to minor, that are no single elements."""
    return [name for name in dim if rule.sizes[name] != 1]


def _product(rule: Rule, names: Sequence[str]) -> IntExpr:
    return prod(rule.sizes[name] for name in names)


def _shared(rule: Rule, dims: Dims, cut: Cut) -> tuple[str, Cut]:
    """Returns which factor iterations share if a tensor is cut, and how that is cut.

    That is the one of which the tensor is read in windows, if it is.
    """
    factor, own = _factor_at(rule, dims, cut)
    window = rule.windows.get(factor)
    if window is None:
        return factor, own
    inner, block = rule.sizes[window.of], own.runs[0].block
    if own.outer != 1 or not isinstance(inner, int) or not isinstance(block, int):
        raise Inadmissible(_WINDOWS)
    if block % window.stride:
        raise Misaligned(f"parts would be no blocks of {window.stride}, from window to window")
    return window.of, own.of_blocks(inner, block // abs(window.stride))


def _factor_at(rule: Rule, dims: Dims, cut: Cut) -> tuple[str, Cut]:
    """Returns which factor of a tensor a cut splits, and how that is cut."""
    outer, names = cut.outer, _names(rule, dims[cut.dim])
    while names and outer != 1:
        less = exact_quotient(outer, rule.sizes[names[0]])
        if less is None:
            break
        outer = less
        names.pop(0)
    if not names:
        raise Inadmissible("it has nothing of what is cut")
    inner, unit = exact_quotient(rule.sizes[names[0]], outer), _product(rule, names[1:])
    blocks = [exact_quotient(run.block, unit) for run in cut.runs]
    if inner is None or None in blocks:
        kind = Misaligned if rule.windows else Inadmissible
        raise kind("parts would be no blocks of it")
    runs = [Run(each, run.times) for each, run in zip(blocks, cut.runs, strict=True) if each]
    return names[0], Cut(0, outer, inner, tuple(runs))


def _cut_of(rule: Rule, dims: Dims, factor: str, own: Cut) -> Cut | None:
    """Returns how a tensor is cut if a factor is; None if it is whole."""
    shared = {factor, *windows_of(rule, factor)}
    found = [at for at, dim in enumerate(dims) if not shared.isdisjoint(_names(rule, dim))]
    if not found:
        return None
    names = _names(rule, dims[found[0]])
    held = [name for name in names if name in shared]
    if len(found) > 1 or len(held) > 1:
        raise Inadmissible("it has what is cut in two dimensions of one tensor")
    at, window = names.index(held[0]), rule.windows.get(held[0])
    before, minor = _product(rule, names[:at]), _product(rule, names[at + 1 :])
    if window:
        size, block = rule.sizes[held[0]], own.runs[0].block
        if not isinstance(size, int) or not isinstance(block, int):
            raise Inadmissible(_WINDOWS)
        own = own.of_blocks(size, block * window.stride)
    return own.times(minor)._replace(dim=found[0], outer=before * own.outer)


def read_of(rule: Rule, dims: Dims, factor: str) -> tuple[Window | None, IntExpr]:
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
                return rule.windows.get(name), _product(rule, names[at + 1 :])
    raise AssertionError(f"no dimension has the factor {factor}")
