"""Puts captured graphs together into one graph of a whole step, and says what its parts are.

    batch -> microbatches -> forward and backward of each -> gradients, summed -> clip, update

The loss is the sum of those of the microbatches, each times its weight, and so are the gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from autopar.base.errors import InvalidInputError
from autopar.frontend.lower.exported import GraphInput, GraphOutput
from autopar.frontend.torch.capture.fake import Stored, is_absent
from autopar.frontend.torch.capture.joint import Joint
from autopar.frontend.torch.capture.origin import is_backward, module_of
from autopar.frontend.torch.conditions.assumptions import Assumed
from autopar.frontend.torch.step.microbatches import Microbatches
from autopar.frontend.torch.step.update import Update
from autopar.ir.program import ASSUMPTION

aten = torch.ops.aten

Place = tuple[str, int]
"""Phase and microbatch of an op."""

START: Place = ("forward", 0)
"""Where what no op has computed is."""

_END: Place = ("backward", 0)
"""Where what concerns the gradients of all microbatches is."""


@dataclass
class Step:
    """The graph of a step, as it is put together.

    Attributes:
        mode: The mode of its fake tensors.
        graph: The graph.
        inputs: What its placeholders are, in the order of the program's inputs.
        outputs: What it returns.
        names: Names of values by the node that computes them.
        places: Phase and microbatch of its nodes.
    """

    mode: FakeTensorMode
    graph: fx.Graph = field(default_factory=fx.Graph)
    inputs: dict[fx.Node, GraphInput] = field(default_factory=dict)
    outputs: list[GraphOutput] = field(default_factory=list)
    names: dict[fx.Node, str] = field(default_factory=dict)
    places: dict[fx.Node, Place] = field(default_factory=dict)

    def input(self, given: GraphInput, tensor: Tensor) -> fx.Node:
        """Adds an input."""
        node = self.graph.placeholder(f"input_{len(self.inputs)}")
        node.meta["val"] = tensor
        self.inputs[node] = given
        return node

    def call(self, place: Place, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Adds an op."""
        node = self.graph.call_function(target, args, kwargs)
        with self.mode:
            tensors = fx.node.map_arg(args, lambda n: n.meta["val"])
            node.meta["val"] = target(*tensors, **kwargs)
        self.places[node] = place
        return node

    def cast(self, place: Place, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        """Adds the conversion of a value to a dtype, where it has another one."""
        if node.meta["val"].dtype == dtype:
            return node
        return self.call(place, aten._to_copy.default, node, dtype=dtype)

    def copy(
        self, graph: fx.Graph, given: dict[fx.Node, fx.Node], phase: str, microbatch: int = 0
    ) -> dict[fx.Node, fx.Node]:
        """Adds the ops of a graph and returns its nodes' counterparts.

        Args:
            graph: The graph.
            given: The counterparts of its placeholders and attributes.
            phase: The phase of ops that aren't of the backward pass.
            microbatch: The microbatch of its ops.
        """
        for node in graph.nodes:
            if node.op == "call_function" and node.target not in _EFFECTS:
                made = self.graph.node_copy(node, given.__getitem__)
                self.places[made] = ("backward" if is_backward(node) else phase, microbatch)
                if module := module_of(node):
                    self.names[made] = f"{module}.{made.name}"
                given[node] = made
        return given

    def update(self, new: fx.Node, old: fx.Node, label: str) -> None:
        """Makes a value the new content of an input, and an output.

        Raises:
            InvalidInputError: If it has another shape.
        """
        _check_shape(new, old, label)
        self.names[new] = f"{label}.new"
        # Outputs are told apart by their labels, and a model may call one as its buffer is called.
        taken = any(output.label == label for output in self.outputs)
        self.outputs.append(GraphOutput(new, f"{label}.new" if taken else label, old))

    def write(self, new: fx.Node, old: fx.Node, label: str) -> None:
        """Makes a value what forward writes to a tensor of the batch.

        Raises:
            InvalidInputError: If it has another shape.
        """
        _check_shape(new, old, label)
        self.outputs.append(GraphOutput(new, label, written=True))

    def assume(self, assumed: Sequence[Assumed]) -> None:
        """Makes scalars outputs that every run compares with what they must be."""
        for at, each in enumerate(assumed):
            truth = each.node.meta["val"].dtype == torch.bool
            # A value of its own, whatever else is returned.
            target, operand = (aten.eq.Scalar, True) if truth else (aten.mul.Scalar, 1)
            # A model may ask for its inputs and buffers themselves.
            place = self.places.get(each.node, START)
            with self.graph.inserting_after(each.node):
                result = self.call(place, target, each.node, operand)
            self.outputs.append(GraphOutput(result, f"{ASSUMPTION}.{at}", assumed=each.assumption))

    def close(self) -> None:
        """Ends the graph."""
        self.graph.output(tuple(output.node for output in self.outputs))


_EFFECTS = (
    torch.ops.profiler._record_function_enter_new.default,
    torch.ops.profiler._record_function_exit._RecordFunction,
    aten.copy_.default,
)
"""Ops that tell the profiler where a step begins and ends, and those that write results back into
the inputs, where they are returned as well."""


def _check_shape(new: fx.Node, old: fx.Node, label: str) -> None:
    before, after = (tuple(node.meta["val"].shape) for node in (old, new))
    if before != after:
        raise InvalidInputError(
            f"forward changes the shape of {label!r} in place, from {list(before)} to"
            f" {list(after)}, and in a program it has one; make a new tensor"
        )


@dataclass(frozen=True)
class Computed:
    """What the forward and backward passes leave.

    Attributes:
        outputs: Results of the model by label, those of all microbatches put together.
        loss: The loss; None for a forward pass.
        gradients: By name of the parameter.
        buffers: New contents of buffers, and of parameters that forward overwrites, by name.
        written: New contents of tensors of the batch, by position.
        assumed: What must be as in the example.
        present: Whether parameters have a gradient, by name, of those where data decides.
    """

    outputs: Mapping[str, fx.Node]
    loss: fx.Node | None
    gradients: Mapping[str, fx.Node]
    buffers: Mapping[str, fx.Node]
    written: Mapping[int, fx.Node]
    assumed: Sequence[Assumed]
    present: Mapping[str, fx.Node]


class Inputs:
    """The inputs that a model needs, added to a step.

    Args:
        step: The step.
        joints: The captured graphs, each once.
        stored: The model's tensors by name.
        labels: Names of the tensors of the batch.
        batch: Fake tensors of the whole batch.
        types: What parameters are stored as, by name, where that isn't the model's dtype.
        whole: Whether the program stores all that the model's state dict has, even what nothing
            reads.

    Attributes:
        stored: The inputs that are the model's tensors, by name.
        read: What the model reads of them.
        constants: The counterparts of nodes of captured graphs that get constants.
        constant_values: The constants by name.
        batch: The inputs that are tensors of the batch.
    """

    def __init__(
        self,
        step: Step,
        joints: Sequence[Joint],
        stored: Mapping[str, Stored],
        labels: Sequence[str],
        batch: Sequence[Tensor],
        types: Mapping[str, torch.dtype],
        whole: bool,
    ) -> None:
        used = {
            name
            for joint in joints
            for name in (*joint.stored.values(), *joint.gradients, *joint.updates)
        }
        updated = {name for joint in joints for name in joint.updates}
        self.stored = {}
        for name, each in sorted(stored.items(), key=lambda item: item[1].role != "parameter"):
            if name in used or (whole and each.persistent):
                role = each.role
                if role == "buffer" and not each.persistent:
                    # What is neither saved nor changed is a table that the model computed.
                    role = "state" if name in updated else "constant"
                given = GraphInput(name, role, name, aliases=each.aliases[1:])
                typed = _typed(step, each.fake, types, name)
                if role == "constant":
                    with step.mode:
                        typed = storable(typed)
                self.stored[name] = step.input(given, typed)
        # What the model reads.
        self.read = {
            name: step.cast(START, _complex(step, node, stored[name].fake), stored[name].fake.dtype)
            for name, node in self.stored.items()
        }
        self.constants: dict[fx.Node, fx.Node] = {}
        self.constant_values: dict[str, Tensor] = {}
        for joint in joints:
            self._add_constants(step, joint, [*joints[0].constants.items()])
        self.labels = labels
        self.tensors = batch
        self.batch: list[fx.Node] = []

    def _add_constants(
        self, step: Step, joint: Joint, first: Sequence[tuple[fx.Node, Tensor]]
    ) -> None:
        """Adds the constants of a graph that aren't those of the first one in their place."""
        for at, (node, tensor) in enumerate(joint.constants.items()):
            like, known = first[at] if at < len(first) else (node, tensor)
            if like in self.constants and _is_same(tensor, known):
                self.constants[node] = self.constants[like]
                continue
            name = f"constant.{len(self.constant_values)}"
            held = step.input(GraphInput(name, "constant"), storable(tensor))
            self.constants[node] = _complex(step, held, tensor)
            self.constant_values[name] = tensor

    def add_batch(self, step: Step) -> None:
        """Adds the batch, which comes after all that is stored."""
        for label, tensor in zip(self.labels, self.tensors, strict=True):
            self.batch.append(step.input(GraphInput(label, "input", label), tensor))


def storable(constant: Tensor) -> Tensor:
    """Returns a constant as files of weights have it: no complex numbers of 128 bits."""
    if constant.dtype != torch.complex128:
        return constant
    return torch.view_as_real(constant.resolve_conj())


def _is_same(tensor: Tensor, other: Tensor) -> bool:
    """Whether constants are alike; absent ones never are."""
    if is_absent(tensor) or is_absent(other) or tensor.dtype != other.dtype:
        return False
    return torch.equal(tensor, other)


def _complex(step: Step, stored: fx.Node, tensor: Tensor) -> fx.Node:
    """Returns what was stored of a tensor as the tensor that it is."""
    if stored.meta["val"].is_complex() or not tensor.is_complex():
        return stored
    return step.call(START, aten.view_as_complex.default, stored)


def _typed(step: Step, fake: Tensor, types: Mapping[str, torch.dtype], name: str) -> Tensor:
    with step.mode:
        return fake.to(types[name]) if name in types else fake


def compute(
    step: Step,
    joints: Sequence[Joint],
    inputs: Inputs,
    microbatches: Microbatches,
    totals: Sequence[fx.Node] = (),
    scale: fx.Node | None = None,
) -> Computed:
    """Adds the forward and backward passes of all microbatches.

    Gradients are summed in the dtype that their parameters are stored in, and freed of the scale.

    Args:
        step: The step to which they are added.
        joints: The captured passes of each microbatch.
        inputs: The step's inputs.
        microbatches: How the batch is cut.
        totals: What denominators of the loss are, of the whole batch.
        scale: What the gradient of the loss is multiplied by; None for 1.
    """
    buffers: dict[str, fx.Node] = {}
    parts: list[_Part] = []
    for number, (joint, weight) in enumerate(zip(joints, microbatches.weights, strict=True)):
        place, batch = ("forward", number), _rows_of(step, inputs.batch, microbatches, number)
        given: dict[fx.Node, fx.Node] = dict(inputs.constants)
        for node, name in joint.stored.items():
            given[node] = buffers.get(name, inputs.read[name])
        for node, position in joint.batch.items():
            given[node] = batch[position]
        for tangent in joint.tangents.values():
            given[tangent] = _tangent(step, tangent, place, scale, weight)
        # The loss is a function of what is written, which has no other gradient.
        for tangent in joint.written_tangents.values():
            given[tangent] = _zeros(step, tangent, place)
        for denominator, total in zip(joint.denominators, totals, strict=True):
            # A count times a number would have torch's default dtype.
            wide = torch.promote_types(denominator.dtype, torch.float32)
            share = step.call(place, aten.mul.Scalar, step.cast(place, total, wide), weight)
            given[denominator.given] = step.cast(place, share, denominator.dtype)
        parts.append(_Part(joint, step.copy(joint.graph, given, "forward", number)))
        buffers = parts[-1].named(joint.updates)
    first = joints[0]
    gradients = {
        name: _accumulated(
            step, [part.gradients(name) for part in parts], inputs.stored[name].meta["val"].dtype
        )
        for name in first.gradients
        if name in inputs.stored
    }
    if scale is not None:
        inverse = step.call(_END, aten.reciprocal.default, scale)
        gradients = {
            name: step.call(_END, aten.mul.Tensor, node, inverse)
            for name, node in gradients.items()
        }
    results = zip(*(part.outputs() for part in parts), strict=True)
    outputs = {
        label: _joined(step, nodes)
        for label, nodes in zip(first.structure.labels, results, strict=True)
    }
    written = {
        position: _joined(step, [part.made[part.joint.written[position]] for part in parts])
        for position in first.written
    }
    loss = None
    if first.tangents:
        loss = _weighted(step, [part.outputs()[0] for part in parts], microbatches.weights)
    assumed = [each for part in parts for each in assumed_of(part.joint, part.made)]
    present = {
        name: _any(step, [part.made[part.joint.present[name]] for part in parts])
        for name in first.present
    }
    return Computed(outputs, loss, gradients, buffers, written, assumed, present)


class _Part(NamedTuple):
    """A microbatch's copy of a captured graph.

    Attributes:
        joint: The captured graph.
        made: The counterparts of its nodes.
    """

    joint: Joint
    made: Mapping[fx.Node, fx.Node]

    def outputs(self) -> list[fx.Node]:
        """Returns its results."""
        return [self.made[node] for node in self.joint.outputs]

    def gradients(self, name: str) -> list[fx.Node]:
        """Returns the gradients of a parameter."""
        return [self.made[node] for node in self.joint.gradients[name]]

    def named(self, nodes: Mapping[str, fx.Node]) -> dict[str, fx.Node]:
        """Returns the counterparts of nodes by name."""
        return {name: self.made[node] for name, node in nodes.items()}


def _any(step: Step, nodes: Sequence[fx.Node]) -> fx.Node:
    """Adds whether one of some booleans is true."""
    found = nodes[0]
    for node in nodes[1:]:
        found = step.call(_END, aten.logical_or.default, found, node)
    return found


def kept_without(step: Step, present: fx.Node | None, new: fx.Node, old: fx.Node) -> fx.Node:
    """Adds the choice of an old value where its parameter has no gradient, as optimizers do."""
    if present is None:
        return new
    return step.call(("update", 0), aten.where.self, present, new, old)


def assumed_of(joint: Joint, part: Mapping[fx.Node, fx.Node]) -> list[Assumed]:
    """Returns the assumptions of a copy of a captured graph."""
    return [replace(each, node=part[each.node]) for each in joint.assumed]


def _accumulated(step: Step, parts: Sequence[Sequence[fx.Node]], dtype: torch.dtype) -> fx.Node:
    """Adds a parameter's gradients as each is made, so that they never lie in memory together.

    Args:
        step: The step.
        parts: Its gradients in each microbatch.
        dtype: That of the sum.
    """
    total: fx.Node | None = None
    for number, nodes in enumerate(parts):
        for node in nodes:
            place = "backward", number
            with step.graph.inserting_before(_behind(step, node, total)):
                gradient = step.cast(place, node, dtype)
                if total is not None:
                    gradient = step.call(place, aten.add.Tensor, total, gradient)
            total = gradient
    assert total is not None
    return total


def _behind(step: Step, *nodes: fx.Node | None) -> fx.Node:
    """Returns what follows the last of some nodes."""
    return max(node for node in nodes if node is not None).next


def _tangent(
    step: Step, like: fx.Node, place: Place, scale: fx.Node | None, weight: float
) -> fx.Node:
    """Adds the gradient that the loss of a microbatch starts with."""
    dtype = like.meta["val"].dtype
    if scale is None:
        return step.call(place, aten.full.default, [], weight, dtype=dtype)
    part = scale if weight == 1 else step.call(place, aten.mul.Scalar, scale, weight)
    return step.cast(place, part, dtype)


def _zeros(step: Step, like: fx.Node, place: Place) -> fx.Node:
    shape, dtype = list(like.meta["val"].shape), like.meta["val"].dtype
    return step.call(place, aten.full.default, shape, 0.0, dtype=dtype)


def update(
    step: Step,
    captured: Update,
    rates: Sequence[fx.Node],
    parameters: Sequence[fx.Node],
    gradients: Sequence[fx.Node],
    states: Sequence[fx.Node],
) -> tuple[fx.Node | None, list[fx.Node]]:
    """Adds clipping and the optimizer's step.

    Returns:
        The norm of all gradients, if they are clipped, and the new content of each parameter and
        state.
    """
    given: dict[fx.Node, fx.Node] = {}
    given.update(zip(captured.parameters, parameters, strict=True))
    given.update(zip(captured.gradients, gradients, strict=True))
    given.update(zip(captured.states, states, strict=True))
    given.update(zip(captured.rates, rates, strict=True))
    done = step.copy(captured.graph, given, "update")
    new = [done[node] for node in (*captured.new_parameters, *captured.new_states)]
    norm = None if captured.norm is None else done[captured.norm]
    return norm, new


def _rows_of(
    step: Step, batch: Sequence[fx.Node], microbatches: Microbatches, number: int
) -> Sequence[fx.Node]:
    """Adds the tensors of a microbatch; those of the batch, if it isn't cut."""
    if not microbatches.bounds:
        return batch
    return [
        step.call(("forward", number), aten.slice.Tensor, node, 0, begin, end)
        for node, (begin, end) in zip(batch, microbatches.ranges(number), strict=True)
    ]


def summed(step: Step, nodes: Sequence[fx.Node]) -> fx.Node:
    """Adds the sum of gradients of one parameter, and returns it."""
    total = nodes[0]
    for node in nodes[1:]:
        total = step.call(_END, aten.add.Tensor, total, node)
    return total


def _weighted(step: Step, losses: Sequence[fx.Node], weights: Sequence[float]) -> fx.Node:
    """Adds the sum of losses, each times its weight."""
    if len(losses) == 1:
        return losses[0]
    total = step.call(START, aten.mul.Scalar, losses[0], weights[0])
    for loss, weight in zip(losses[1:], weights[1:], strict=True):
        total = step.call(START, aten.add.Tensor, total, loss, alpha=weight)
    return total


def _joined(step: Step, nodes: Sequence[fx.Node]) -> fx.Node:
    if len(nodes) == 1:
        return nodes[0]
    if nodes[0].meta["val"].ndim == 0:
        return step.call(("forward", 0), aten.stack.default, list(nodes))
    return step.call(("forward", 0), aten.cat.default, list(nodes))
