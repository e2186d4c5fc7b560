"""What a user sees of the records: how many calls went how, and what stood in the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.op_database.exclusions import EXCLUDED
from tests.op_database.judge import OUTCOMES
from tests.op_database.suite import Record


def render(records: Sequence[Record], names: Sequence[str]) -> str:
    """Returns the records of the OpInfos `names` as text."""
    parts = [_title(records, names), _table(records), _missing(records), _failures(records)]
    return "\n\n".join(part for part in parts if part)


def failed(records: Sequence[Record]) -> list[Record]:
    """Returns the records of what is wrong or raised an error."""
    return [it for it in records if it.verdict.outcome in ("wrong", "error")]


def _title(records: Sequence[Record], names: Sequence[str]) -> str:
    judged = {it.name for it in records}
    samples = {(it.name, it.sample, it.direction) for it in records}
    lines = [
        f"{len(judged)} of {len(names)} OpInfos, {len(samples)} programs, {len(records)} runs,"
        f" {len(failed(records))} failed"
    ]
    for reason, excluded in EXCLUDED.items():
        if left_out := sorted(set(names) & set(excluded)):
            lines.append(f"left out, because {reason}: {', '.join(left_out)}")
    return "\n".join(lines)


def _table(records: Sequence[Record]) -> str:
    counts = Counter((it.direction, it.mesh, it.verdict.outcome) for it in records)
    lines = [_row("", OUTCOMES)]
    for direction, mesh in sorted({(direction, mesh) for direction, mesh, _ in counts}):
        cells = [str(counts[direction, mesh, outcome]) for outcome in OUTCOMES]
        lines.append(_row(f"{direction} {'x'.join(map(str, mesh)) or '-'}", cells))
    totals = Counter(it.verdict.outcome for it in records)
    lines.append(_row("all", [str(totals[outcome]) for outcome in OUTCOMES]))
    return "\n".join(lines)


def _row(label: str, cells: Sequence[str]) -> str:
    return f"{label:<14s}" + "".join(f"{cell:>10s}" for cell in cells)


def _missing(records: Sequence[Record]) -> str:
    counts = Counter(kind for it in records for kind in it.verdict.missing)
    lines = [f"{count:6d}  {kind}" for kind, count in counts.most_common()]
    return "\n".join(["ops that fell back:", *lines]) if lines else ""


def _failures(records: Sequence[Record]) -> str:
    return "\n".join(map(str, failed(records)))
