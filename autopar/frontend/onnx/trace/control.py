"""Control flow: what is known when the program is imported is unrolled or inlined.

`If` on a known condition becomes one of its branches. On another condition, both are computed and
one is selected, element by element: a graph has no side effects. `Loop` and `Scan` are unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from onnx import GraphProto

from autopar.frontend.onnx.model.dtypes import element_type, element_type_of
from autopar.frontend.onnx.trace.node import Node, Refused, Undecided
from autopar.frontend.onnx.trace.scope import Scope, Walks
from autopar.frontend.onnx.trace.values import (
    Failed,
    Known,
    Sized,
    TensorTree,
    Traced,
    Translation,
    Value,
    leaves,
)

Control = Callable[[Walks, Scope, Node, Sequence[Value]], list[Value]]
"""Runs a node whose attributes are graphs."""

MOST_ITERATIONS = 4096
"""Iterations to which a loop is unrolled at most."""
_SAME = "make the branches return tensors of one shape and type, or the condition an initializer"


def run_if(walker: Walks, scope: Scope, node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Inlines the branch that the condition chooses, or computes both."""
    condition = inputs[0]
    if isinstance(condition, Failed):
        return _fail_both(walker, scope, node)
    content = walker.recorder.content(condition)
    if content is not None:
        if content.numel() != 1:
            raise Refused(f"its condition has {content.numel()} elements instead of one")
        branch = "then_branch" if bool(content) else "else_branch"
        return _branch(walker, scope, node, branch, "")
    problems = walker.recorder.problems
    before = len(problems.found)
    names = ("then_branch", "else_branch")
    labels = [scope.prefix + name for name in names]
    then, other = (
        _branch(walker, scope, node, name, label) for name, label in zip(names, labels, strict=True)
    )
    if len(problems.found) > before:
        problems.add(
            node.label,
            "its condition depends on the program's inputs, so both branches must work",
            "make the input that decides it a constant of the model",
        )
    walker.note(node, "its condition depends on the program's inputs: both branches are computed")
    return [_select(walker, node, condition, *pair) for pair in zip(then, other, strict=True)]


def _branch(walker: Walks, scope: Scope, node: Node, name: str, label: str) -> list[Value]:
    values = walker.run_subgraph(node.graph(name), scope, [], label)
    if len(values) != len(node.proto.output):
        raise Refused(
            f"its {name} returns {len(values)} values for {len(node.proto.output)} outputs"
        )
    return values


def _fail_both(walker: Walks, scope: Scope, node: Node) -> list[Value]:
    """Walks both branches for their problems only."""
    for name in ("then_branch", "else_branch"):
        _branch(walker, scope, node, name, scope.prefix + name)
    return [Failed()] * len(node.proto.output)


def _select(walker: Walks, node: Node, condition: Value, then: Value, other: Value) -> Value:
    if then is other:
        return then
    values = [condition, then, other]
    return walker.recorder.run(node, Translation(_where), values, 1)[0]


def _where(node: Node, condition: torch.Tensor, then: object, other: object) -> TensorTree:
    if not isinstance(then, torch.Tensor) or not isinstance(other, torch.Tensor):
        raise Refused(
            "its condition is only known at run time, and it returns no plain tensors", _SAME
        )
    if then.shape != other.shape or then.dtype != other.dtype:
        raise Refused(
            "its condition is only known at run time, and its branches return "
            f"{list(then.shape)} and {list(other.shape)}",
            _SAME,
        )
    return torch.where(condition.reshape(()), then, other)


