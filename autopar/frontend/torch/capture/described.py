"""What the placeholders and outputs of a captured graph are, as torch describes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from autopar.base.errors import InvalidInputError

Owners = Mapping[str, str]
"""The name of each of a model's tensors by each of its names."""


@dataclass
class Inputs:
    """What the placeholders of a graph are; see `Joint`."""

    stored: dict[fx.Node, str] = field(default_factory=dict)
    batch: dict[fx.Node, int] = field(default_factory=dict)
    constants: dict[fx.Node, Tensor] = field(default_factory=dict)
    tangents: dict[int, fx.Node] = field(default_factory=dict)
    written_tangents: dict[int, fx.Node] = field(default_factory=dict)


@dataclass
class Outputs:
    """What the outputs of a graph are; see `Joint`. Those that tell of others are among `plain`."""

    plain: list[fx.Node] = field(default_factory=list)
    gradients: dict[str, tuple[fx.Node, ...]] = field(default_factory=dict)
    batch_gradients: dict[int, fx.Node] = field(default_factory=dict)
    written: dict[int, fx.Node] = field(default_factory=dict)
    updates: dict[str, fx.Node] = field(default_factory=dict)


@dataclass(frozen=True)
class Denominator:
    """A placeholder for what a term of the loss is divided by, which the whole batch decides.

    Attributes:
        given: The placeholder.
        graph: Computes each microbatch's part of it, which are added up.
        sources: The placeholders and attributes of the captured graph that this reads, by its own
            placeholder.
        result: The part.
        then: Ops on the sum, in order.
    """

    given: fx.Node
    graph: fx.Graph
    sources: Mapping[fx.Node, fx.Node]
    result: fx.Node
    then: tuple[fx.Node, ...]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of what is given."""
        dtype: torch.dtype = self.given.meta["val"].dtype
        return dtype


def inputs_of(module: fx.GraphModule, owner: Owners) -> Inputs:
    """Returns what the placeholders of a graph are.

    Raises:
        InvalidInputError: If the code holds what isn't a tensor.
    """
    found = Inputs()
    for node in module.graph.nodes:
        described = node.meta.get("desc")
        if node.op == "get_attr":
            found.constants[node] = _attribute(module, node)
        elif node.op != "placeholder":
            continue
        elif is_any(described, "TangentAOTInput"):
            if not is_any(described.output, "InputMutationAOTOutput"):
                found.tangents[described.output.idx] = node
            else:
                found.written_tangents[described.output.mutated_input.idx] = node
        elif is_any(described, "PlainAOTInput"):
            found.batch[node] = described.idx
        elif is_any(described, "ParamAOTInput", "BufferAOTInput"):
            found.stored[node] = owner[described.target.removeprefix("model.")]
    return found


def outputs_of(graph: fx.Graph, owner: Owners) -> Outputs:
    """Returns what the outputs of a graph are.

    Raises:
        InvalidInputError: If a gradient is sparse.
    """
    found = Outputs()
    for node, described in _described(graph):
        if is_any(described, "PlainAOTOutput"):
            found.plain.append(node)
        elif is_any(described, "GradAOTOutput"):
            _add_gradient(found, node, described.grad_of, owner)
        elif not is_any(described, "InputMutationAOTOutput"):
            continue
        elif is_any(described.mutated_input, "PlainAOTInput"):
            found.written[described.mutated_input.idx] = node
        else:
            name = owner[described.mutated_input.target.removeprefix("model.")]
            found.updates[name] = node
    return found


def _add_gradient(found: Outputs, node: fx.Node, source: Any, owner: Owners) -> None:
    if is_any(source, "PlainAOTInput"):
        found.batch_gradients[source.idx] = node
    if not is_any(source, "ParamAOTInput"):
        return
    name = owner[source.target.removeprefix("model.")]
    if node.meta["val"].is_sparse:
        raise InvalidInputError(
            f"the gradient of {name!r} is sparse, and programs have dense tensors only;"
            " use sparse=False in its nn.Embedding"
        )
    found.gradients[name] = (*found.gradients.get(name, ()), node)


def _described(graph: fx.Graph) -> Iterator[tuple[fx.Node, Any]]:
    output = graph.output_node()
    nodes, described = output.args[0], output.meta["desc"]
    assert isinstance(nodes, (list, tuple))
    for node, each in zip(nodes, described, strict=True):
        if isinstance(node, fx.Node):
            yield node, each


def is_any(described: object, *names: str) -> bool:
    """Returns whether torch's description of an input or output is of one of these classes."""
    return type(described).__name__ in names


def _attribute(module: fx.GraphModule, node: fx.Node) -> Tensor:
    found: Any = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    if not isinstance(found, Tensor):
        raise InvalidInputError(f"{node.name}: the code holds a {type(found).__name__}")
    return found
