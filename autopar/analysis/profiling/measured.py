"""Predicted beside measured: what a trace says of the ops of a build, and what was predicted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autopar.analysis.profiling.figures import Node
from autopar.analysis.profiling.measure import profile_build
from autopar.analysis.profiling.show import NAME, TOP, Profile, table, tail
from autopar.base.errors import InvalidInputError
from autopar.base.units import human_seconds
from autopar.cost import Cluster
from autopar.ir.builds.files import read_build
from autopar.ir.collectives import is_collective
from autopar.ir.layers import grouped
from autopar.runtime.tracing.files import own_events, rank_of, read_trace
from autopar.runtime.tracing.recorders import STEP, Event

_NOTABLE = 0.05
"""The part of a step from which on what is predicted badly is named."""


@dataclass(frozen=True)
class Row:
    """Some ops in one step of one rank.

    Attributes:
        name: What they are.
        predicted_seconds: What they were predicted to take.
        measured_seconds: What they took, a mean over the traced steps and ranks.
    """

    name: str
    predicted_seconds: float
    measured_seconds: float

    @property
    def ratio(self) -> float | None:
        """How many times as long as predicted they took; None where nothing was predicted."""
        return self.measured_seconds / self.predicted_seconds if self.predicted_seconds else None


@dataclass(frozen=True)
class Comparison:
    """What ranks that run one program took, beside what was predicted.

    Attributes:
        title: Which ranks.
        cluster: Name of the hardware that was predicted for.
        steps: How many calls of them were traced, of all ranks together.
        step: A whole call; predicted are its ops in a schedule.
        ops: All its ops, one after another.
        kinds, layers, collectives: These by kind of op, by layer, and each collective.
    """

    title: str
    cluster: str
    steps: int
    step: Row
    ops: Row
    kinds: tuple[Row, ...]
    layers: tuple[Row, ...]
    collectives: tuple[Row, ...]

    def as_dict(self) -> dict[str, Any]:
        """Returns all figures, with the names of the attributes, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return render_comparison(self)


def compare_build(
    build: Path, trace: Path, cluster: Cluster | None = None, depth: int | None = None
) -> tuple[Comparison, ...]:
    """Returns what ranks of a build took beside what was predicted, per class of ranks.

    Args:
        build: The build folder.
        trace: What `trace=` wrote when it ran.
        cluster: What is predicted for; by default what it was compiled for.
        depth: See `Profile.layers`.

    Raises:
        InvalidInputError: If one of them can't be read, or no op of the trace is one of the build.
    """
    deployment = read_build(build).deployment
    profiles = profile_build(build, cluster)
    by_rank: dict[int, list[Event]] = defaultdict(list)
    for event in own_events(read_trace(trace)):
        by_rank[rank_of(event)].append(event)
    found = []
    for number, each in enumerate(profiles):
        ranks = [at for at, rank in enumerate(deployment.ranks) if rank.program == number]
        taken = _Taken([by_rank[rank] for rank in ranks if rank in by_rank])
        if taken.steps:
            found.append(_comparison(each, taken, depth))
    if not any(row.measured_seconds for each in found for row in each.kinds):
        raise InvalidInputError(
            f"{trace} has no op of {build}: give the trace of a run of this build, without"
            " torch.compile, which makes kernels of several ops"
        )
    return tuple(found)


class _Taken:
    """What some ranks took: the mean of a call of one of them."""

    def __init__(self, ranks: Sequence[Sequence[Event]]) -> None:
        events = [event for each in ranks for event in each]
        calls = [event["dur"] for event in events if event["cat"] == STEP]
        self.steps = len(calls)
        self.step = sum(calls) / 1e6 / max(self.steps, 1)
        self._ops: dict[str, float] = defaultdict(float)
        for event in events:
            if event["cat"] != STEP:
                self._ops[event["args"].get("value", "")] += event["dur"] / 1e6 / max(self.steps, 1)
        self.total = sum(self._ops.values())

    def of(self, node: Node) -> float:
        """Returns the seconds of an op in all its runs within a call."""
        return self._ops.get(node.name, 0.0)


def _comparison(profile: Profile, taken: _Taken, depth: int | None) -> Comparison:
    nodes = profile.executed
    layers = dict(zip(nodes, grouped([node.layer for node in nodes], depth), strict=True))
    sent = [node for node in nodes if is_collective(node.kind)]
    return Comparison(
        profile.title,
        profile.cluster,
        taken.steps,
        Row("a call", profile.overlapped_seconds, taken.step),
        Row("its ops", profile.serialized_seconds, taken.total),
        _rows(nodes, taken, lambda node: node.kind),
        _rows(nodes, taken, lambda node: layers[node] or "(no module)"),
        _rows(sent, taken, lambda node: node.name),
    )


def _rows(nodes: Sequence[Node], taken: _Taken, name: Callable[[Node], str]) -> tuple[Row, ...]:
    """Returns what ops took by their names, what takes longest first."""
    predicted: dict[str, float] = defaultdict(float)
    measured: dict[str, float] = defaultdict(float)
    for node in nodes:
        predicted[name(node)] += node.times * node.seconds
        measured[name(node)] += taken.of(node)
    rows = [Row(each, predicted[each], measured[each]) for each in predicted]
    return tuple(sorted(rows, key=lambda row: -max(row.predicted_seconds, row.measured_seconds)))


def render_comparison(found: Comparison, top: int = TOP) -> str:
    """Returns a comparison as text.

    Args:
        found: The comparison.
        top: How many kinds, layers and collectives to list.
    """
    blocks = [_lines("", (found.step, found.ops), top)]
    named: Mapping[str, tuple[Row, ...]] = {
        "op": found.kinds,
        "layer": found.layers,
        "collective": found.collectives,
    }
    blocks += [_lines(name, rows, top) for name, rows in named.items() if rows]
    calls = "1 call" if found.steps == 1 else f"{found.steps} calls"
    head = f"{found.title}, on {found.cluster}: predicted, and measured in {calls}"
    return "\n\n".join([head, *("\n".join(lines) for lines in blocks), *_advice(found)])


def _lines(name: str, rows: Sequence[Row], top: int) -> list[str]:
    cells = [(name, "predicted", "measured", "ratio")]
    for row in rows[:top]:
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        predicted, measured = row.predicted_seconds, row.measured_seconds
        cells.append(
            (tail(row.name, NAME), human_seconds(predicted), human_seconds(measured), ratio)
        )
    left = [f"... and {len(rows) - top} more that take less time"] if len(rows) > top else []
    return [*table(cells), *left]


def _advice(found: Comparison) -> Iterator[str]:
    """Yields what is predicted worst, where that is a notable part of a step."""
    wrong = {row.name: row.predicted_seconds - row.measured_seconds for row in found.kinds}
    notable = [each for each in wrong if abs(wrong[each]) > _NOTABLE * found.ops.measured_seconds]
    worst = sorted(notable, key=lambda each: -abs(wrong[each]))[:3]
    if worst:
        yield (
            f"furthest off: {', '.join(worst)}. autopar calibrate -o cluster.yaml measures this"
            " machine, for --cluster cluster.yaml"
        )
