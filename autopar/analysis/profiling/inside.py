"""What is inside of calls: ops of a function that is run many times count as often."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from autopar.analysis.profiling.figures import Node
from autopar.cost import Evaluation, MemoryTimeline
from autopar.cost.memory.buffers import SAVED
from autopar.cost.op_cost import OpCost
from autopar.ir.layers import layer_of
from autopar.ir.program import CALLS, REPEAT, Function, Op, callee_of, trip_of


def name_of(op: Op) -> str:
    """Returns what an op is called by: what it computes first, or what it runs."""
    if op.kind in CALLS:
        name = callee_of(op)
        return name if op.kind == REPEAT else f"{name}.m{op.microbatch}"
    return op.results[0] if op.results else ""


def figures_of(cost: OpCost) -> tuple[int, int, int, float, float]:
    """Returns what a node says of a cost: flops, bytes that are moved and sent, and seconds."""
    return (
        cost.flops,
        cost.moved_bytes,
        cost.communicated_bytes + cost.transferred_bytes,
        cost.compute_seconds + cost.host_seconds,
        cost.communication_seconds + cost.transfer_seconds,
    )


def executed(
    nodes: Sequence[Node],
    timeline: MemoryTimeline,
    costs: Evaluation,
    functions: Mapping[str, Function],
) -> tuple[Node, ...]:
    """Returns the ops that are executed, those of functions in the place of calls.

    Args:
        nodes: The ops of `main`.
        timeline: Their memory.
        costs: What they cost.
        functions: What is called, by name.
    """
    calls: dict[str, list[int]] = defaultdict(list)
    for at, op in enumerate(costs.ops):
        if op.kind in CALLS:
            calls[callee_of(op)].append(at)
    if not calls:
        return tuple(nodes)
    saved = _saved(timeline, costs)
    found = [node for node in nodes if node.kind not in CALLS]
    for name, positions in calls.items():
        found += _within(functions[name], positions, timeline, costs, saved)
    return tuple(found)


def _within(
    function: Function,
    positions: Sequence[int],
    timeline: MemoryTimeline,
    costs: Evaluation,
    saved: Counter[tuple[str, int]],
) -> Iterator[Node]:
    """Yields the ops of a function that is called at some positions."""
    inside = costs.inside[function.name]
    outputs = {output: at for at, output in enumerate(function.outputs)}
    times = len(positions) * trip_of(costs.ops[positions[0]])
    at_bytes = max(timeline.at_bytes[at] for at in positions)
    for op, cost in zip(inside.ops, inside.costs, strict=True):
        kept = sum(saved[function.name, outputs[each]] for each in op.results if each in outputs)
        yield Node(
            name_of(op),
            op.kind,
            layer_of(op),
            op.phase,
            op.loc,
            *figures_of(cost),
            0,
            kept,
            at_bytes,
            at_bytes,
            times=times,
        )


def _saved(timeline: MemoryTimeline, costs: Evaluation) -> Counter[tuple[str, int]]:
    """Returns the bytes that are saved of what calls return, by function and position there."""
    found: Counter[tuple[str, int]] = Counter()
    places = {
        result: (callee_of(op), at)
        for op in costs.ops
        if op.kind in CALLS
        for at, result in enumerate(op.results)
    }
    for buffer in timeline.lifetimes.buffers:
        if buffer.kind == SAVED and buffer.name in places:
            found[places[buffer.name]] += timeline.allocator.size(buffer.nbytes)
    return found
