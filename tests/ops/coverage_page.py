"""Writes `docs/op-coverage.md`: every op with its rule, and how far the rule is proven."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from tests.ops.missing import NOT_EXCHANGED


class Row(Protocol):
    """What the page says about an op; see `tests.ops.validate.Finding`."""

    kind: str
    rule: str
    linear: str
    bodies: tuple[str, ...]
    samples: int
    validated: int
    wrong: list[str]
    splits: int
    missing: list[str]
    missing_count: int
    pending: list[str]

    @property
    def reasons(self) -> Mapping[str, list[str]]: ...


def write_page(rows: Sequence[Row], without_sample: Sequence[str]) -> str:
    """Returns the page.

    Args:
        rows: The ops that were run.
        without_sample: Ops that have a rule and weren't: they are random, or their content is
            anything.
    """
    return "\n".join([*_head(rows), *_table(rows), *_tail(rows, without_sample), ""])


def _head(rows: Sequence[Row]) -> Iterator[str]:
    with_rule = [row for row in rows if row.rule]
    splits, missing = sum(row.splits for row in rows), sum(row.missing_count for row in rows)
    yield "# Op coverage"
    yield ""
    yield "Written by `make validate-rules`. Don't edit it."
    yield ""
    yield (
        "Every rule is checked on samples: our own, and the calls that PyTorch's operator database"
        " makes, forward and backward. The op is split along each factor, alone and in pairs, into"
        " 2 and 3 parts, uneven ones, strided ones, and more parts than elements; the parts run,"
        " and what they give is combined and compared with what the whole op gives. Then brute"
        " force cuts operands in every way, whatever the rule says, to find valid splits that the"
        " rule lacks."
    )
    yield ""
    yield "| | |"
    yield "| --- | --- |"
    yield f"| ops run | {len(rows)} |"
    yield f"| of these with a rule | {len(with_rule)} |"
    yield f"| samples | {sum(row.samples for row in rows)} |"
    yield f"| samples on which a rule is proven | {sum(row.validated for row in rows)} |"
    yield f"| samples on which a rule is wrong | {sum(len(row.wrong) for row in rows)} |"
    yield f"| valid splits that brute force found | {splits} |"
    yield f"| of these in the rules | {splits - missing} ({_percent(splits - missing, splits)}) |"
    yield ""
    yield (
        "An op without a rule works: its operands are gathered, every rank computes all of it, and"
        " the compile report says so."
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.1f}%"


def _table(rows: Sequence[Row]) -> Iterator[str]:
    yield ""
    yield "## Ops"
    yield ""
    yield (
        "*Linear in*: the arguments that may be pending a reduction; with `+` only together."
        " *Proven*: samples on which the rule holds, of those that were run. *Splits*: those in the"
        " rule, of the valid ones."
    )
    yield ""
    yield "| op | factors of one sample | linear in | bodies | proven | splits |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in rows:
        cells = (
            f"`{row.kind}`",
            f"`{row.rule}`" if row.rule else "no rule: gathered",
            row.linear,
            ", ".join(row.bodies),
            f"{row.validated} of {row.samples}",
            f"{row.splits - row.missing_count} of {row.splits}",
        )
        yield f"| {' | '.join(cells)} |"


def _tail(rows: Sequence[Row], without_sample: Sequence[str]) -> Iterator[str]:
    yield ""
    yield "## Valid splits that aren't in the rules"
    yield ""
    yield "| op | splits, operands -> results | why |"
    yield "| --- | --- | --- |"
    for row in rows:
        for reason, splits in row.reasons.items():
            yield f"| `{row.kind}` | {'; '.join(splits)} | {reason or 'unknown'} |"
    yield ""
    yield "## Splits that would need to exchange elements"
    yield ""
    yield "Brute force doesn't find these, since each part computes by itself."
    yield ""
    yield "| op, and its kin | what isn't split, and why |"
    yield "| --- | --- |"
    for kind, why in NOT_EXCHANGED.items():
        yield f"| `{kind}` | {why} |"
    yield ""
    yield "## Pending operands that aren't in the rules"
    yield ""
    yield (
        "They were right in all samples of at least two. Some are right by chance, since the"
        " samples' numbers are few; none costs more than an earlier reduction."
    )
    yield ""
    yield "| op | operands -> results |"
    yield "| --- | --- |"
    for row in rows:
        if row.pending:
            yield f"| `{row.kind}` | {'; '.join(row.pending)} |"
    yield ""
    yield "## Rules without samples here"
    yield ""
    yield "Their content is random, or anything at all; tests of their own check them."
    yield ""
    yield ", ".join(f"`{kind}`" for kind in without_sample) + "."
