"""Within memory: how values are split and what is computed again are decided together.

The fastest plan may keep so much that computing it again costs more than a plan that keeps less. So
several plans are made, each with another price of the bytes that a rank keeps; recomputation makes
each fit; and the fastest of the outcomes is taken. Where none fits, presets are tried: some keep
less than any plan that is made for speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from autopar.completion import Complete
from autopar.completion.complete import Completed
from autopar.completion.search.incumbents import strategies
from autopar.cost import Cluster
from autopar.cost.evaluation import evaluate
from autopar.ir.errors import AnnotationError, InvalidInputError
from autopar.ir.manifest import ReportEntry
from autopar.ir.program import Program
from autopar.ir.units import human_bytes
from autopar.partition.recompute import recompute

PRICES = (0, 1, 8, 64)
"""Prices of as many bytes as there may be, in serialized seconds of the plan without a price."""

MOST_PRESETS = 16
"""Combinations of presets, the usual ones first, that are tried where no searched plan fits."""


@dataclass(frozen=True)
class _Outcome:
    """A plan that fits, with its serialized seconds, and those that recomputation adds."""

    completed: Completed
    seconds: float
    added_seconds: float

    @property
    def whole_seconds(self) -> float:
        """Serialized seconds of what is run."""
        return self.seconds + self.added_seconds


def complete_within(
    complete: Complete,
    program: Program,
    lower: Callable[[Program], Program],
    cluster: Cluster,
    memory_bytes: int,
) -> Completed:
    """Returns the completed program that is the fastest once it fits.

    Args:
        complete: Searches.
        program: The serial program.
        lower: The passes from a completed program to that of a rank, before recomputation.
        cluster: Predicts seconds.
        memory_bytes: What a rank may hold at once.

    Raises:
        InvalidInputError: If no plan fits; it says by how much the smallest one misses.
    """
    best: _Outcome | None = None
    problem: InvalidInputError | None = None
    unit = 0.0
    tried = 0
    for price in PRICES:
        completed = replace(complete, byte_seconds=price * unit).decide(program)
        lowered = lower(completed.program)
        seconds = evaluate(lowered, cluster).serialized_seconds
        unit = unit or seconds / memory_bytes
        tried += 1
        try:
            added = recompute(lowered, cluster, memory_bytes).added_seconds
        except InvalidInputError as error:
            problem = error
            continue
        if best is None or seconds + added < best.whole_seconds:
            best = _Outcome(completed, seconds, added)
        if not added:
            # Dearer bytes only lead to slower plans.
            break
    if best is None:
        fitting = list(_presets(complete, program, lower, cluster, memory_bytes))
        best = min(fitting, key=lambda each: each.whole_seconds, default=None)
        tried += len(fitting)
    if best is None:
        assert problem is not None
        raise problem
    remark = _remark(best, tried, memory_bytes)
    return replace(best.completed, remarks=(*best.completed.remarks, remark))


def _presets(
    complete: Complete,
    program: Program,
    lower: Callable[[Program], Program],
    cluster: Cluster,
    memory_bytes: int,
) -> Iterator[_Outcome]:
    """Yields the outcomes of presets that fit; arguments as `complete_within`."""
    assert program.mesh is not None
    for strategy in islice(strategies(program.mesh), MOST_PRESETS):
        try:
            completed = replace(complete, strategy=strategy).decide(program)
            lowered = lower(completed.program)
            added = recompute(lowered, cluster, memory_bytes).added_seconds
        except (AnnotationError, InvalidInputError):
            continue
        yield _Outcome(completed, evaluate(lowered, cluster).serialized_seconds, added)


def _remark(best: _Outcome, tried: int, memory_bytes: int) -> ReportEntry:
    detail = (
        f"the fastest of {tried} plans within {human_bytes(memory_bytes)}:"
        f" {best.seconds * 1e3:.4g} ms, and {best.added_seconds * 1e3:.4g} ms to compute again what"
        " doesn't fit"
    )
    return ReportEntry("search", "memory", detail)
