"""Inputs of programs whose sizes are open: what these are follows from the inputs of a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from autopar.base.errors import InvalidInputError
from autopar.ir.deployment import Deployment
from autopar.ir.expr.at_sizes import at_sizes
from autopar.ir.expr.expression import UNBOUNDED, Size
from autopar.ir.program import Port, Program
from autopar.runtime.ports.ports import Arrays, label_of, user_inputs

Sizes = Mapping[str, int]
"""Numbers for open sizes, by name."""


def is_left_open(program: Program) -> bool:
    """Returns whether sizes of a program are known only when it is called."""
    return any(isinstance(size, Size) for port in user_inputs(program) for size in port.shape)


def sizes_of_inputs(program: Program, inputs: Arrays) -> dict[str, int]:
    """Returns the open sizes of a call by name.

    Inputs that don't fit otherwise, or are missing, are left for `check_inputs` to refuse; a size
    that follows from no other is as planned then.

    Args:
        program: The program, at any level.
        inputs: Global inputs by label.

    Raises:
        InvalidInputError: If inputs differ in a size that is one, or it isn't within its range.
    """
    found: dict[str, tuple[int, str]] = {}
    problems: list[str] = []
    for port, at, size, count in _open_dims(program, inputs):
        what = f"dimension {at} of input {label_of(port)!r} is {count}"
        if not size.least <= count <= size.most:
            most = "" if size.most == UNBOUNDED else f" and at most {size.most}"
            problems.append(f"{what}; {size.name} is at least {size.least}{most}")
        first, said = found.setdefault(size.name, (count, what))
        if first != count:
            problems.append(f"{what}, but {said}; both are {size.name}")
    if problems:
        raise InvalidInputError("\n".join(problems))
    sizes = (size for port in user_inputs(program) for size in port.shape)
    planned = {size.name: size.planned for size in sizes if isinstance(size, Size)}
    return planned | {name: count for name, (count, _) in found.items()}


def _open_dims(program: Program, inputs: Arrays) -> Iterator[tuple[Port, int, Size, int]]:
    """Yields each open dimension of the inputs that are given, and its size there."""
    for port in user_inputs(program):
        given = _shape(inputs.get(label_of(port)))
        if len(given) == len(port.shape):
            for at, (size, count) in enumerate(zip(port.shape, given, strict=True)):
                if isinstance(size, Size):
                    yield port, at, size, count


def _shape(given: Any) -> tuple[int, ...]:
    if given is None:
        return ()
    shape = getattr(given, "shape", None)
    return tuple(shape if shape is not None else np.shape(given))


def deployment_at(deployment: Deployment, sizes: Sizes) -> Deployment:
    """Returns what ranks run at these sizes."""
    return replace(
        deployment, programs=tuple(at_sizes(each, sizes) for each in deployment.programs)
    )


def serial_for(program: Program, inputs: Arrays) -> Program:
    """Returns the program of one device at the sizes of inputs; itself if none is open.

    Raises:
        InvalidInputError: See `sizes_of_inputs`.
    """
    return at_sizes(program, sizes_of_inputs(program, inputs)) if is_left_open(program) else program


def ranks_for(deployment: Deployment, serial: Program, inputs: Arrays) -> Deployment:
    """Returns what ranks run at the sizes of inputs, given the program of one device.

    Raises:
        InvalidInputError: See `sizes_of_inputs`.
    """
    if not is_left_open(serial):
        return deployment
    return deployment_at(deployment, sizes_of_inputs(serial, inputs))
