"""Which inputs carry a batch in their first dimension, and a sequence in their second.

Dimensions are told apart by where they go. Microbatches are known by the cuts between them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from autopar.completion.presets.marks import Marks, Stretch, factor_of, is_unknown
from autopar.completion.problem.cuts import Cuts
from autopar.completion.problem.graph import Graph, Node
from autopar.ir.dtypes import FLOATS
from autopar.ir.expr.expression import exact_quotient
from autopar.ir.expr.facts import can_exceed


def batch_inputs(graph: Graph) -> Mapping[int, Stretch]:
    """Returns the inputs whose first dimension reaches the first dimension of an output, or a loss.

    It is followed forward, through factors that an op, or a body of it, can be split along, and
    through views that merge it with others. So a batch is what the program keeps apart from
    beginning to end, but for statistics, or until it adds it up to one number that it returns,
    whatever its inputs are called. A first dimension of size 1 is
    none. Where the program first cuts the dimension into equal microbatches, each of them is a
    batch, and the stretch is what lies within one.

    Where no input has one, a dimension may also have come behind others when it is added up, as
    behind that of layers whose results are stacked.

    Gradients of outputs that come from outside are cut into as many microbatches as a batch is.

    Of other inputs, it is a first dimension that a product with a weight keeps apart: packed
    samples, say, which are taken apart for each to be attended to by itself. Where none has a
    batch, it may be another dimension of theirs, as the frames of packed spectra.
    """

    def found() -> dict[int, Stretch]:
        batch = _batch_inputs(graph) or _batch_inputs(graph, anywhere=True)
        return batch | _packed_inputs(graph, batch) | _gradients(graph, batch)

    return graph.once(batch_inputs, found)


def _batch_inputs(graph: Graph, *, anywhere: bool = False) -> dict[int, Stretch]:
    losses = _losses(graph)
    batches: dict[int, Stretch] = {}
    for number, value in enumerate(graph.values):
        if value.role == "input" and graph.producer[number] is None and value.shape:
            for stretch in _stretches(graph, number):
                is_batch = can_exceed(stretch.size, 1)
                if is_batch and _reaches_end(graph, number, stretch, losses, anywhere):
                    batches[number] = stretch
                    break
    return batches


def _gradients(graph: Graph, batch: Mapping[int, Stretch]) -> dict[int, Stretch]:
    """Returns the gradients of outputs that are cut into as many microbatches as a batch is.

    The batch may be that of another stage.
    """
    found: dict[int, Stretch] = {}
    within = {stretch.size for value, stretch in batch.items() if _is_cut(graph, value, stretch)}
    for number, value in enumerate(graph.values):
        if value.role == "gradient" and graph.producer[number] is None and value.shape:
            cut = (each for each in _stretches(graph, number) if _is_cut(graph, number, each))
            found.update((number, each) for each in cut if each.size in within or not batch)
    return found


def _is_cut(graph: Graph, value: int, stretch: Stretch) -> bool:
    return stretch.size != graph.values[value].global_shape[stretch.dim]


def _packed_inputs(graph: Graph, others: Collection[int]) -> dict[int, Stretch]:
    packed: dict[int, Stretch] = {}
    for number, value in enumerate(graph.values):
        given = value.role == "input" and graph.producer[number] is None and number not in others
        if given and value.shape and can_exceed(value.shape[0], 1):
            dims = enumerate(value.global_shape[:1] if others else value.global_shape)
            stretches = (Stretch(dim, 1, size) for dim, size in dims if can_exceed(size, 1))
            kept = next((each for each in stretches if _meets_weight(graph, number, each)), None)
            if kept is not None:
                packed[number] = kept
    return packed


def _meets_weight(graph: Graph, start: int, stretch: Stretch) -> bool:
    """Whether a product with a weight keeps apart a part of a dimension, or its joined pieces."""
    marks = Marks(graph, start, stretch, again=True)
    return any(node.weights and not marks.keys().isdisjoint(node.results) for node in marks.walk())


@dataclass(frozen=True, slots=True)
class PassedOn:
    """What goes on as a batch behind ops that compute all of it.

    Attributes:
        source: The input that it is the batch of.
        stretch: Where it is.
    """

    source: int
    stretch: Stretch


def passed_on(graph: Graph) -> Mapping[int, PassedOn]:
    """Returns what is made of a batch by ops without a rule, of its pieces, or in an iteration."""
    return graph.once(passed_on, lambda: _passed_on(graph))


def _passed_on(graph: Graph) -> dict[int, PassedOn]:
    passed: dict[int, PassedOn] = {}
    for number, stretch in batch_inputs(graph).items():
        marks = Marks(graph, number, stretch, again=True)
        unknown = (node for node in marks.walk() if is_unknown(node))
        kept = [value for node in unknown for value in node.results if marks.get(value) == stretch]
        for value in (*kept, *marks.joined):
            passed.setdefault(value, PassedOn(number, marks[value]))
    return passed


def single_inputs(graph: Graph) -> list[str]:
    """Returns the names of the inputs with a first dimension of 1, which is never split."""
    return [
        value.name
        for number, value in enumerate(graph.values)
        if value.role == "input"
        and graph.producer[number] is None
        and value.global_shape[:1] == (1,)
    ]


def batch_end(graph: Graph) -> Node | None:
    """Returns the last op that takes a first dimension of an input and hands it on to no result.

    Where no input has a batch, that is why; None if no input has a first dimension above 1.
    """
    last: Node | None = None
    for number, value in enumerate(graph.values):
        if value.role == "input" and graph.producer[number] is None and value.shape:
            end = _end_of(graph, number, Stretch(0, 1, value.global_shape[0]))
            last = max(filter(None, (last, end)), key=lambda node: node.index, default=None)
    return last


def _end_of(graph: Graph, start: int, stretch: Stretch) -> Node | None:
    if stretch.size == 1:
        return None
    marks, end = Marks(graph, start, stretch), None
    for node in marks.walk():
        if node.op.phase == "forward" and marks.keys().isdisjoint(node.results):
            end = node
    return end


def sequences(graph: Graph) -> Mapping[int, Stretch]:
    """Returns the inputs whose second dimension is a sequence, or the first activation that is one.

    A sequence is what a product with a weight keeps apart, or what is added up to a loss. So the
    features of a row are none, nor are the channels and rows of an image; the patches that an image
    is cut into are one.
    """
    return graph.once(sequences, lambda: _all_sequences(graph))


def _all_sequences(graph: Graph) -> dict[int, Stretch]:
    losses = _losses(graph)
    by_input: dict[int, Stretch] = {}
    for number, value in enumerate(graph.values):
        if value.role == "input" and graph.producer[number] is None and len(value.shape) > 1:
            stretch = Stretch(1, 1, value.global_shape[1])
            if can_exceed(stretch.size, 1) and _is_kept_apart(graph, number, stretch, losses):
                by_input[number] = stretch
    return by_input or _first_inside(graph)


def _first_inside(graph: Graph) -> dict[int, Stretch]:
    for node in graph.nodes:
        for value in node.results if node.op.phase == "forward" and not node.steady else ():
            shape = graph.values[value].global_shape
            if len(shape) == 3 and can_exceed(shape[1], 1):
                stretch = Stretch(1, 1, shape[1])
                if _is_kept_apart(graph, value, stretch, frozenset()):
                    return {value: stretch}
    return {}


def _is_kept_apart(graph: Graph, start: int, stretch: Stretch, losses: frozenset[int]) -> bool:
    marks = Marks(graph, start, stretch)
    for node in marks.walk():
        if node.weights and not marks.keys().isdisjoint(node.results):
            return True
        if not losses.isdisjoint(node.results) and _is_summed(graph, node, marks, losses, True):
            return True
    return False


def _stretches(graph: Graph, value: int) -> list[Stretch]:
    """Returns the first dimension of a value, and what lies within its parts."""
    size = graph.values[value].global_shape[0]
    whole = Stretch(0, 1, size)
    sizes = graph.shared(Cuts).sizes(value, 0, size)
    rest = exact_quotient(size, sizes[0])
    return [whole] if len(sizes) == 1 or rest is None else [whole, Stretch(0, 1, rest)]


def _losses(graph: Graph) -> frozenset[int]:
    """Returns the scalar outputs that are floats, and the scalars of which alone they are computed.

    Others are what is assumed. Scalars may be stacked on the way, or spread over the elements of a
    mask.
    """
    of_scalars = _of_scalars(graph)
    reached: set[int] = set()
    ends = (v for v in graph.outputs if not graph.values[v].shape)
    queue = [v for v in ends if graph.values[v].dtype in FLOATS]
    while queue:
        value = queue.pop()
        if value not in reached:
            reached.add(value)
            producer = graph.producer[value]
            operands = producer[0].operands if producer is not None else ()
            queue.extend(v for v in operands if not graph.values[v].shape or v in of_scalars)
    return frozenset(value for value in reached if not graph.values[value].shape)


def _of_scalars(graph: Graph) -> frozenset[int]:
    """Returns the values that depend on inputs by way of scalars alone."""
    of_inputs = {
        number for number, each in enumerate(graph.values) if each.role == "input" and each.shape
    }
    for node in graph.nodes:
        if not of_inputs.isdisjoint(node.operands):
            of_inputs.update(each for each in node.results if graph.values[each].shape)
    return frozenset(range(len(graph.values))) - of_inputs


def _reaches_end(
    graph: Graph, start: int, stretch: Stretch, losses: frozenset[int], anywhere: bool
) -> bool:
    marks = Marks(graph, start, stretch)
    for node in marks.walk():
        at_loss = not losses.isdisjoint(node.results)
        if at_loss and _is_summed(graph, node, marks, losses, anywhere):
            return True
    return any(value in marks and marks[value].dim == 0 for value in graph.outputs)


def _is_summed(
    graph: Graph,
    node: Node,
    marks: Mapping[int, Stretch],
    losses: frozenset[int],
    anywhere: bool,
) -> bool:
    """Whether an op, or a body of it, adds up to a loss the major part of a first dimension.

    Of what once was the second dimension, which may have been merged with the first, any part.
    """
    rule = node.call.rule
    for position, value in enumerate(node.operands):
        mark = marks.get(value)
        if mark is None or not (anywhere or _is_major(graph, value, mark)):
            continue
        hit = factor_of(rule, rule.operands[position], mark)
        for variant in (rule, *(body.rule for body in rule.bodies)):
            if hit is not None and hit[0] in variant.splittable:
                reduced = (variant.reduce.get((hit[0], n)) for n in range(len(node.results)))
                pairs = zip(node.results, reduced, strict=True)
                if any(monoid == "sum" and result in losses for result, monoid in pairs):
                    return True
    return False


def _is_major(graph: Graph, value: int, mark: Stretch) -> bool:
    return not mark.dim and mark.inner * mark.size == graph.values[value].shape[0]
