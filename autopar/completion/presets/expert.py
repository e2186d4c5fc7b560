"""The `expert` preset: splits the experts of a mixture.

A stack of experts is a weight with a dimension that an op doesn't sum over but keeps apart, in the
activation and in the result as well: a batched product of (expert, token, feature) with (expert,
feature, feature). Or one whose matrices an operand chooses, each for a group of rows. No other
weight has such a dimension.
"""

from __future__ import annotations

from autopar.base.errors import AnnotationError
from autopar.completion.presets.pinning import extend
from autopar.completion.presets.preset import AxisPreset
from autopar.completion.problem.graph import Graph, Node
from autopar.completion.problem.space import Form
from autopar.ir.dims import SubDim


def expert(graph: Graph, along: AxisPreset) -> None:
    """Splits the experts of every weight that is a stack of them.

    Raises:
        AnnotationError: If there is no such weight.
    """
    forms = {
        value: form
        for node in graph.nodes
        if node.op.phase == "forward"
        for position in node.weights
        for value, form in _stacks(graph, node, position, along.axis).items()
    }
    if not forms:
        raise AnnotationError(
            f"strategy {along}: no weight is a stack of experts, that is, has a dimension which"
            " its op keeps apart in the activation and the result too, or chooses along by row"
        )
    for value, form in sorted(forms.items()):
        extend(graph, value, form, along)


def _stacks(graph: Graph, node: Node, position: int, axis: str) -> dict[int, Form]:
    """Returns the forms of the parameters behind an op's weight that split its experts."""
    rule = node.call.rule
    pairs = zip(rule.operands, node.operands, strict=True)
    others = [dims for dims, value in pairs if not graph.steady[value]]
    for factors in rule.operands[position]:
        splittable = [f for f in factors if f in node.call.splittable]
        kept = [f for f in splittable if _is_in(f, *rule.results)]
        apart = [f for f in kept if any(_is_in(f, dims) for dims in others)]
        stacks = apart or [f for f in splittable if f in rule.indexed]
        if stacks:
            splits = graph.space.table.splits_of(
                {stacks[0]: (SubDim(rule.sizes[stacks[0]], (axis,)),)}
            )
            choice = node.call.choice(splits)
            if choice is not None:
                return _behind(graph, node.operands[position], choice.consumed[position])
    return {}


def _is_in(factor: str, *tensors: tuple[tuple[str, ...], ...]) -> bool:
    return any(factor in dim for dims in tensors for dim in dims)


def _behind(graph: Graph, value: int, form: Form) -> dict[int, Form]:
    """Returns the forms of the parameters of which a weight in this form is made."""
    producer = graph.producer[value]
    if producer is None:
        return {value: form}
    node, position = producer
    choice = node.call.choice(node.call.suggest(len(node.operands) + position, form))
    if choice is None or choice.produced[position] is not form:
        return {}
    pairs = zip(node.operands, choice.consumed, strict=True)
    behind = [_behind(graph, operand, needed) for operand, needed in pairs if needed.splits.items]
    return {value: needed_form for part in behind for value, needed_form in part.items()}
