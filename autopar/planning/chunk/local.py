"""Ops as iterations have them: with the arguments, and the choice, of a part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autopar.base.errors import AnnotationError
from autopar.ir.dims import SubDim
from autopar.ir.expr.expression import Coord, Expr, IntExpr, axes_of, evaluate, substitute
from autopar.ir.expr.facts import may_be
from autopar.ir.mesh import ProcessMesh
from autopar.ir.nothing import OF_NOTHING
from autopar.ir.program import Arg, Op, OpDist
from autopar.ir.rules.distribution import local_args, rank_call
from autopar.ir.rules.local_arg import Grid, IfSplit, LocalArg, Offset, Size, Sizes
from autopar.ir.rules.rule import Rule
from autopar.planning.chunk.reach import Reach
from autopar.planning.chunk.split import Cutting, windows_of

Call = tuple[str, dict[str, Arg]]
"""An op's kind, and its arguments that differ."""


@dataclass(frozen=True)
class Piece:
    """Where the ops of a region stand: within a loop, or, of the smaller part, nowhere.

    Attributes:
        loop: The name of the loop; "" if there is none.
        first: The first iteration.
        trip: How many there are.
        suffix: Of the names of what it has.
        at: Which run of iterations it is.
    """

    loop: str
    first: int
    trip: int
    suffix: str
    at: int

    @property
    def iterations(self) -> range:
        """Its iterations."""
        return range(self.first, self.first + self.trip)

    def begin(self, reach: Reach, since: Reach | None = None) -> IntExpr:
        """Returns the first element of an iteration.

        Args:
            reach: The elements.
            since: Those from whose first one it is counted, if they aren't all.
        """
        starts = [
            reach.start(each) - (since.start(each) if since else 0) for each in self.iterations
        ]
        further = starts[1] - starts[0] if len(starts) > 1 else 0
        if all(start == starts[0] + at * further for at, start in enumerate(starts)):
            return Coord(self.loop) * further + starts[0] if further else starts[0]
        start = reach.start_in(self.loop)
        return start - since.start_in(self.loop) if since else start


def block_call(found: Cutting, kind: str, axis: str, parts: int, piece: Piece) -> Call:
    """Returns the op, and the arguments that differ, by which iterations compute their blocks.

    Args:
        found: The op as iterations share it.
        kind: Its kind.
        axis: The name of the loop, as that of an axis.
        parts: How many iterations there are.
        piece: Those in question.
    """
    kind, args = rank_call(found.rule, found.dist(axis, parts, piece.at), kind)
    return kind, {name: _at(arg, axis, piece) for name, arg in args.items()}


def of_nothing(found: Cutting, size: IntExpr) -> tuple[tuple[str, str], ...]:
    """Returns the plan of an op that looks for extrema among so many elements, which may be none.

    Kernels refuse these then; of a sum they make 0 themselves.

    Args:
        found: The op as iterations share it.
        size: How many elements an iteration has.
    """
    monoids = [part if isinstance(part, str) else "-" for part in found.results]
    if _EXTREMA.isdisjoint(monoids) or not may_be(size, 0):
        return ()
    return ((OF_NOTHING, ",".join(monoids)),)


_EXTREMA = frozenset(("max", "min"))
"""The monoids of extrema."""

_PARTS = 4
"""Of how many blocks it is seen that an argument grows with the first element alike."""


def moved_call(found: Cutting, kind: str, reach: Reach, piece: Piece) -> Call | None:
    """Returns the op, and the arguments that differ, by which iterations compute any elements.

    None if it isn't a linear function of the first one.

    Args:
        found: The op as iterations share it.
        kind: Its kind.
        reach: The elements.
        piece: The iterations in question.
    """
    axis, length = "t", reach.length
    if not windows_of(found.rule, found.factor).keys().isdisjoint(_factors_in(found)):
        return None
    mesh = ProcessMesh.of_shape((_PARTS,), (axis,))
    dist = OpDist(mesh, ((found.factor, (SubDim(_PARTS * length, (axis,)),)),))
    kind, args = rank_call(found.rule, dist, kind)
    args |= local_args(replace(found.rule, local=_grids(found.rule)), OpDist(mesh))
    start = piece.begin(reach)
    moved: dict[str, Arg] = {}
    for name, arg in args.items():
        given = found.rule.local.get(name)
        try:
            if isinstance(given, Grid):
                moved[name] = _moved_grid(arg, given, found.factor, start, length)
            else:
                moved[name] = _moved(arg, axis, length, start)
        except ValueError:
            return None
    return kind, moved


