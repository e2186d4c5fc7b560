"""The figures of an op and of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.base.errors import Loc


@dataclass(frozen=True, slots=True)
class Node:
    """An op.

    Attributes:
        name: The first value that it computes.
        kind: The op's kind.
        layer: The module, or node of a graph, that it belongs to.
        phase: Forward, backward or update.
        loc: The user's line or ONNX node.
        flops: Of products (see `autopar.cost.flops`).
        moved_bytes: Bytes that it reads and writes in the device's memory.
        communicated_bytes: Bytes that a collective or a transfer to the host or back is about.
        compute_seconds: Seconds on the device, or on its host.
        communication_seconds: Seconds on the links, that to the host's memory among them.
        result_bytes: Memory that its results take, besides views.
        saved_bytes: Of these, what is kept for the backward pass.
        at_bytes: Memory that is taken while it runs, by whomever.
        after_bytes: Memory that is taken after it.
        backward_flops: Flops of the ops that compute its gradients, where that is known.
        backward_moved_bytes: Bytes that these move.
        backward_seconds: Seconds of these.
        times: How often it runs. All figures are of one run, but memory that is saved, of all.
    """

    name: str
    kind: str
    layer: str
    phase: str
    loc: Loc
    flops: int
    moved_bytes: int
    communicated_bytes: int
    compute_seconds: float
    communication_seconds: float
    result_bytes: int
    saved_bytes: int
    at_bytes: int
    after_bytes: int
    backward_flops: int = 0
    backward_moved_bytes: int = 0
    backward_seconds: float = 0.0
    times: int = 1

    @property
    def seconds(self) -> float:
        """Seconds if nothing else runs."""
        return self.compute_seconds + self.communication_seconds


@dataclass(frozen=True, slots=True)
class Layer:
    """The ops of a part of a model.

    Attributes:
        name: Its qualified name; "" for ops outside of all modules.
        ops: How many there are.
        flops: Their flops.
        forward_seconds: Seconds of computation in the forward phase.
        backward_seconds: The same in the backward phase.
        update_seconds: The same in the optimizer.
        communication_seconds: Seconds on the links, in all phases.
        saved_bytes: What is kept for the backward pass.
        peak_bytes: The most memory that is taken, by whomever, while one of them runs.
    """

    name: str
    ops: int
    flops: int
    forward_seconds: float
    backward_seconds: float
    update_seconds: float
    communication_seconds: float
    saved_bytes: int
    peak_bytes: int

    @property
    def seconds(self) -> float:
        """Seconds of all phases if nothing runs beside."""
        computing = self.forward_seconds + self.backward_seconds + self.update_seconds
        return computing + self.communication_seconds


def layer_of(name: str, nodes: Sequence[Node]) -> Layer:
    """Returns the figures of a part of a model, from those of its ops."""

    def seconds(phase: str) -> float:
        return sum(node.times * node.compute_seconds for node in nodes if node.phase == phase)

    return Layer(
        name,
        sum(node.times for node in nodes),
        sum(node.times * node.flops for node in nodes),
        seconds("forward"),
        seconds("backward"),
        seconds("update"),
        sum(node.times * node.communication_seconds for node in nodes),
        sum(node.saved_bytes for node in nodes),
        max(node.at_bytes for node in nodes),
    )
