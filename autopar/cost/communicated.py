"""What a collective communicates, in bytes and seconds, by its declaration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autopar.cost.collectives import CommunicationModel
from autopar.cost.halo import halo_bytes, redistribute_seconds
from autopar.cost.transfer import transfer_seconds
from autopar.ir.collectives import OPERAND, RESULT, TRANSFER, Declaration

Shape = Sequence[int]


def communicated_bytes(
    declaration: Declaration,
    args: Mapping[str, object],
    operand: Shape,
    result: Shape,
    itemsize: int,
) -> int:
    """Returns the bytes of the larger of operand and result; of a halo, those that a rank gets.

    Args:
        declaration: What is declared of the collective.
        args: The arguments of the op.
        operand: Shape of its operand on a rank.
        result: Shape of its result there.
        itemsize: Bytes per element.
    """
    if declaration.halo:
        return halo_bytes(args, result, itemsize)
    return max(math.prod(operand), math.prod(result)) * itemsize


def received_bytes(
    declaration: Declaration, args: Mapping[str, object], result: Shape, itemsize: int
) -> int:
    """Returns the bytes of the result; of a halo, those that the busiest rank gets from others.

    The arguments are those of `communicated_bytes`.
    """
    if declaration.halo:
        return halo_bytes(args, result, itemsize)
    return math.prod(result) * itemsize


def collective_seconds(
    declaration: Declaration,
    args: Mapping[str, object],
    operand: Shape,
    result: Shape,
    itemsize: int,
    axes: Sequence[str],
    model: CommunicationModel,
) -> float:
    """Returns the seconds of a collective without those to store its result.

    The other arguments are those of `communicated_bytes`.

    Args:
        axes: The mesh axes of the group.
        model: Predicts seconds.
    """
    if declaration.halo:
        return redistribute_seconds(args, result, itemsize, axes, model)
    if declaration.kind == TRANSFER:
        return transfer_seconds(args, result, itemsize, axes, model)
    nbytes = communicated_bytes(declaration, args, operand, result, itemsize)
    if declaration.blocks:
        # Blocks travel as if each were as large as the largest.
        block = math.prod({OPERAND: operand, RESULT: result}[declaration.blocks]) * itemsize
        nbytes = max(nbytes, block * model.members(axes))
    return model.collective_seconds(declaration.price, nbytes, axes)