def _grids(rule: Rule) -> dict[str, LocalArg]:
    return {name: arg for name, arg in rule.local.items() if isinstance(arg, Grid)}


def _moved_grid(arg: Arg, grid: Grid, factor: str, start: IntExpr, length: int) -> Arg:
    """Returns which elements of a tensor there are, of those of all of a factor."""
    assert isinstance(arg, tuple)
    at = [name for dim in grid.dims for name in dim].index(factor)
    entry = arg[at]
    assert isinstance(entry, tuple)
    begin, _, stride = entry
    assert isinstance(begin, (int, Expr))
    return (*arg[:at], (begin + start, length, stride), *arg[at + 1 :])


def _moved(arg: Arg, axis: str, length: int, start: IntExpr) -> Arg:
    """Returns an argument of a block of so many elements as that of others.

    Raises:
        ValueError: If it isn't a linear function of the first element.
    """
    if isinstance(arg, tuple):
        return tuple(_moved(item, axis, length, start) for item in arg)
    if not isinstance(arg, Expr) or axis not in axes_of(arg):
        return arg
    others = dict.fromkeys(axes_of(arg) - {axis}, 0)
    found = [evaluate(arg, {**others, axis: at}) for at in range(_PARTS)]
    further = found[1] - found[0]
    if further % length or found != [found[0] + at * further for at in range(_PARTS)]:
        raise ValueError(str(arg))
    return substitute(arg, {axis: 0}) + start * (further // length)


def _factors_in(found: Cutting) -> set[str]:
    return {name for arg in found.rule.local.values() for name in _named(arg)}


def _named(arg: int | tuple[str, ...] | LocalArg) -> Iterator[str]:
    """Yields the factors on which an argument depends."""
    if isinstance(arg, tuple):
        yield from arg
    elif isinstance(arg, Sizes):
        yield from (name for entry in arg.entries for name in _named(entry))
    elif isinstance(arg, IfSplit):
        yield from (arg.factor, *_named(arg.then), *_named(arg.otherwise))
    elif isinstance(arg, Size):
        yield from arg.factors
    elif isinstance(arg, Offset):
        yield from (*arg.factors, *arg.unit)
    elif not isinstance(arg, int):
        yield from (name for dim in arg.dims for name in dim)


def local_dist(op: Op, found: Cutting, length: IntExpr) -> OpDist | None:
    """Returns the choice that is pinned for an op, of a part of it.

    Args:
        op: The op.
        found: It as iterations share it.
        length: How many elements of the factor a part has.

    Raises:
        AnnotationError: If a factor that is cut is pinned in sub-dimensions.
    """
    chosen = None if op.dist is None else op.dist.factor(found.factor)
    if op.dist is None or chosen is None:
        return op.dist
    if len(chosen) > 1 or found.own.outer != 1:
        raise AnnotationError(f"{op.loc}: {op.kind} is pinned within what chunks cut")
    factors = tuple(
        (name, (SubDim(length, dim[0].axes),) if name == found.factor else dim)
        for name, dim in op.dist.factors
    )
    return replace(op.dist, factors=factors)


def _at(arg: Arg, axis: str, piece: Piece) -> Arg:
    """Returns an argument as it is in a piece: of a loop, as a linear function of the iteration."""
    if isinstance(arg, tuple):
        return tuple(_at(item, axis, piece) for item in arg)
    if not isinstance(arg, Expr):
        return arg
    if not piece.loop:
        return substitute(arg, {axis: 0})
    # Of a loop around it, it may depend too.
    others = dict.fromkeys(axes_of(arg) - {axis}, 0)
    at = [substitute(arg, {**others, axis: each}) for each in range(piece.trip)]
    step = at[1] - at[0]
    if any(number != at[0] + each * step for each, number in enumerate(at)):
        return substitute(arg, {axis: Coord(piece.loop)})
    return substitute(arg, {axis: 0}) + Coord(piece.loop) * step
