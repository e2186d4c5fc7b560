"""Profile: the cost of every op of one rank's program, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from autopar.analysis.profiling.layers import grouped
from autopar.base.errors import Loc
from autopar.base.file import write_file
from autopar.cost import Evaluation, MemoryTimeline


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
        compute_seconds: Seconds on the device.
        communication_seconds: Seconds on the links, that to the host's memory among them.
        result_bytes: Memory that its results take, besides views.
        saved_bytes: Of these, what is kept for the backward pass.
        at_bytes: Memory that is taken while it runs, by whomever.
        after_bytes: Memory that is taken after it.
        backward_flops: Flops of the ops that compute its gradients, where that is known.
        backward_moved_bytes: Bytes that these move.
        backward_seconds: Seconds of these.
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


@dataclass(frozen=True)
class Profile:
    """What one rank's program costs.

    Attributes:
        title: What it is of.
        cluster: Name of the hardware.
        nodes: The ops, in the order of execution.
        timeline: The memory over time.
        evaluation: The seconds.
    """

    title: str
    cluster: str
    nodes: tuple[Node, ...]
    timeline: MemoryTimeline = field(repr=False)
    evaluation: Evaluation = field(repr=False)

    @property
    def flops(self) -> int:
        """Flops of products."""
        return self.evaluation.flops

    @property
    def serialized_seconds(self) -> float:
        """Seconds of all ops one after the other."""
        return self.evaluation.serialized_seconds

    @property
    def overlapped_seconds(self) -> float:
        """Seconds of a schedule in which sums run beside what doesn't wait for them."""
        return self.evaluation.overlapped_seconds

    @property
    def peak_bytes(self) -> int:
        """The most memory that is taken."""
        return self.timeline.peak_bytes

    @property
    def saved_bytes(self) -> int:
        """Activations that are kept for the backward pass."""
        return self.timeline.saved_bytes

    @cached_property
    def peak_node(self) -> Node | None:
        """The op during which most memory is taken."""
        return self.nodes[self.timeline.peak_at] if self.nodes else None

    def layers(self, depth: int | None = None) -> tuple[Layer, ...]:
        """Returns the layers in order of their first ops.

        Args:
            depth: How many parts of qualified names tell layers apart; by default those up to the
                number of a repeated layer.
        """
        groups: dict[str, list[Node]] = {}
        names = grouped([node.layer for node in self.nodes], depth)
        for name, node in zip(names, self.nodes, strict=True):
            groups.setdefault(name, []).append(node)
        return tuple(_layer(name, nodes) for name, nodes in groups.items())

    def as_dict(self) -> dict[str, Any]:
        """Returns all figures, with the names of the attributes, for JSON."""
        at_peak = self.timeline.breakdown_bytes()
        return {
            "title": self.title,
            "cluster": self.cluster,
            "flops": self.flops,
            "serialized_seconds": self.serialized_seconds,
            "overlapped_seconds": self.overlapped_seconds,
            "communication_seconds": self.evaluation.communication_seconds,
            "transfer_seconds": self.evaluation.transfer_seconds,
            "host_bytes": self.timeline.host_bytes,
            "stored_bytes": self.timeline.stored_bytes,
            "saved_bytes": self.saved_bytes,
            "peak_bytes": self.peak_bytes,
            "peak_node": self.peak_node.name if self.peak_node else None,
            "peak_breakdown_bytes": at_peak,
            "unknown_ops": dict(self.evaluation.unknown),
            "layers": [asdict(layer) for layer in self.layers()],
            "nodes": [{**asdict(node), "loc": str(node.loc)} for node in self.nodes],
        }

    def __str__(self) -> str:
        from autopar.analysis.profiling.show import render_profile

        return render_profile(self)


def _layer(name: str, nodes: list[Node]) -> Layer:
    def seconds(phase: str) -> float:
        return sum(node.compute_seconds for node in nodes if node.phase == phase)

    return Layer(
        name,
        len(nodes),
        sum(node.flops for node in nodes),
        seconds("forward"),
        seconds("backward"),
        seconds("update"),
        sum(node.communication_seconds for node in nodes),
        sum(node.saved_bytes for node in nodes),
        max(node.at_bytes for node in nodes),
    )


def to_json(profiles: tuple[Profile, ...]) -> Iterator[str]:
    """Yields the text of profiles as a JSON list, with the names of the attributes."""
    yield from json.JSONEncoder(indent=1).iterencode([each.as_dict() for each in profiles])


def write_json(profiles: tuple[Profile, ...], path: Path) -> None:
    """Writes profiles as a JSON list.

    Raises:
        InvalidInputError: If the file can't be written.
    """
    write_file(path, to_json(profiles))
