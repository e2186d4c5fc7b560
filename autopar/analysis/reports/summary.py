"""What a user sees of a build: its summary, a rank's program, differences found by verify."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autopar.base.errors import Loc
from autopar.base.units import counted, human_bytes, human_flops
from autopar.completion.kept_whole import KEPT_WHOLE
from autopar.completion.presets.strategy import AUTO
from autopar.completion.undivided import UNDIVIDED
from autopar.cost.summary import (
    BUFFER_ROLES,
    STATE_ROLES,
    WEIGHT_ROLES,
    CollectiveCount,
    summarize_rank,
    weight_bytes,
)
from autopar.ir.assumptions import Assumption, assumption_ports
from autopar.ir.builds.files import read_build
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.deployment import Deployment
from autopar.ir.devices import CPU
from autopar.ir.dtypes import DTYPE_BYTES
from autopar.ir.expr.expression import planned, prod
from autopar.ir.expr.ranges import range_text
from autopar.ir.ops.loops import microbatches
from autopar.ir.program import Port, Program
from autopar.ir.used_sizes import used_sizes
from autopar.pipeline.device_memory import MEMORY
from autopar.pipeline.stages import PIPELINE

if TYPE_CHECKING:
    from torch import Tensor

    from autopar.runtime.verification.verification import Difference, Verification

LAYOUTS = "origins"
"""The category of the entry that counts where layouts come from."""

ROWS = "all rows"
"""The category of entries about lines whose rows are selected by data."""

PLAN = "search"
"""The category of entries about the plan that search found."""

SEARCHED = {AUTO: "plan", "mesh shape": "mesh", "schedule": "order", "stages": "stages"}
"""What entries about search are about, as few letters."""

TITLES = {
    "replicated": "replicated for lack of a rule",
    "reshard": "resharded, because two ops need different layouts",
    KEPT_WHOLE: "kept whole, as a size that is open isn't split there",
}
"""Categories whose name alone doesn't say enough."""

SUMMED_UP = ("recompute", "offload", MEMORY)
"""Categories whose entries say themselves how many things they are about."""

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|(?<=_)\d+$")
"""What tells the names of layers, and those of equal ops, apart."""

SHOWN = 10
"""How many entries of a category are spelled out."""

SHOWN_NAMES = 3
"""How many buffers are named."""


@dataclass(frozen=True)
class Summary:
    """A build at a glance. Sizes in bytes.

    Attributes:
        model: The model's name.
        world_size: Number of ranks.
        axes: Size of each mesh axis.
        serial_ops: Ops of the serial program.
        looped_ops: How many of these run once for each microbatch.
        microbatches: How often those run.
        rank_ops: Ops of the largest rank program, collectives included.
        collectives: Totals by kind and group, of the first program.
        weight_bytes: All weights of the model.
        weight_bytes_max: Weights on the rank that holds most.
        weight_bytes_min: Weights on the rank that holds least.
        state_bytes: All state of the optimizer; 0 for a program that doesn't train.
        state_bytes_max: The same on the rank that holds most.
        kept: Labels of the buffers that calls write, and that stay so for the next call.
        kept_bytes: All of them.
        kept_bytes_max: The same on the rank that holds most.
        flops_serial: Of the serial program's products (see `autopar.cost.flops`).
        flops_max: The same of the rank that computes most.
        sizes: What the open sizes may be, and for which the figures are.
        assumes: What the code asks of values, and what it must be in every run.
        report: Fallbacks, ignored features and other remarks of the compilation.
        device: The type of the ranks' devices; "" if nobody says.
    """

    model: str
    world_size: int
    axes: Mapping[str, int]
    serial_ops: int
    looped_ops: int
    microbatches: int
    rank_ops: int
    collectives: tuple[CollectiveCount, ...]
    weight_bytes: int
    weight_bytes_max: int
    weight_bytes_min: int
    state_bytes: int
    state_bytes_max: int
    kept: tuple[str, ...]
    kept_bytes: int
    kept_bytes_max: int
    flops_serial: int
    flops_max: int
    sizes: tuple[str, ...]
    assumes: tuple[str, ...]
    report: tuple[ReportEntry, ...]
    device: str = ""


def summarize(path: Path) -> Summary:
    """Returns the summary of a build folder.

    Raises:
        InvalidInputError: If `path` is not a build.
    """
    build = read_build(path)
    known = build.manifest
    return summarize_programs(build.serial, build.deployment, known.report, known.device)