def run_loop(walker: Walks, scope: Scope, node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Unrolls a loop: ONNX's `for (i < trip_count) while (condition)`."""
    body = node.graph("body")
    padded = [*inputs, None, None][: max(2, len(inputs))]
    if any(isinstance(leaf, Failed) for value in inputs for leaf in leaves(value)):
        return [Failed()] * len(node.proto.output)
    most = _integer(walker, padded[0], "trip count")
    going = _integer(walker, padded[1], "condition")
    if most is None and going is None:
        raise Refused("it has neither a trip count nor a condition")
    carried = list(padded[2:])
    if len(body.input) != len(carried) + 2 or len(body.output) <= len(carried):
        raise Refused("its body doesn't take and return the values that it carries")
    scanned: list[list[Value]] = [[] for _ in body.output[1 + len(carried) :]]
    count = 0
    while (most is None or count < most) and going != 0:
        if count >= MOST_ITERATIONS:
            raise Refused(f"it runs for more than {MOST_ITERATIONS} iterations")
        counter, condition = _scalar(count, torch.int64), _scalar(1, torch.bool)
        label = f"{node.name}.{count}"
        results = walker.run_subgraph(body, scope, [counter, condition, *carried], label)
        if any(isinstance(leaf, Failed) for value in results for leaf in leaves(value)):
            return [Failed()] * len(node.proto.output)
        going = _integer(walker, results[0], "condition after an iteration")
        carried = results[1 : 1 + len(carried)]
        for collected, value in zip(scanned, results[1 + len(carried) :], strict=True):
            collected.append(value)
        count += 1
    stacked = [
        _stack(walker, node, items, body, 1 + len(carried) + at, 0)
        for at, items in enumerate(scanned)
    ]
    return [*carried, *stacked]


def run_scan(walker: Walks, scope: Scope, node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Unrolls a scan over the slices of its last inputs."""
    if any(isinstance(leaf, Failed) for value in inputs for leaf in leaves(value)):
        return [Failed()] * len(node.proto.output)
    if node.opset < 9:
        return _scan_batches(walker, scope, node, inputs)
    return _scan(walker, scope, node, inputs, node.name)


def _scan_batches(walker: Walks, scope: Scope, node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Unrolls a scan of opset 8, which does the same for every element of a batch."""
    if inputs[0] is not None:
        raise Refused("its sequence_lens isn't supported; opset 9 has no such input")
    sizes = {_length(value, 0) for value in inputs[1:]}
    if len(sizes) != 1:
        raise Refused(f"its inputs have different batch sizes: {sorted(sizes)}")
    results = []
    for at in range(sizes.pop()):
        elements = [_slice(walker, node, value, 0, at) for value in inputs[1:]]
        results.append(_scan(walker, scope, node, elements, f"{node.name}.{at}"))
    body = node.graph("body")
    return [
        _stack(walker, node, list(items), body, at, 0)
        for at, items in enumerate(zip(*results, strict=True))
    ]


def _scan(
    walker: Walks, scope: Scope, node: Node, inputs: Sequence[Value], label: str
) -> list[Value]:
    body = node.graph("body")
    scans = node.integer("num_scan_inputs")
    states = len(inputs) - scans
    if not 0 < scans <= len(inputs) or len(body.input) != len(inputs):
        raise Refused("its body doesn't take as many values as it has inputs")
    if len(body.output) < states:
        raise Refused("its body returns fewer values than it carries")
    outputs = len(body.output) - states
    axes = _listed(node, "scan_input_axes", scans)
    backward = _listed(node, "directions" if node.opset < 9 else "scan_input_directions", scans)
    out_axes = _listed(node, "scan_output_axes", outputs)
    out_backward = _listed(node, "scan_output_directions", outputs)
    carried, sequences = list(inputs[:states]), inputs[states:]
    lengths = {_length(value, axis) for value, axis in zip(sequences, axes, strict=True)}
    if len(lengths) != 1:
        raise Refused(f"its scanned inputs have different lengths: {sorted(lengths)}")
    length = lengths.pop()
    if length > MOST_ITERATIONS:
        raise Refused(f"it runs for more than {MOST_ITERATIONS} iterations")
    collected: list[list[Value]] = [[] for _ in range(outputs)]
    for step in range(length):
        slices = [
            _slice(walker, node, value, axis, length - 1 - step if back else step)
            for value, axis, back in zip(sequences, axes, backward, strict=True)
        ]
        results = walker.run_subgraph(body, scope, [*carried, *slices], f"{label}.{step}")
        carried = results[:states]
        for items, value in zip(collected, results[states:], strict=True):
            items.append(value)
    stacked = [
        _stack(walker, node, items[::-1] if back else items, body, states + at, axis)
        for at, (items, axis, back) in enumerate(
            zip(collected, out_axes, out_backward, strict=True)
        )
    ]
    return [*carried, *stacked]


def run_sequence_map(
    walker: Walks, scope: Scope, node: Node, inputs: Sequence[Value]
) -> list[Value]:
    """Runs the body once for each element of a sequence."""
    sequence = inputs[0]
    if isinstance(sequence, Failed) or not isinstance(sequence, list):
        return [Failed()] * len(node.proto.output)
    collected: list[list[Value]] = [[] for _ in node.proto.output]
    for at, item in enumerate(sequence):
        others = [_item(value, at) for value in inputs[1:]]
        label = f"{node.name}.{at}"
        results = walker.run_subgraph(node.graph("body"), scope, [item, *others], label)
        if len(results) != len(collected):
            raise Refused(f"its body returns {len(results)} values for {len(collected)} outputs")
        for items, value in zip(collected, results, strict=True):
            items.append(value)
    return list(collected)


def _item(value: Value, at: int) -> Value:
    """Returns what an iteration sees of an input: an element of a sequence, or all of it."""
    if not isinstance(value, list):
        return value
    if at >= len(value):
        raise Refused("its sequences have different lengths")
    return value[at]


def _integer(walker: Walks, value: Value, what: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, Sized):
        size = value.array.item()
        raise Undecided(f"its {what} {size} is open, and it is unrolled", size, by_range=False)
    content = walker.recorder.content(value)
    if content is None:
        what = f"its {what} depends on the program's inputs"
        raise Refused(what, "make it an initializer: the loop is unrolled")
    if content.numel() != 1:
        raise Refused(f"its {what} has {content.numel()} elements instead of one")
    return int(content)


def _scalar(value: int, dtype: torch.dtype) -> Known:
    return Known(torch.tensor(value, dtype=dtype), element_type_of(dtype))


def _listed(node: Node, name: str, count: int) -> list[int]:
    listed = node.integers(name) or [0] * count
    if len(listed) != count:
        raise Refused(f"its {name} has {len(listed)} entries instead of {count}")
    return listed


def _length(value: Value, axis: int) -> int:
    if isinstance(value, Known):
        shape = value.tensor.shape
    elif isinstance(value, Traced):
        shape = value.fake.shape
    else:
        raise Refused("it scans something that is no tensor")
    if not -len(shape) <= axis < len(shape):
        raise Refused(f"it scans axis {axis} of shape {list(shape)}")
    length = shape[axis]
    if not isinstance(length, int):
        what = f"the length {length} that it scans is open, and it is unrolled"
        raise Undecided(what, length, by_range=False)
    return length


def _slice(walker: Walks, node: Node, value: Value, axis: int, index: int) -> Value:
    def select(_: Node, x: torch.Tensor) -> torch.Tensor:
        return x.select(axis, index)

    return walker.recorder.run(node, Translation(select), [value], 1)[0]


def _stack(
    walker: Walks, node: Node, items: list[Value], body: GraphProto, output: int, axis: int
) -> Value:
    if not items:
        return _empty(body, output)

    def stack(_: Node, *tensors: torch.Tensor) -> torch.Tensor:
        return torch.stack(tensors, axis)

    return walker.recorder.run(node, Translation(stack), items, 1)[0]


def _empty(body: GraphProto, output: int) -> Value:
    """Returns what zero iterations stack up to, from the declared type of the body's output."""
    tensor = body.output[output].type.tensor_type
    kind = element_type(tensor.elem_type)
    sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
    if kind is None or min(sizes, default=0) < 0:
        raise Refused("it runs for zero iterations, and its body doesn't declare result shapes")
    return Known(torch.empty((0, *sizes), dtype=kind.carrier), kind)


CONTROL: Mapping[str, Control] = {
    "If": run_if,
    "Loop": run_loop,
    "Scan": run_scan,
    "SequenceMap": run_sequence_map,
}
"""Operators whose attributes are graphs."""
