"""View: the same elements in the same order, under another shape.

Both shapes are refined into common factors, major to minor, so that a split of 12 heads is a split
of the 384 columns that they make, and back. Where the boundaries don't align, as between [6, 4]
and [4, 6], a common leading and trailing factor (here 2) remains and what lies between is whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autopar.ir.expr.expression import (
    IntExpr,
    common_factor,
    exact_quotient,
    prod,
)
from autopar.ir.ops.loops import CARRY, HOLD, LAST, PARTS, TAKE
from autopar.ir.ops.shape.strided import VIEWS as STRIDED
from autopar.ir.ops.table import MOVED, RuleFunction, Table, same
from autopar.ir.rules.local_arg import Sizes
from autopar.ir.rules.rule import Dims, OpCall, Rule, build_rule


@dataclass
class Refinement:
    """The factors of two shapes with the same elements.

    Attributes:
        sizes: Size of each factor.
        whole: Those that must not be split.
        source, target: Per dimension of either shape, its factors.
    """

    sizes: dict[str, IntExpr] = field(default_factory=dict)
    whole: list[str] = field(default_factory=list)
    source: list[list[str]] = field(default_factory=list)
    target: list[list[str]] = field(default_factory=list)

    def factor(self, size: IntExpr) -> str:
        """Adds a factor that may be split."""
        name = f"v{len(self.sizes)}"
        self.sizes[name] = size
        return name

    def whole_factor(self, size: IntExpr) -> str:
        """Adds a factor that must not be split."""
        name = self.factor(size)
        self.whole.append(name)
        return name


def refine(source: Sequence[IntExpr], target: Sequence[IntExpr]) -> Refinement:
    """Returns common factors of two shapes of equally many elements."""
    found = Refinement()
    found.source = [[] for _ in source]
    found.target = [[] for _ in target]
    for left, right in _around_empty(found, list(enumerate(source)), list(enumerate(target))):
        if _elements(left) == _elements(right):
            for group in _groups(left, right):
                _refine_group(found, *group)
        else:
            _keep_whole(found, left, right)
    return found


Pieces = list[tuple[int, IntExpr]]
"""(dimension, what is left of its size), major to minor."""


def _elements(pieces: Pieces) -> IntExpr:
    return prod(size for _, size in pieces)


def _around_empty(found: Refinement, source: Pieces, target: Pieces) -> list[tuple[Pieces, Pieces]]:
    """Takes empty dimensions for one another, and returns what lies around them."""
    if _elements(source) != 0 or _elements(target) != 0:
        return [(source, target)]
    left, right = ([size for _, size in pieces].index(0) for pieces in (source, target))
    name = found.factor(0)
    found.source[source[left][0]].append(name)
    found.target[target[right][0]].append(name)
    rest = _around_empty(found, source[left + 1 :], target[right + 1 :])
    return [(source[:left], target[:right]), *rest]


def _groups(source: Pieces, target: Pieces) -> list[tuple[Pieces, Pieces]]:
    """Cuts both shapes wherever as many elements lie behind, that is, into the shortest groups."""
    groups: list[tuple[Pieces, Pieces]] = []
    left = [piece for piece in source if piece[1] != 1]
    right = [piece for piece in target if piece[1] != 1]
    while left:
        taken: tuple[Pieces, Pieces] = ([left.pop(0)], [right.pop(0)])
        sizes = [taken[0][0][1], taken[1][0][1]]
        while sizes[0] != sizes[1]:
            side = _shorter(*sizes)
            if side is None:
                return [*groups, ([*taken[0], *left], [*taken[1], *right])]
            piece = (left, right)[side].pop(0)
            taken[side].append(piece)
            sizes[side] = sizes[side] * piece[1]
        groups.append(taken)
    return groups


def _shorter(left: IntExpr, right: IntExpr) -> int | None:
    """Returns the number of the smaller of two sizes; None if it isn't always the same."""
    if isinstance(left, int) and isinstance(right, int):
        return 0 if left < right else 1
    if exact_quotient(right, left) is not None:
        return 0
    return 1 if exact_quotient(left, right) is not None else None


def _keep_whole(found: Refinement, left: Pieces, right: Pieces) -> None:
    for dims, pieces in ((found.source, left), (found.target, right)):
        for at, size in pieces:
            dims[at].append(found.whole_factor(size))


def _refine_group(found: Refinement, left: Pieces, right: Pieces) -> None:
    head = _common(found, left, right, 0)
    tail = _common(found, left, right, -1)
    for (source_at, target_at), name in head:
        found.source[source_at].append(name)
        found.target[target_at].append(name)
    _keep_whole(found, left, right)
    for (source_at, target_at), name in reversed(tail):
        found.source[source_at].append(name)
        found.target[target_at].append(name)


def _common(
    found: Refinement, left: Pieces, right: Pieces, end: int
) -> list[tuple[tuple[int, int], str]]:
    """Takes common factors off one end of two groups, until the sizes there share none."""
    names: list[tuple[tuple[int, int], str]] = []
    while left and right and (common := common_factor(left[end][1], right[end][1])) != 1:
        names.append(((left[end][0], right[end][0]), found.factor(common)))
        for pieces in (left, right):
            at, size = pieces.pop(end)
            if size != common:
                pieces.insert(len(pieces) if end else 0, (at, size // common))
    return names


def view(size_argument: str = "") -> RuleFunction:
    """Returns the rule function of a view whose shape is in this argument, if in any."""

    def rule(call: OpCall) -> Rule | None:
        found = refine(call.operands[0].shape, call.results[0].shape)
        source = _dims(found.source)
        target = _dims(found.target)
        local = {size_argument: Sizes(target)} if size_argument else {}
        return build_rule(
            call,
            [source],
            [target],
            sizes=found.sizes,
            whole=found.whole,
            linear=MOVED,
            local=local,
            work=0,
        )

    return rule


def _dims(dims: Sequence[Sequence[str]]) -> Dims:
    return tuple(tuple(dim) for dim in dims)


RESHAPES: Mapping[str, str] = {
    "aten.view.default": "size",
    "aten._unsafe_view.default": "size",
    "aten.view_copy.default": "size",
    "aten.reshape.default": "shape",
}
"""Ops that are computed by a reshape: a view where strides allow it, and a copy elsewhere.

Each with its argument that has the sizes.
"""

RULES: Table = {
    **{kind: view(sizes) for kind, sizes in RESHAPES.items()},
    **same(["aten.flatten.using_ints", "aten.ravel.default"], view()),
}

VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "view.default",
        "_unsafe_view.default",
        "t.default",
        "transpose.int",
        "permute.default",
        "squeeze.dim",
        "squeeze.dims",
        "unsqueeze.default",
        "expand.default",
    )
)
"""Ops of one operand that compute nothing."""

MARKED: Mapping[str, str] = {
    "aten._conj.default": "aten.conj_physical.default",
    "aten._neg_view.default": "aten.neg.default",
}
"""Views that only mark their operand, and the op by which the runtime computes them instead."""

UNSAFE = frozenset(
    f"aten.unsafe_{name}" for name in ("chunk.default", "split.Tensor", "split_with_sizes.default")
)
"""Views whose schemas say that they are none."""

SAME_WITH_SAME_SIZES = frozenset((*RESHAPES, "aten.expand.default", "aten.slice.Tensor"))
"""Ops of one operand that return it as it is, where the result has its sizes."""

FREE = frozenset((*STRIDED, *RESHAPES, "aten.flatten.using_ints", TAKE, PARTS, CARRY, LAST, HOLD))
"""Ops that take no time: their results are views, or nearly always are."""
