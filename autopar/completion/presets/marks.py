"""Where a part of a dimension goes: through factors that ops can be split along."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.completion.graph import Graph, Node
from autopar.ir.rule import Dims, Rule


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a dimension: `size` indexes with `inner` elements minor to each."""

    dim: int
    inner: int
    size: int


def follow(graph: Graph, node: Node, marks: dict[int, Stretch]) -> None:
    """Marks the results to which an op hands a mark of its operands on, or what it looks up."""
    if not node.call.has_rule:
        _follow_unknown(graph, node, marks)
        return
    rule = node.call.rule
    splittable = frozenset(rule.splittable).union(*(body.rule.splittable for body in rule.bodies))
    for at, value in enumerate(node.operands):
        mark = marks.get(value)
        if mark is None:
            continue
        hit = factor_of(rule, rule.operands[at], mark)
        if hit is None or hit[0] not in splittable:
            continue
        rows = node.call.rows_of(hit[0])
        if rows is not None:
            hit = rows, 1, rule.sizes[rows]
        for dims, result in zip(rule.results, node.results, strict=True):
            made = _stretch_of(rule, dims, *hit)
            if made is not None:
                marks.setdefault(result, made)


def _follow_unknown(graph: Graph, node: Node, marks: dict[int, Stretch]) -> None:
    """Marks what an op without a rule makes of a marked first dimension: one that is as long."""
    for value in node.operands if is_unknown(node) else ():
        mark = marks.get(value)
        if mark is not None and mark.dim == 0:
            size = graph.values[value].global_shape[:1]
            for result in node.results:
                if graph.values[result].global_shape[:1] == size:
                    marks.setdefault(result, mark)


def factor_of(rule: Rule, dims: Dims, mark: Stretch) -> tuple[str, int, int] | None:
    """Returns the major factor in a mark, and the mark's inner stride and size within it.

    The dimension of a mark may be of size 1 in the rule, where it is broadcast.
    """
    inner = 1
    found: tuple[str, int, int] | None = None
    for factor in reversed(dims[mark.dim]):
        outer = inner * rule.sizes[factor]
        if inner <= mark.inner and mark.inner * mark.size <= outer:
            return factor, mark.inner // inner, mark.size
        if mark.inner <= inner and outer <= mark.inner * mark.size:
            found = (factor, 1, rule.sizes[factor])
        inner = outer
    return found


def _stretch_of(rule: Rule, dims: Dims, factor: str, within: int, size: int) -> Stretch | None:
    for at, factors in enumerate(dims):
        inner = 1
        for name in reversed(factors):
            if name == factor:
                return Stretch(at, inner * within, size)
            inner *= rule.sizes[name]
    return None


def is_unknown(node: Node) -> bool:
    """Whether it is an op of the forward pass without a rule."""
    return not node.call.has_rule and node.op.phase == "forward"
