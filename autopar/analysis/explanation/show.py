"""Explanations: what they say, and as text for a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autopar.analysis.explanation.alternatives import Alternative
from autopar.analysis.explanation.communication import Expense
from autopar.analysis.explanation.why import Reason, choice_text
from autopar.base.errors import Loc
from autopar.base.units import human_bytes, human_seconds
from autopar.cost import Reshard
from autopar.ir.expr.expression import planned, shape_str
from autopar.ir.layout import Layout
from autopar.ir.program import Op, Value
from autopar.planning.price import Price

SHOWN = 10
"""How many collectives are listed."""

LINKS = 4
"""How many links are shown at each end of a long chain."""

READERS = 6
"""How many readers of a value are listed."""


@dataclass(frozen=True)
class Reading:
    """An op that reads a value.

    Attributes:
        op: The op.
        layout: The layout that it needs.
        reshard: How the value gets there; without moves if it lies so.
    """

    op: Op
    layout: Layout
    reshard: Reshard


@dataclass(frozen=True)
class Explanation:
    """What is known of a value.

    Attributes:
        value: The value, with its layout.
        op: The op that produces it; None for an input.
        rule: How the factors of that op index its operands and results; empty without one.
        readings: The ops that read it.
        reasons: Why it is split as it is, by mesh axis.
        alternatives: Of an input other layouts, of a result other choices of the op, the cheapest
            first; empty if they weren't asked for.
        within: Where this is a value within a body: the value that the body leads to.
        cluster: The name of the cluster that prices are for.
        is_searched: Whether alternatives are searched from the present plan on, so that a search
            from scratch may find faster ones.
    """

    value: Value
    op: Op | None
    rule: str
    readings: tuple[Reading, ...]
    reasons: dict[str, tuple[Reason, ...]]
    alternatives: tuple[Alternative, ...]
    within: str
    cluster: str
    is_searched: bool = False

    def __str__(self) -> str:
        """Returns the explanation as text for a terminal."""
        return render_explanation(self)


@dataclass(frozen=True)
class Overview:
    """All communication of a program.

    Attributes:
        name: The model's name.
        price: Of one execution.
        expenses: Its collectives by the user's line, the most expensive first.
        cluster: The name of the cluster that prices are for.
    """

    name: str
    price: Price
    expenses: tuple[Expense, ...]
    cluster: str

    def __str__(self) -> str:
        """Returns the overview as text for a terminal."""
        return render_overview(self)


def render_overview(overview: Overview) -> str:
    """Returns the most expensive collectives as text."""
    total = overview.price
    lines = [
        f"{overview.name} on {overview.cluster}: {human_seconds(total.seconds)} one after another,"
        f" {human_seconds(total.communication_seconds)} of it communication"
        f" ({_part(total.communication_seconds, total.seconds)});"
        f" {human_seconds(total.overlapped_seconds)} where sums run beside other work"
    ]
    if total.transfer_seconds:
        lines.append(
            f"{human_seconds(total.transfer_seconds)} of transfers to the host's memory and back,"
            f" {human_seconds(total.host_seconds)} of updates by the host"
        )
    if not overview.expenses:
        return "\n".join([*lines, "", "no communication"])
    count = sum(expense.count for expense in overview.expenses)
    lines += ["", f"its collectives by line, the most expensive first ({count} in all):"]
    for expense in overview.expenses[:SHOWN]:
        lines += list(_expense(expense, total))
    if len(overview.expenses) > SHOWN:
        rest = overview.expenses[SHOWN:]
        seconds = sum(each.seconds for each in rest)
        lines.append(f"... and {len(rest)} more lines, {human_seconds(seconds)} together")
    return "\n".join(lines)


def _expense(expense: Expense, total: Price) -> Iterator[str]:
    part = _part(expense.seconds, total.seconds)
    times = f"{expense.count} x " if expense.count > 1 else ""
    how = f" ({expense.algorithm})" if expense.algorithm else ""
    yield (
        f"  {human_seconds(expense.seconds):>8} {part:>6}  {times}{expense.kind} over"
        f" {','.join(expense.axes)}{how}, {human_bytes(expense.bytes)}, {expense.phase}"
    )
    yield f"{'':17}  {_place(expense.loc)}"
    more = f", and {len(expense.reasons) - 1} more" if len(expense.reasons) > 1 else ""
    if expense.reasons and expense.reasons[0]:
        yield f"{'':17}  {expense.reasons[0]}{more}"


def render_explanation(explanation: Explanation) -> str:
    """Returns what is known of a value as text."""
    blocks = [
        list(_head(explanation)),
        list(_readers(explanation.readings)),
        *(list(_why(axis, chain)) for axis, chain in explanation.reasons.items()),
        list(_alternatives(explanation)),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _head(explanation: Explanation) -> Iterator[str]:
    value, op = explanation.value, explanation.op
    label = value.role if op is None else f"made by {op.kind}"
    loc = value.loc if op is None else op.loc
    yield f"%{value.name}: {value.dtype}{shape_str(value.shape)}, {label}{_at(loc)}"
    if value.dist is not None:
        yield f"lies as {value.dist}, {_sizes(value, value.dist)}"
    if op is not None:
        yield f"computed {choice_text(op)}{_rule(explanation.rule)}"
    if explanation.within:
        yield f"within the body of the op that makes %{explanation.within}; explain that"


def _sizes(value: Value, layout: Layout) -> str:
    held, whole = value.itemsize, value.itemsize
    for local, size in zip(layout.local_shape, value.global_shape, strict=True):
        held *= planned(local)
        whole *= planned(size)
    return f"{human_bytes(held)} per rank of {human_bytes(whole)}"


def _readers(readings: Sequence[Reading]) -> Iterator[str]:
    if readings:
        yield "read by"
    for reading in readings[:READERS]:
        moves = [move for move in reading.reshard.moves if move.bytes]
        kinds = ", ".join(f"{move.kind} over {','.join(move.axes)}" for move in moves)
        how = f" by {kinds}, {human_seconds(reading.reshard.seconds)}" if moves else ""
        needed = "as it lies" if not reading.reshard.moves else f"as {reading.layout}{how}"
        yield f"  {reading.op.kind}{_at(reading.op.loc)}, {needed}"
    if len(readings) > READERS:
        yield f"  ... and {len(readings) - READERS} more"


def _why(axis: str, chain: Sequence[Reason]) -> Iterator[str]:
    yield f"why it is split over {axis}" if axis else "why it isn't split"
    shown: list[Reason | None] = [*chain]
    if len(chain) > 2 * LINKS + 1:
        shown = [*chain[:LINKS], None, *chain[-LINKS:]]
    for reason in shown:
        if reason is None:
            yield f"  ... {len(chain) - 2 * LINKS} steps like these ..."
        elif reason is chain[0]:
            yield f"  {reason.subject} lies as {reason.layout}"
        elif reason.subject.startswith("%"):
            yield f"  since {reason.subject} lies as {reason.layout}"
        else:
            yield f"  since {reason.subject}{_at(reason.loc)} is computed {reason.layout}"
    end = chain[-1]
    detail = f": {_local(end.detail)}" if end.detail else ""
    yield f"  which is {end.kind}{detail}"


def _alternatives(explanation: Explanation) -> Iterator[str]:
    rows = explanation.alternatives
    if not rows:
        return
    what = "lay" if explanation.op is None else "were computed"
    rest = "all else were completed anew"
    if explanation.is_searched:
        rest = "the plan were changed to suit (a search from scratch may find a faster one)"
    yield f"one execution on {explanation.cluster}, if it {what} otherwise and {rest}"
    now = next(row.price for row in rows if row.present)
    width = max(len(row.text) for row in rows)
    yield f"  {'':<{width}}  {'seconds':>9}  {'communicated':>12}  {'peak memory':>11}"
    for row in rows:
        yield f"  {row.text:<{width}}  {_row(row, now)}"


def _row(row: Alternative, now: Price | None) -> str:
    if row.price is None or now is None:
        return f"can't be completed: {row.problem}"
    figures = f"{human_seconds(row.price.seconds):>9}"
    figures += f"  {human_bytes(row.price.communication_bytes):>12}"
    figures += f"  {human_bytes(row.price.peak_bytes):>11}"
    if row.present:
        return f"{figures}  as it is"
    ratio = row.price.seconds / now.seconds if now.seconds else 1.0
    return f"{figures}  {ratio - 1:+.1%}" if ratio < 10 else f"{figures}  {ratio:,.0f} times"


def _part(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "0%"


def _rule(rule: str) -> str:
    return f"  of  {rule}" if rule else ""


def _at(loc: Loc) -> str:
    return f" at {_place(loc)}" if str(loc) != "?" else ""


def _place(loc: Loc) -> str:
    return _local(str(loc))


def _local(text: str) -> str:
    """Returns a text with files as seen from the current folder."""
    return text.replace(f"{Path.cwd()}{os.sep}", "")
