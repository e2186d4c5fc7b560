"""The graph of a whole step, as it is put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from autopar.base.errors import InvalidInputError
from autopar.frontend.lower.exported import GraphInput, GraphOutput
from autopar.frontend.torch.conditions.assumptions import Assumed
from autopar.frontend.torch.origin import is_backward, module_of
from autopar.ir.program import ASSUMPTION, Lifetime

aten = torch.ops.aten

START = Lifetime("forward")
"""Where what no op has computed is."""


@dataclass
class Step:
    """The graph of a step, as it is put together.

    Attributes:
        mode: The mode of its fake tensors.
        graph: The graph.
        inputs: What its placeholders are, in the order of the program's inputs.
        outputs: What it returns.
        names: Names of values by the node that computes them.
        places: Phase and microbatch, or loop, of its nodes.
    """

    mode: FakeTensorMode
    graph: fx.Graph = field(default_factory=fx.Graph)
    inputs: dict[fx.Node, GraphInput] = field(default_factory=dict)
    outputs: list[GraphOutput] = field(default_factory=list)
    names: dict[fx.Node, str] = field(default_factory=dict)
    places: dict[fx.Node, Lifetime] = field(default_factory=dict)

    def input(self, given: GraphInput, tensor: Tensor) -> fx.Node:
        """Adds an input."""
        node = self.graph.placeholder(f"input_{len(self.inputs)}")
        node.meta["val"] = tensor
        self.inputs[node] = given
        return node

    def call(self, place: Lifetime, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Adds an op."""
        node = self.graph.call_function(target, args, kwargs)
        with self.mode:
            tensors = fx.node.map_arg(args, lambda n: n.meta["val"])
            node.meta["val"] = target(*tensors, **kwargs)
        self.places[node] = place
        return node

    def cast(self, place: Lifetime, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        """Adds the conversion of a value to a dtype, where it has another one."""
        if node.meta["val"].dtype == dtype:
            return node
        return self.call(place, aten._to_copy.default, node, dtype=dtype)

    def copy(
        self, graph: fx.Graph, given: dict[fx.Node, fx.Node], place: Lifetime
    ) -> dict[fx.Node, fx.Node]:
        """Adds the ops of a graph and returns its nodes' counterparts.

        Args:
            graph: The graph.
            given: The counterparts of its placeholders and attributes.
            place: Where its ops are, but for the phase of those of the backward pass.
        """
        for node in graph.nodes:
            if node.op == "call_function" and node.target not in _EFFECTS:
                made = self.graph.node_copy(node, given.__getitem__)
                self.places[made] = place._replace(phase="backward") if is_backward(node) else place
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
