"""What a rank communicates over which mesh axes: the input of placement and of reports."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.cost.communicated import communicated_bytes
from autopar.ir.collectives import declared
from autopar.ir.expr.at_rank import args_at
from autopar.ir.expr.expression import FromFirst, evaluate
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program
from autopar.mapping.collectives import Collective, executions, sites


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind over the same axes, on tensors of one size.

    Attributes:
        kind: The comm op.
        axes: The mesh axes it runs over, major to minor.
        nbytes: Bytes of the larger of operand and result, on the rank with the largest piece; of a
            redistribution, those that are sent.
        count: How often a rank runs it in one execution of the program.
    """

    kind: str
    axes: tuple[str, ...]
    nbytes: int
    count: int


def traffic(program: Program, mesh: ProcessMesh) -> tuple[Traffic, ...]:
    """Returns what a rank of a partitioned program communicates, in order of first appearance."""
    by_function = sites(program)
    times = executions(by_function)
    counts: dict[tuple[str, tuple[str, ...], int], int] = {}
    for name, each in by_function.items():
        for site in each:
            if isinstance(site, Collective):
                nbytes = collective_bytes(site, mesh)
                key = (site.op.kind, site.axes, nbytes)
                counts[key] = counts.get(key, 0) + times[name]
    return tuple(Traffic(*key, count) for key, count in counts.items())


def collective_bytes(site: Collective, mesh: ProcessMesh) -> int:
    """Returns the bytes of a collective, as `Traffic.nbytes` has them."""
    origin = FromFirst()
    # The process at the origin has the first block of everything, and no block is larger.
    operand, result = (
        tuple(evaluate(size, origin) for size in value.shape)
        for value in (site.operand, site.result)
    )
    declaration = declared(site.op.kind, site.op.loc)
    args = dict(args_at(site.op.args, origin)) if declaration.halo else {}
    return communicated_bytes(declaration, args, operand, result, site.result.itemsize)