def summarize_programs(
    serial: Program, deployment: Deployment, report: Sequence[ReportEntry], device: str = ""
) -> Summary:
    """Returns the summary of a compiled program.

    Args:
        serial: The completed serial program.
        deployment: The programs of the ranks.
        report: The remarks of the compilation.
        device: The type of the ranks' devices.
    """
    axes = _axis_sizes(deployment)
    ends = _ends(deployment)
    firsts = [summarize_rank(deployment.programs[at], first) for at, first, _ in ends]
    most = max(firsts, key=lambda each: sum(total.bytes for total in each.collectives))
    ports = deployment.programs[0].signature.inputs
    kept = _kept(deployment.programs[0])
    return Summary(
        model=serial.name,
        world_size=deployment.world_size,
        axes=axes,
        serial_ops=len(serial.main.ops),
        looped_ops=sum(microbatches(op) > 1 for op in serial.main.ops),
        microbatches=max((microbatches(op) for op in serial.main.ops), default=1),
        rank_ops=max(len(each.main.ops) for each in deployment.programs),
        collectives=most.collectives,
        weight_bytes=_whole_bytes(ports, WEIGHT_ROLES),
        weight_bytes_max=max(each.weight_bytes for each in firsts),
        weight_bytes_min=min(weight_bytes(ports, last) for _, _, last in ends),
        state_bytes=_whole_bytes(ports, STATE_ROLES),
        state_bytes_max=max(weight_bytes(ports, first, STATE_ROLES) for _, first, _ in ends),
        kept=tuple(dict.fromkeys(port.label for port in kept)),
        kept_bytes=_whole_bytes(kept, BUFFER_ROLES),
        kept_bytes_max=max(
            weight_bytes(_kept(deployment.programs[at]), first, BUFFER_ROLES)
            for at, first, _ in ends
        ),
        flops_serial=summarize_rank(serial, {}).flops,
        flops_max=max(each.flops for each in firsts),
        sizes=tuple(map(range_text, used_sizes(serial))),
        assumes=_assumed(serial),
        report=tuple(report),
        device=device,
    )


def _assumed(program: Program) -> tuple[str, ...]:
    ports = assumption_ports(program, program.main)
    return tuple(dict.fromkeys(str(Assumption.from_port(port)) for port in ports))


def _kept(program: Program) -> list[Port]:
    """Returns the buffers that get new content."""
    written = {source for _, source in program.main.aliases}
    inputs = program.signature.inputs
    return [port for port in inputs if port.name in written and port.role in BUFFER_ROLES]


def _whole_bytes(ports: Sequence[Port], roles: Sequence[str]) -> int:
    return sum(
        planned(prod(port.shape)) * DTYPE_BYTES[port.dtype] for port in ports if port.role in roles
    )


def _ends(deployment: Deployment) -> list[tuple[int, dict[str, int], dict[str, int]]]:
    """Returns each program with the coordinates of its first and its last rank.

    No rank of a program stores more than the first one, or less than the last.
    """
    coords: dict[int, list[tuple[int, ...]]] = {}
    for rank in deployment.ranks:
        coords.setdefault(rank.program, []).append(rank.coords)
    axes = deployment.axes
    return [
        (at, dict(zip(axes, min(known), strict=True)), dict(zip(axes, max(known), strict=True)))
        for at, known in sorted(coords.items())
    ]


def _axis_sizes(deployment: Deployment) -> dict[str, int]:
    columns = zip(*(rank.coords for rank in deployment.ranks), strict=True)
    return {axis: max(column) + 1 for axis, column in zip(deployment.axes, columns, strict=True)}


def to_json(summary: Summary) -> str:
    """Returns the summary as JSON, with the field names of `Summary`."""
    return json.dumps(asdict(summary), indent=2, default=str)


def render_summary(summary: Summary) -> str:
    """Returns the summary as text for a terminal."""
    mesh = " x ".join(f"{axis}={size}" for axis, size in summary.axes.items())
    blocks = [
        [
            f"{summary.model}: {counted(summary.world_size, 'rank')} ({mesh})",
            *_render_totals(summary),
        ],
        _render_collectives(summary.collectives),
        _render_report(summary.report),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks)


