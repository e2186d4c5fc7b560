"""Profile: the cost of every op of one rank's program, and what follows; as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any, Protocol

from autopar.analysis.profiling.figures import Layer, Node, layer_of
from autopar.base.errors import Loc
from autopar.base.file import write_file
from autopar.base.units import human_bytes, human_flops, human_seconds
from autopar.cost import Evaluation, MemoryTimeline
from autopar.ir.layers import grouped

TOP = 10
"""How many layers and ops are listed."""

COLUMNS = 64
"""Width of the curve of memory over time."""

TERMINAL, INDENT = 80, 9
"""The columns within which running text stays, and those before it."""

NAME, PLACE = 44, 40
"""How many letters are shown of names and of ONNX nodes, whose ends tell more."""

_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Profile:
    """What one rank's program costs.

    Attributes:
        title: What it is of.
        cluster: Name of the hardware.
        nodes: The ops of `main`, in the order of execution.
        executed: All ops that are executed, those of functions in the place of calls.
        timeline: The memory over time.
        evaluation: The seconds.
    """

    title: str
    cluster: str
    nodes: tuple[Node, ...]
    executed: tuple[Node, ...] = field(repr=False)
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
        names = grouped([node.layer for node in self.executed], depth)
        for name, node in zip(names, self.executed, strict=True):
            groups.setdefault(name, []).append(node)
        return tuple(layer_of(name, nodes) for name, nodes in groups.items())

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
            "host_seconds": self.evaluation.host_seconds,
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
        return render_profile(self)


class Figures(Protocol):
    """What is written as JSON."""

    def as_dict(self) -> dict[str, Any]:
        """Returns all figures, with the names of the attributes."""


def to_json(found: Sequence[Figures]) -> Iterator[str]:
    """Yields the text of profiles, or comparisons, as a JSON list."""
    yield from json.JSONEncoder(indent=1).iterencode([each.as_dict() for each in found])


def write_json(found: Sequence[Figures], path: Path) -> None:
    """Writes profiles, or comparisons, as a JSON list.

    Raises:
        InvalidInputError: If the file can't be written.
    """
    write_file(path, to_json(found))


def render_profile(profile: Profile, top: int = TOP, depth: int | None = None) -> str:
    """Returns a profile as text.

    Args:
        profile: The profile.
        top: How many layers and ops to list.
        depth: See `Profile.layers`.
    """
    blocks = [_totals(profile), _layers(profile, top, depth), _ops(profile, top)]
    return "\n\n".join("\n".join(lines) for lines in blocks)


def _totals(profile: Profile) -> Iterator[str]:
    costs, timeline = profile.evaluation, profile.timeline
    yield f"{profile.title}, on {profile.cluster}"
    links = costs.communication_seconds
    beside = f", {human_seconds(links)} of it communication" if links else ""
    yield (
        f"compute  {human_flops(profile.flops)};"
        f" {human_seconds(profile.serialized_seconds)} one op after another{beside}"
    )
    if links:
        seconds = human_seconds(profile.overlapped_seconds)
        yield f"         {seconds} where sums run beside other work"
    node = profile.peak_node
    if node is not None:
        where = f"{tail(node.name, NAME)}{_place(node.loc)}"
        yield f"peak     {human_bytes(profile.peak_bytes)} at {where}"
    kinds = timeline.breakdown_bytes().items()
    parts = [f"{kind.replace('_', ' ')} {human_bytes(size)}" for kind, size in kinds if size]
    yield from _wrapped(parts)
    if profile.saved_bytes:
        yield f"saved    {human_bytes(profile.saved_bytes)} for the backward pass"
    if costs.unknown:
        counts = ", ".join(
            kind if count == 1 else f"{kind} ({count} times)"
            for kind, count in costs.unknown.items()
        )
        yield f"no rule  {counts}: priced by bytes, without flops"
    if timeline.host_bytes:
        seconds = human_seconds(costs.transfer_seconds)
        updates = f", updates there {human_seconds(costs.host_seconds)}" * bool(costs.host_seconds)
        held = human_bytes(timeline.host_bytes)
        yield f"host     {held} offloaded; transfers take {seconds}{updates}"
    yield f"memory   {_curve(timeline.at_bytes)}"


def _wrapped(parts: Sequence[str]) -> Iterator[str]:
    """Yields indented lines of parts, none of which is broken."""
    whole = ", ".join(part.replace(" ", "\0") for part in parts)
    for line in wrap(whole, TERMINAL - INDENT):
        yield " " * INDENT + line.replace("\0", " ")


def _curve(sizes: Sequence[int]) -> str:
    """Returns memory over time as bars, each the most of its part of the ops."""
    if not sizes:
        return ""
    count, most = min(COLUMNS, len(sizes)), max(sizes) or 1
    edges = [at * len(sizes) // count for at in range(count + 1)]
    parts = (max(sizes[low:high]) for low, high in pairwise(edges))
    return "".join(_BARS[-(-part * (len(_BARS) - 1) // most)] for part in parts)


def _layers(profile: Profile, top: int, depth: int | None) -> list[str]:
    layers = profile.layers(depth)
    shown = sorted(layers, key=lambda layer: layer.seconds, reverse=True)[:top]
    head = ("layer", "ops", "FLOP", "forward", "backward", "update", "links", "saved", "peak")
    rows = [head, *(_layer_row(layer) for layer in layers if layer in shown)]
    rows.append(_total_row(layers))
    used = [at for at in range(len(head)) if at in (0, 1) or any(r[at] != "-" for r in rows[1:])]
    lines = table([[row[at] for at in used] for row in rows])
    if len(layers) > len(shown):
        rest = f"... and {len(layers) - len(shown)} more that take less time"
        lines.insert(len(lines) - 1, rest)
    return lines


def _layer_row(layer: Layer) -> tuple[str, ...]:
    return (
        layer.name or "(no module)",
        str(layer.ops),
        _or_dash(layer.flops, human_flops).removesuffix("FLOP").strip(),
        _or_dash(layer.forward_seconds, human_seconds),
        _or_dash(layer.backward_seconds, human_seconds),
        _or_dash(layer.update_seconds, human_seconds),
        _or_dash(layer.communication_seconds, human_seconds),
        _or_dash(layer.saved_bytes, human_bytes),
        human_bytes(layer.peak_bytes),
    )


def _total_row(layers: Sequence[Layer]) -> tuple[str, ...]:
    return _layer_row(
        Layer(
            "total",
            sum(each.ops for each in layers),
            sum(each.flops for each in layers),
            sum(each.forward_seconds for each in layers),
            sum(each.backward_seconds for each in layers),
            sum(each.update_seconds for each in layers),
            sum(each.communication_seconds for each in layers),
            sum(each.saved_bytes for each in layers),
            max((each.peak_bytes for each in layers), default=0),
        )
    )


def _ops(profile: Profile, top: int) -> list[str]:
    nodes = sorted(profile.executed, key=lambda node: node.times * node.seconds, reverse=True)
    shown = nodes[:top]
    rows: list[tuple[str, ...]] = [("op, the slowest first", "time", "FLOP", "bytes", "saved", "")]
    rows += [_op_row(node) for node in shown if node.seconds]
    lines = table(rows, right=(1, 2, 3, 4))
    left = [node for node in nodes[top:] if node.seconds]
    if left:
        seconds = sum(node.times * node.seconds for node in left)
        lines.append(f"... and {len(left)} more, {human_seconds(seconds)} together")
    return lines


def _op_row(node: Node) -> tuple[str, ...]:
    return (
        tail(node.name, NAME),
        _times(node) + human_seconds(node.seconds),
        _or_dash(node.flops, human_flops).removesuffix("FLOP").strip(),
        human_bytes(node.moved_bytes or node.communicated_bytes),
        _or_dash(node.saved_bytes, human_bytes),
        f"{node.kind}{_place(node.loc)}",
    )


def _times(node: Node) -> str:
    return f"{node.times} x " if node.times > 1 else ""


def _or_dash(figure: float, human: object) -> str:
    assert callable(human)
    return str(human(figure)) if figure else "-"


def table(rows: Sequence[Sequence[str]], right: Sequence[int] | None = None) -> list[str]:
    """Returns rows as aligned lines; columns but the first are at the right, or those named."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    aligned = range(1, len(widths)) if right is None else right
    return [
        "  ".join(
            f"{cell:>{width}}" if at in aligned else f"{cell:<{width}}"
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _place(loc: Loc) -> str:
    """Returns where an op comes from, the file without its folder."""
    if loc.line:
        return f" [{Path(loc.file).name}:{loc.line}]"
    return f" [{tail(loc.name, PLACE)}]" if loc.name else ""


def tail(text: str, length: int) -> str:
    """Returns the end of a text that is longer than this."""
    return text if len(text) <= length else f"...{text[3 - length :]}"
