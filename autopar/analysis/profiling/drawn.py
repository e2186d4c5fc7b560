"""A pipeline drawn as text: ranks down, time across."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autopar.analysis.profiling.show import COLUMNS, Profile
from autopar.base.units import human_seconds
from autopar.ir.program import Op

FORWARD, BACKWARD = "0123456789", "abcdefghijklmnopqrstuvwxyz"
"""The signs of microbatches, forward and backward; after the last one comes the first again."""

UPDATE, WAITS = "#", "."


def drawn(profiles: Sequence[Profile]) -> Iterator[str]:
    """Yields a text that shows when each rank is at which microbatch; none without a pipeline.

    Args:
        profiles: Of ranks that run together, one of each kind.
    """
    if len(profiles) > 1 and any(op.stage for each in profiles for op in each.evaluation.ops):
        yield "\n".join(_lines(profiles))


def _lines(profiles: Sequence[Profile]) -> Iterator[str]:
    seconds = max(each.overlapped_seconds for each in profiles)
    yield f"pipeline, {human_seconds(seconds)} from left to right, a line for each kind of ranks"
    yield from (_row(each, seconds) for each in profiles)
    yield (
        f"{FORWARD[0]}, {FORWARD[1]}, ...: forward, by microbatch; {BACKWARD[0]}, {BACKWARD[1]},"
        f" ...: backward; {UPDATE} update; {WAITS} waiting"
    )


def _row(profile: Profile, seconds: float) -> str:
    """Returns what a rank does in the middle of each column."""
    evaluation = profile.evaluation
    signs = [WAITS] * COLUMNS
    for at, (op, cost) in enumerate(zip(evaluation.ops, evaluation.costs, strict=True)):
        if not cost.compute_seconds + cost.host_seconds:
            continue
        begin, end = evaluation.clock.begin_seconds[at], evaluation.clock.end_seconds[at]
        first, last = (round(time / seconds * COLUMNS) for time in (begin, end))
        signs[first:last] = _sign(op) * (last - first)
    return "".join(signs)


def _sign(op: Op) -> str:
    if op.phase == "update":
        return UPDATE
    signs = FORWARD if op.phase == "forward" else BACKWARD
    return signs[op.microbatch % len(signs)]
