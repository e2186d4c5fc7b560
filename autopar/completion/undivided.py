"""Says which presets leave work undivided: each process along their axis does all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autopar.completion.presets.preset import AxisPreset
from autopar.completion.presets.strategy import AUTO, named_on, parse_strategy
from autopar.cost.flops import product_flops
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.dims import dim_axes
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops import rule_of
from autopar.ir.program import Op, Program

UNDIVIDED = "undivided"
"""The category of what presets leave undivided."""

TOLERATED = 0.1
"""The part of the flops of all products that may stay undivided without a word."""

Product = tuple[Op, int]
"""An op and its flops."""

_NAMED = 3
"""How many ops are named."""


def undivided(program: Program, strategy: str | None) -> tuple[ReportEntry, ...]:
    """Returns a remark for each mesh axis along which presets leave much undivided.

    Args:
        program: Serial and completed.
        strategy: The presets, if there are any.
    """
    if program.mesh is None or not strategy or strategy == AUTO:
        return ()
    products = _products(program)
    total = sum(count for _, count in products)
    remarks = []
    for axis, presets in _by_axis(strategy, program.mesh).items():
        left = [(op, count) for op, count in products if not _splits(op, axis, program.mesh)]
        if sum(count for _, count in left) > TOLERATED * total:
            remarks.append(_entry(axis, presets, left, total, program.mesh))
    return tuple(remarks)


def undivided_stages(program: Program, axis: str, strategy: str | None) -> tuple[ReportEntry, ...]:
    """Returns a remark if no preset says what stages at several indices do along these.

    Or if one does, but each stage is at one index.

    Args:
        program: Serial and completed.
        axis: The mesh axis along which stages lie; "" if there are none.
        strategy: The presets, if there are any.
    """
    if not axis or program.mesh is None or not strategy or strategy == AUTO:
        return ()
    if axis in {item.axis for item in parse_strategy(strategy, program.mesh)}:
        return _idle(program, axis, named_on(strategy, axis, program.mesh))
    products = _products(program)
    left = [
        (op, count)
        for op, count in products
        if op.dist is not None and axis in op.dist.mesh.runs and not _is_split(op, axis)
    ]
    total = sum(count for _, count in products)
    if sum(count for _, count in left) <= TOLERATED * total:
        return ()
    part, named = _named(left, total)
    detail = (
        f"all processes along {axis} that a stage has compute {part:.0%} of the flops ({named});"
        f" name a preset for {axis}, as data:{axis}"
    )
    return (ReportEntry(UNDIVIDED, f"stages along {axis}", detail, _most(left).loc),)


def _idle(program: Program, axis: str, presets: Sequence[AxisPreset]) -> tuple[ReportEntry, ...]:
    """Returns a remark if presets are named for the axis of stages that have no more of it."""
    meshes = (op.dist.mesh for op in program.main.ops if op.dist is not None)
    presets = [item for item in presets if item.preset.divides_work]
    if not presets or any(axis in mesh.dim_names for mesh in meshes):
        return ()
    detail = (
        f"divides nothing, as each stage is at one index of {axis}; say at how many with stages=,"
        " or leave the preset out"
    )
    return (ReportEntry(UNDIVIDED, ", ".join(map(str, presets)), detail),)


def computed_at_once(program: Program) -> tuple[ReportEntry, ...]:
    """Returns a remark if much is computed for all microbatches at once.

    Args:
        program: Serial, with its batch cut into microbatches.
    """
    count = 1 + max((op.microbatch for op in program.main.ops), default=0)
    products = _products(program)
    total = sum(flops for _, flops in products)
    later = {(op.kind, op.loc) for op, _ in products if op.microbatch}
    left = [(op, flops) for op, flops in products if (op.kind, op.loc) not in later]
    if count == 1 or sum(flops for _, flops in left) <= TOLERATED * total:
        return ()
    part, named = _named(left, total)
    detail = f"{part:.0%} of the flops are computed for all at once ({named})"
    return (ReportEntry(UNDIVIDED, f"{count} microbatches", detail, _most(left).loc),)


def _products(program: Program) -> list[Product]:
    values = program.main.values
    counted = ((op, product_flops(op.kind, rule_of(op, values))) for op in program.main.ops)
    return [(op, count) for op, count in counted if count]


def _by_axis(strategy: str, mesh: ProcessMesh) -> Mapping[str, Sequence[AxisPreset]]:
    by_axis: dict[str, list[AxisPreset]] = {}
    for item in parse_strategy(strategy, mesh):
        if item.preset.divides_work and mesh.axis_size(item.axis) > 1:
            by_axis.setdefault(item.axis, []).append(item)
    return by_axis


def _splits(op: Op, axis: str, mesh: ProcessMesh) -> bool:
    """Whether an op's work is divided along an axis, or done by one slice of it alone."""
    if op.dist is None:
        return False
    if op.dist.mesh != mesh and axis not in op.dist.mesh.dim_names:
        return True
    return _is_split(op, axis)


def _is_split(op: Op, axis: str) -> bool:
    return op.dist is not None and any(axis in dim_axes(dim) for _, dim in op.dist.factors)


def _entry(
    axis: str,
    presets: Sequence[AxisPreset],
    left: Sequence[Product],
    total: int,
    mesh: ProcessMesh,
) -> ReportEntry:
    part, named = _named(left, total)
    detail = (
        f"all {mesh.axis_size(axis)} processes along {axis} compute {part:.0%} of the flops"
        f" ({named})"
    )
    return ReportEntry(UNDIVIDED, ", ".join(map(str, presets)), detail, _most(left).loc)


def _most(left: Sequence[Product]) -> Op:
    return max(left, key=lambda product: product[1])[0]


def _named(left: Sequence[Product], total: int) -> tuple[float, str]:
    """Returns the part of all flops that products have, and which kinds have most of them."""
    by_kind: dict[str, int] = {}
    for op, count in left:
        by_kind[op.kind] = by_kind.get(op.kind, 0) + count
    kinds = sorted(by_kind, key=lambda kind: -by_kind[kind])
    named = ", ".join(f"{kind} {by_kind[kind] / total:.0%}" for kind in kinds[:_NAMED])
    more = ", ..." if len(kinds) > _NAMED else ""
    return sum(by_kind.values()) / total, f"{named}{more}"
