"""A program for the device that it is compiled for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autopar.base.errors import InvalidInputError
from autopar.cost import Cluster
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.devices import CPU
from autopar.ir.ops.on_devices import NEUTRAL, is_own
from autopar.ir.program import Function, Op, Program

_SHOWN = 8
"""Ops that a message names."""


def for_device(program: Program, device: str) -> Program:
    """Returns a program without ops that only another device has.

    Args:
        program: A program as it was captured, on the CPU.
        device: The type of the device, one of `DEVICES`.

    Raises:
        InvalidInputError: If an op is the CPU's own and nothing takes its place.
    """
    if device == CPU:
        return program
    functions = {name: _neutral(each) for name, each in program.functions.items()}
    own = [op for each in functions.values() for op in each.ops if is_own(op.kind, device)]
    if own:
        listed = "\n".join(_listed(own))
        raise InvalidInputError(
            f"{program.name} can't be compiled for {device}: only the CPU has kernels for\n{listed}"
            "\nwrite the model without them, or compile it with device='cpu'"
        )
    return replace(program, functions=functions)


def other_figures(cluster: Cluster, device: str) -> tuple[ReportEntry, ...]:
    """Returns what is to be said of figures that are those of another device; nothing of its own.

    Args:
        cluster: The hardware that is planned for.
        device: The type of the device that is compiled for.
    """
    if cluster.device_type == device:
        return ()
    detail = (
        f"those of cluster {cluster.name}, which has no {device}: times, and what is chosen by"
        " them, are for that; name the cluster that you have (--cluster)"
    )
    return (ReportEntry("search", "figures", detail),)


def _neutral(function: Function) -> Function:
    ops = tuple(replace(op, kind=NEUTRAL.get(op.kind, op.kind)) for op in function.ops)
    return replace(function, ops=ops)


def _listed(ops: list[Op]) -> Iterator[str]:
    for op in ops[:_SHOWN]:
        yield f"  {op.kind} at {op.loc}"
    if len(ops) > _SHOWN:
        yield f"  and {len(ops) - _SHOWN} more"
