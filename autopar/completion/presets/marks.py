"""Where a part of a dimension goes: through factors that ops can be split along."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autopar.completion.problem.graph import Graph, Node
from autopar.ir.expr.expression import IntExpr
from autopar.ir.expr.strides import is_within
from autopar.ir.ops.loops import TAKE
from autopar.ir.ops.shape.pieces import JOINS
from autopar.ir.rules.rule import Dims, Rule


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a dimension: `size` indexes with `inner` elements minor to each."""

    dim: int
    inner: IntExpr
    size: IntExpr


class Marks(dict[int, Stretch]):
    """Where a part of a dimension is in each value that it goes to.

    What ops make of it that can't be split there, as slices along it, are its pieces, and so is
    what becomes of those. Where they are put together again, it goes on: another one, maybe, but
    as good for being split.

    Args:
        graph: The graph.
        start: The value where it begins.
        stretch: The part.
        again: Whether it goes on where its pieces are put together.

    Attributes:
        joined: The values in which pieces were put together, and the parts that iterations take.
    """

    def __init__(self, graph: Graph, start: int, stretch: Stretch, *, again: bool = False) -> None:
        super().__init__({start: stretch})
        self.joined: set[int] = set()
        self._graph = graph
        self._again = again
        self._pieces: set[int] = set()

    def walk(self) -> Iterator[Node]:
        """Yields the ops that it reaches, in order, once their results are marked."""
        for node in self._graph.nodes:
            if not self.keys().isdisjoint(node.operands):
                self._hand_on(node)
                yield node
            elif self._again and not self._pieces.isdisjoint(node.operands):
                self._pieces.update(node.results)
                if node.op.phase != "update" and self._pieces.issuperset(node.operands):
                    self._join(node)
                    yield node

    def _hand_on(self, node: Node) -> None:
        """Marks the results to which an op hands a mark of its operands on, or what it looks up."""
        if not node.call.has_rule:
            self._hand_on_unknown(node)
            return
        rule = node.call.rule
        bodies = (body.rule.splittable for body in rule.bodies)
        splittable = frozenset(rule.splittable).union(*bodies)
        for position, value in enumerate(node.operands):
            mark = self.get(value)
            if mark is None:
                continue
            hit = factor_of(rule, rule.operands[position], mark)
            if hit is not None and node.op.kind == TAKE and hit[0] not in splittable:
                self._take(node)
                continue
            if hit is None or hit[0] not in splittable:
                self._pieces.update(result for result in node.results if result not in self)
                continue
            rows = node.call.rows_of(hit[0])
            if rows is not None:
                hit = rows, 1, rule.sizes[rows]
            for dims, result in zip(rule.results, node.results, strict=True):
                made = _stretch_of(rule, dims, *hit)
                if made is not None:
                    self.setdefault(result, made)

    def _take(self, node: Node) -> None:
        """Marks what an iteration takes of it: a part as good for being split as the whole."""
        (result,), dim = node.results, node.op.arg("dim", 0)
        assert isinstance(dim, int)
        self[result] = Stretch(dim, 1, self._graph.values[result].global_shape[dim])
        self.joined.add(result)

    def _hand_on_unknown(self, node: Node) -> None:
        """Marks what an op without a rule makes of a first dimension: one that is as long."""
        for value in node.operands if is_unknown(node) else ():
            mark = self.get(value)
            if mark is not None and mark.dim == 0:
                size = self._graph.values[value].global_shape[:1]
                for result in node.results:
                    if self._graph.values[result].global_shape[:1] == size:
                        self.setdefault(result, mark)

    def _join(self, node: Node) -> None:
        """Marks the dimension along which an op puts pieces together."""
        dim = node.op.arg("dim", 0)
        if node.op.kind in JOINS and isinstance(dim, int) and len(node.operands) > 1:
            (result,) = node.results
            shape = self._graph.values[result].global_shape
            number = dim % len(shape)
            self[result] = Stretch(number, 1, shape[number])
            self.joined.add(result)


def factor_of(rule: Rule, dims: Dims, mark: Stretch) -> tuple[str, IntExpr, IntExpr] | None:
    """Returns the major factor in a mark, and the mark's inner stride and size within it.

    The dimension of a mark may be of size 1 in the rule, where it is broadcast.
    """
    inner: IntExpr = 1
    inside: tuple[str, IntExpr, IntExpr] | None = None
    least, most = mark.inner, mark.inner * mark.size
    for factor in reversed(dims[mark.dim]):
        outer = inner * rule.sizes[factor]
        if is_within(inner, least) and is_within(most, outer):
            return factor, mark.inner // inner, mark.size
        if is_within(least, inner) and is_within(outer, most):
            inside = (factor, 1, rule.sizes[factor])
        inner = outer
    return inside


def _stretch_of(
    rule: Rule, dims: Dims, factor: str, within: IntExpr, size: IntExpr
) -> Stretch | None:
    for number, factors in enumerate(dims):
        inner: IntExpr = 1
        for name in reversed(factors):
            if name == factor:
                return Stretch(number, inner * within, size)
            inner = inner * rule.sizes[name]
    return None


def is_unknown(node: Node) -> bool:
    """Whether it is an op of the forward pass without a rule."""
    return not node.call.has_rule and node.op.phase == "forward"
