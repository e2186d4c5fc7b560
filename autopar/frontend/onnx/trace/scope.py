"""Scopes: which names a graph of a model sees, and who walks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from onnx import AttributeProto, GraphProto, TensorProto

from autopar.frontend.onnx.trace.node import Node
from autopar.frontend.onnx.trace.record import Recorder
from autopar.frontend.onnx.trace.values import Value


@dataclass
class Scope:
    """The names that a graph or function body sees.

    Attributes:
        opsets: Version by domain.
        prefix: Goes before the names of values that are defined in it.
        parent: The scope around it: that of the node whose subgraph this is.
        attributes: What a function's attributes are bound to.
        values: What is defined in it so far.
        initializers: Stored tensors that weren't read yet.
    """

    opsets: Mapping[str, int]
    prefix: str = ""
    parent: Scope | None = None
    attributes: Mapping[str, AttributeProto] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    initializers: dict[str, TensorProto] = field(default_factory=dict)


class Walks(Protocol):
    """What control flow needs of who walks the graphs: `walk.Walker` is one.

    Attributes:
        recorder: Where nodes are run or recorded.
    """

    recorder: Recorder

    def run_subgraph(
        self, graph: GraphProto, parent: Scope, inputs: Sequence[Value], label: str = ""
    ) -> list[Value]:
        """Walks the graph of a control-flow node; see `walk.Walker.run_subgraph`."""

    def note(self, node: Node, detail: str, category: str = "rewritten") -> None:
        """Notes that a node is done in another way than the model says."""