def _render_totals(summary: Summary) -> Iterator[str]:
    if summary.device not in ("", CPU):
        yield f"device   {summary.device}"
    for size in summary.sizes:
        yield f"open     {size}"
    looped, count = "", summary.microbatches
    if summary.looped_ops:
        looped = f", of which {summary.looped_ops} run for each of {count} microbatches"
    own = f"{summary.serial_ops} in the serial program"
    yield f"ops      {summary.rank_ops} per rank, {own}{looped}"
    least = ""
    if summary.weight_bytes_min != summary.weight_bytes_max:
        least = f", {human_bytes(summary.weight_bytes_min)} on the rank with least"
    yield (
        f"weights  {human_bytes(summary.weight_bytes_max)} per rank"
        f" of {human_bytes(summary.weight_bytes)}"
        f" ({_percent(summary.weight_bytes_max, summary.weight_bytes)}){least}"
    )
    if summary.state_bytes:
        yield (
            f"state    {human_bytes(summary.state_bytes_max)} per rank"
            f" of {human_bytes(summary.state_bytes)} of the optimizer"
            f" ({_percent(summary.state_bytes_max, summary.state_bytes)})"
        )
    if summary.kept:
        some = ", ".join(summary.kept[:SHOWN_NAMES])
        more = len(summary.kept) - SHOWN_NAMES
        yield (
            f"buffers  {human_bytes(summary.kept_bytes_max)} per rank"
            f" of {human_bytes(summary.kept_bytes)} kept from call to call"
            f" ({_percent(summary.kept_bytes_max, summary.kept_bytes)}):"
            f" {some}{f' and {more} more' if more > 0 else ''}"
        )
    if summary.flops_serial:
        yield (
            f"compute  {human_flops(summary.flops_max)} per rank"
            f" of {human_flops(summary.flops_serial)}"
            f" ({_percent(summary.flops_max, summary.flops_serial)})"
        )
    yield from _render_conditions(summary)
    yield from _render_plan(summary.report)


def _render_conditions(summary: Summary) -> Iterator[str]:
    """Yields what data must be, and which lines compute rows that data may select."""
    for assumed in summary.assumes[:SHOWN]:
        yield f"assumes  {assumed}"
    if len(summary.assumes) > SHOWN:
        yield f"assumes  {counted(len(summary.assumes) - SHOWN, 'value')} more"
    rows = [entry for entry in summary.report if entry.category == ROWS]
    for entry in rows[:SHOWN]:
        yield f"computes all rows that data may select: {entry.subject}, {entry.detail}"
    if len(rows) > SHOWN:
        yield f"computes all rows that data may select: {counted(len(rows) - SHOWN, 'line')} more"


def _render_plan(report: Sequence[ReportEntry]) -> Iterator[str]:
    """Yields what is said of the plan as a whole: layouts, search, stages, what isn't divided."""
    title_of_pipeline = PIPELINE
    for entry in report:
        if entry.category == UNDIVIDED:
            yield _render_entry(entry)
        if entry.category == LAYOUTS:
            yield f"layouts  {entry.subject}: {entry.detail}"
        if entry.category == PLAN:
            title = SEARCHED.get(entry.subject, entry.subject)
            for part in entry.detail.split("; "):
                yield f"{title:<8} {part}"
                title = ""
        if entry.category == PIPELINE:
            yield f"{title_of_pipeline:<8} {entry.subject}: {entry.detail}"
            title_of_pipeline = ""


def _render_collectives(totals: Sequence[CollectiveCount]) -> list[str]:
    if not totals:
        return ["no communication"]
    rows = [("collective", "group", "count", "bytes per rank")]
    rows += [(t.kind, t.group, str(t.count), human_bytes(t.bytes)) for t in totals]
    if len(totals) > 1:
        count, size = sum(t.count for t in totals), sum(t.bytes for t in totals)
        rows.append(("total", "", str(count), human_bytes(size)))
    kind, group, count_width, size_width = (
        max(len(row[column]) for row in rows) for column in range(4)
    )
    return [
        f"{row[0]:<{kind}}  {row[1]:<{group}}  {row[2]:>{count_width}}  {row[3]:>{size_width}}"
        for row in rows
    ]


def _render_report(entries: Sequence[ReportEntry]) -> list[str]:
    by_category: dict[str, list[ReportEntry]] = {"replicated": []}
    for entry in entries:
        if entry.category not in (LAYOUTS, PLAN, ROWS, UNDIVIDED, PIPELINE):
            by_category.setdefault(entry.category, []).append(entry)
    lines: list[str] = []
    for category, group in by_category.items():
        if category in SUMMED_UP:
            lines.extend(f"{category}: {each.subject}, {each.detail}" for each in group)
            continue
        count = f" ({len(group)}):" if group else ": nothing"
        lines.append(TITLES.get(category, category) + count)
        alike = _folded(group)
        lines.extend(f"  {_render_entry(entry)}" for entry in alike[:SHOWN])
        if len(alike) > SHOWN:
            lines.append(
                f"  ... and {len(alike) - SHOWN} more (autopar inspect --format json lists all)"
            )
    return lines


