"""Incumbents: the presets that a searched plan has to beat.

Combinations of presets are completed as if the user had named them, the usual ones first; on large
programs only as many as are worth their time. So an answer is never worse than the best of them,
and says so where it is none other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, product

from autopar.completion.refine import GAIN
from autopar.completion.search.fastest import Found
from autopar.completion.search.watch import Progress, Watch
from autopar.completion.solve import Solution
from autopar.ir.errors import AnnotationError
from autopar.ir.mesh import ProcessMesh

PER_AXIS = ("data", "tensor", "zero1", "fsdp", "sequence", "zero2", "context", "expert")
"""What an axis may do; `sequence` stands for tensor and sequence."""

USUAL, LEAST = 6, 9
"""The first presets: of which the best is to be named beside the plan, and those that are completed
however large the program is, if one of them may be faster."""

MOST_PRESETS = 36
"""Presets that are completed at most."""

MOST_OPS = 4_000
"""Ops that presets complete in sum."""

PROVEN = 0.01
"""Up to this gap no preset can be much faster."""


def strategies(mesh: ProcessMesh) -> Iterator[str]:
    """Yields combinations of presets, the usual ones first.

    Axes that do the same stand next to one another; data-parallel ones are the outer ones.
    """
    axes = [axis for axis in mesh.dim_names if mesh.axis_size(axis) > 1]
    ordered = sorted(
        product(range(len(PER_AXIS)), repeat=len(axes)), key=lambda way: (sum(way), way)
    )
    for way in ordered:
        parts = []
        for axis, preset in zip(axes, way, strict=True):
            name = PER_AXIS[preset]
            parts.append(
                f"tensor:{axis},sequence:{axis}" if name == "sequence" else f"{name}:{axis}"
            )
        yield ",".join(parts)


def best_preset(
    mesh: ProcessMesh, complete: Callable[[str], Solution], ops: int, found: Found, watch: Watch
) -> tuple[str, Solution, float] | None:
    """Returns the fastest preset with its seconds; None if none fits the program.

    Args:
        mesh: The mesh.
        complete: Completes the program by a strategy.
        ops: How many it has.
        found: What search found.
        watch: Says when to stop.
    """
    best: tuple[str, Solution, float] | None = None
    left = _affordable(ops, found.gap)
    for number, strategy in enumerate(islice(strategies(mesh), left), start=1):
        seconds = found.seconds if best is None else min(best[2], found.seconds)
        watch.tell(Progress(f"preset {number} of {left}", seconds, found.bound_seconds))
        if watch.is_late:
            break
        try:
            solution = complete(strategy)
        except AnnotationError:
            continue
        seconds = solution.seconds
        if best is None or seconds < best[2] * (1 - GAIN):
            best = (strategy, solution, seconds)
    return best


def _affordable(ops: int, gap: float) -> int:
    """Returns how many presets are worth their time."""
    affordable = MOST_OPS // max(1, ops)
    return min(USUAL, affordable) if gap <= PROVEN else min(MOST_PRESETS, max(LEAST, affordable))
