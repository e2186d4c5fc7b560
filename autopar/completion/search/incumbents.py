"""Incumbents: the presets that a searched plan has to beat.

Combinations of presets are completed as if the user had named them, the usual ones first; on large
programs only as many as are worth their time. So an answer is never worse than the best of them,
and says so where it is none other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from autopar.completion.refine import GAIN
from autopar.completion.solve import Solution
from autopar.ir.errors import AnnotationError
from autopar.ir.mesh import ProcessMesh

PER_AXIS = ("data", "tensor", "zero1", "fsdp", "sequence", "zero2", "context", "expert")
"""What an axis may do; `sequence` stands for tensor and sequence."""

FEW_OPS, MOST_OPS = 2_000, 8_000
"""Ops that presets complete in sum, if search has all but proven its plan the best, and if not."""

LEAST, MOST_PRESETS = 4, 36
"""Presets that are completed however large or small the program is; the first only if the plan may
not be the best."""


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
    mesh: ProcessMesh, complete: Callable[[str], Solution], ops: int, *, proven: bool
) -> tuple[str, Solution, float] | None:
    """Returns the fastest preset with its seconds; None if none fits the program.

    Args:
        mesh: The mesh.
        complete: Completes the program by a strategy.
        ops: How many it has.
        proven: Whether there is a plan already that is at most a little slower than the best.
    """
    best: tuple[str, Solution, float] | None = None
    affordable = (FEW_OPS if proven else MOST_OPS) // max(1, ops)
    left = min(MOST_PRESETS, affordable if proven else max(LEAST, affordable))
    for strategy in strategies(mesh):
        if not left:
            break
        left -= 1
        try:
            solution = complete(strategy)
        except AnnotationError:
            continue
        seconds = solution.seconds
        if best is None or seconds < best[2] * (1 - GAIN):
            best = (strategy, solution, seconds)
    return best
