"""`autopar diff`: what two builds of one model have in common, and what not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autopar.analysis.explainable import Explainable, decided_of
from autopar.base.arguments import NAMES, Kind, expect
from autopar.base.units import counted, human_bytes, human_seconds
from autopar.cost import Cluster
from autopar.cost.summary import CollectiveCount, summarize_rank
from autopar.pipeline.arguments import CLUSTER
from autopar.pipeline.decided import Decided
from autopar.planning.price import Price

SHOWN = 20
"""How many layouts that differ are listed."""


_TWO = Kind(lambda value: NAMES.fits(value) and len(value) == 2, "two names")  # type: ignore[arg-type]


@dataclass(frozen=True)
class LayoutChange:
    """A value that lies otherwise in the second program.

    Attributes:
        name: The value.
        role: Its role.
        first, second: The layouts; empty where a program lacks the value.
    """

    name: str
    role: str
    first: str
    second: str


@dataclass(frozen=True)
class Comparison:
    """Two compiled programs side by side.

    Attributes:
        names: What they are called.
        meshes: Their meshes.
        cluster: The name of the cluster that both are priced on.
        layouts: Inputs that lie otherwise, and then results, in the order of the first program.
        values: How many values the programs have in common.
        prices: What each takes.
        limits_bytes: What a device may hold at once; None for any number.
        collectives: What a rank of each communicates.
        models: What the models are called.
        clusters: What they were compiled for.
    """

    names: tuple[str, str]
    meshes: tuple[str, str]
    cluster: str
    layouts: tuple[LayoutChange, ...]
    values: int
    prices: tuple[Price, Price]
    limits_bytes: tuple[int | None, int | None]
    collectives: tuple[tuple[CollectiveCount, ...], tuple[CollectiveCount, ...]]
    models: tuple[str, str] = ("", "")
    clusters: tuple[str, str] = ("", "")

    def __str__(self) -> str:
        """Returns the comparison as text for a terminal."""
        return "\n".join(_lines(self))


def diff(
    first: Explainable,
    second: Explainable,
    *,
    cluster: str | Cluster | None = None,
    names: tuple[str, str] = ("first", "second"),
) -> Comparison:
    """Compares two compiled programs.

    Args:
        first, second: Build folders, or what `compile` or `compile_onnx` returned.
        cluster: The hardware to predict both for; by default what the first was compiled for.
        names: What to call them.

    Raises:
        InvalidInputError: If one of them isn't a build.
    """
    expect(CLUSTER.or_none, cluster=cluster)
    expect(_TWO, names=names)
    one, two = decided_of(first), decided_of(second)
    known = cluster if cluster is not None else one.options.cluster
    hardware = Cluster.load(known) if isinstance(known, str) else known
    clusters = one.options.cluster.name, two.options.cluster.name
    one, two = one.on(hardware), two.on(hardware)
    common = one.serial.main.values.keys() & two.serial.main.values.keys()
    return Comparison(
        names,
        (str(one.mesh), str(two.mesh)),
        hardware.name,
        tuple(_changes(one, two)),
        len(common),
        (one.price(), two.price()),
        (one.options.memory_bytes, two.options.memory_bytes),
        (_collectives(one), _collectives(two)),
        (one.serial.name, two.serial.name),
        clusters,
    )


def _changes(one: Decided, two: Decided) -> Iterator[LayoutChange]:
    """Yields values whose layouts read differently, inputs before results."""
    first, second = one.completed.main, two.completed.main
    names = dict.fromkeys((*first.inputs, *first.values, *second.values))
    for name in names:
        values = first.values.get(name), second.values.get(name)
        shown = tuple(str(value.dist) if value is not None else "" for value in values)
        if shown[0] != shown[1]:
            role = next(value.role for value in values if value is not None)
            yield LayoutChange(name, role, shown[0], shown[1])


def _collectives(decided: Decided) -> tuple[CollectiveCount, ...]:
    origin = dict.fromkeys(decided.mesh.dim_names, 0)
    return summarize_rank(decided.ranks, origin).collectives


def _lines(found: Comparison) -> Iterator[str]:
    if found.models[0] != found.models[1]:
        yield f"these are different models: {found.models[0]} and {found.models[1]}"
    meshes = (
        found.meshes[0] if found.meshes[0] == found.meshes[1] else " against ".join(found.meshes)
    )
    if found.clusters[0] != found.clusters[1]:
        yield f"these are compiled for different clusters: {' and '.join(found.clusters)}"
    yield f"{found.names[0]} against {found.names[1]}: {meshes}, predicted for {found.cluster}"
    yield ""
    totals = [*_totals(*found.prices), *_limits(*found.limits_bytes)]
    yield from _aligned([("", *found.names), *totals])
    rows = list(_collective_rows(*found.collectives))
    if rows:
        yield ""
        yield from _aligned([("collective", *found.names), *rows])
    yield ""
    if not found.layouts:
        yield f"all {found.values} values lie alike"
        return
    both = sum(bool(each.first and each.second) for each in found.layouts)
    alone = len(found.layouts) - both
    if both:
        yield f"{both} of {counted(found.values, 'value')} in both lie otherwise"
    elif found.values:
        yield f"all {found.values} values in both lie alike"
    if alone:
        yield f"{counted(alone, 'value')} {'is' if alone == 1 else 'are'} in only one of them"
    shown = [(f"%{each.name}", each.first or "-", each.second or "-") for each in _first(found)]
    yield from _aligned(shown)
    if len(found.layouts) > SHOWN:
        yield f"... and {len(found.layouts) - SHOWN} more"


def _first(found: Comparison) -> Sequence[LayoutChange]:
    """Returns the changes to show: weights and inputs say most."""
    roles = ("parameter", "input", "buffer", "state")
    given = [each for each in found.layouts if each.role in roles]
    rest = [each for each in found.layouts if each not in given]
    return [*given, *rest][:SHOWN]


def _totals(first: Price, second: Price) -> Iterator[tuple[str, str, str]]:
    yield "seconds, one after another", human_seconds(first.seconds), human_seconds(second.seconds)
    yield (
        "seconds, sums beside other work",
        human_seconds(first.overlapped_seconds),
        human_seconds(second.overlapped_seconds),
    )
    yield (
        "seconds of communication",
        human_seconds(first.communication_seconds),
        human_seconds(second.communication_seconds),
    )
    yield (
        "communicated",
        human_bytes(first.communication_bytes),
        human_bytes(second.communication_bytes),
    )
    yield "peak memory", human_bytes(first.peak_bytes), human_bytes(second.peak_bytes)
    if first.host_bytes or second.host_bytes:
        seconds = human_seconds(first.transfer_seconds), human_seconds(second.transfer_seconds)
        yield "seconds of transfers to the host", *seconds
        if first.host_seconds or second.host_seconds:
            seconds = human_seconds(first.host_seconds), human_seconds(second.host_seconds)
            yield "seconds of updates by the host", *seconds
        yield "host's memory", human_bytes(first.host_bytes), human_bytes(second.host_bytes)


def _limits(first: int | None, second: int | None) -> Iterator[tuple[str, str, str]]:
    shown = ["none" if limit is None else human_bytes(limit) for limit in (first, second)]
    if shown != ["none", "none"]:
        yield "memory limit", shown[0], shown[1]


def _collective_rows(
    first: Sequence[CollectiveCount], second: Sequence[CollectiveCount]
) -> Iterator[tuple[str, str, str]]:
    sides: tuple[Mapping[tuple[str, str], CollectiveCount], ...] = tuple(
        {(each.kind, each.group): each for each in side} for side in (first, second)
    )
    for key in dict.fromkeys((*sides[0], *sides[1])):
        kind, group = key
        shown = [_collective(side.get(key)) for side in sides]
        yield f"{kind} over {group}", shown[0], shown[1]


def _collective(found: CollectiveCount | None) -> str:
    return f"{found.count} x, {human_bytes(found.bytes)}" if found else "-"


def _aligned(rows: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells)}".rstrip()