def _folded(entries: Sequence[ReportEntry]) -> list[ReportEntry]:
    """Returns entries, one for those that differ in the numbers of layers only, as `layers.*`.

    Its bytes are those of all of them.
    """
    groups: dict[tuple[str, str, Loc], list[ReportEntry]] = {}
    for entry in entries:
        key = _NUMBER.sub("*", entry.subject), entry.detail, entry.loc
        groups.setdefault(key, []).append(entry)
    return [_joined(subject, group) for (subject, _, _), group in groups.items()]


def _joined(subject: str, group: Sequence[ReportEntry]) -> ReportEntry:
    if len(group) == 1:
        return group[0]
    total = sum(entry.bytes for entry in group)
    return replace(group[0], subject=f"{subject} (x{len(group)})", bytes=total)


def _render_entry(entry: ReportEntry) -> str:
    size = f" ({human_bytes(entry.bytes)})" if entry.bytes else ""
    place = f" [{entry.loc}]" if str(entry.loc) != "?" else ""
    return f"{entry.subject}: {entry.detail}{size}{place}"


def _percent(part: float, total: float) -> str:
    return f"{100 * part / total:.1f}%" if total else "0%"


def render_outputs(outputs: Mapping[str, Tensor]) -> str:
    """Returns a line per output: its name, dtype and shape, and the value of a single number."""
    lines = []
    for label, tensor in outputs.items():
        number = f" {tensor.item():g}" if tensor.ndim == 0 and not tensor.is_complex() else ""
        dtype = str(tensor.dtype).removeprefix("torch.")
        lines.append(f"{label}: {dtype}{list(tensor.shape)}{number}")
    return "\n".join(lines)


def render_verification(result: Verification, ranks: int) -> str:
    """Returns what a comparison with the serial program found.

    Args:
        result: The comparison.
        ranks: How many ranks were compared.
    """
    wrong = sum(not value.ok for value in result.values)
    compared = f"{counted(len(result.values), 'value')} on {counted(ranks, 'rank')}"
    lines = [f"{compared} compared with the serial program"]
    lines.append(render_outputs_compared(_summed_up(result), "the serial program"))
    if result.uncompared:
        lines.append(f"not compared: {', '.join(result.uncompared)}")
    if result.first is not None and not result.ok:
        lines.append(f"first difference: {result.first}")
        lines.append(f"values that differ by more than {result.tolerance:g}: {wrong}")
    return "\n".join(lines)


def _summed_up(result: Verification) -> dict[str, Difference]:
    """Returns the rows of a comparison: gradients and state by kind, and what of them is off."""
    kinds = {**dict.fromkeys(result.gradients, "gradients"), **result.state}
    plain = {label: each for label, each in result.outputs.items() if label not in kinds}
    judged = {**plain, **result.outputs, **result.gradients}
    groups: dict[str, list[Difference]] = {}
    for label in (*plain, *result.gradients, *result.state):
        groups.setdefault(kinds.get(label, label), []).append(judged[label])
    rows: dict[str, Difference] = {}
    for title, members in groups.items():
        worst = max(members, key=lambda each: each.relative)
        title = title if title in plain else f"{title} ({len(members)})"
        rows[title] = replace(worst, ok=all(each.ok for each in members))
    rows.update({label: each for label, each in judged.items() if label in kinds and not each.ok})
    return rows


def render_outputs_compared(
    differences: Mapping[str, Difference], against: str, random: Sequence[str] = ()
) -> str:
    """Returns a line per output: its error, and whether that is within the tolerance.

    Args:
        differences: By output.
        against: Who else computed the outputs.
        random: Outputs that weren't compared because their numbers are drawn at random.
    """
    width = max((len(label) for label in (*differences, *random)), default=0)
    lines = [f"outputs against {against}, relative to the largest element:"]
    for label, difference in differences.items():
        verdict = "ok" if difference.ok else "DIFFERENT"
        lines.append(f"  {label:<{width}}  {difference.relative:.1e}  {verdict}")
    lines.extend(f"  {label:<{width}}  not compared: drawn at random" for label in random)
    return "\n".join(lines)
