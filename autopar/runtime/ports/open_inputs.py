"""Inputs of programs whose sizes are open: what these are follows from the inputs of a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.ir.deployment import Deployment
from autopar.ir.expr.at_sizes import Sizes, as_coords, at_sizes
from autopar.ir.expr.expression import Size, evaluate
from autopar.ir.expr.ranges import limits_text
from autopar.ir.expr.relation import Relation
from autopar.ir.program import Port, Program
from autopar.runtime.kernels.table import TORCH_DTYPES
from autopar.runtime.ports.dense import odd_kind
from autopar.runtime.ports.ports import Arrays, default_of, user_inputs


def is_left_open(program: Program) -> bool:
    """Returns whether sizes of a program are known only when it is called."""
    ports = program.signature.inputs
    return any(isinstance(size, Size) for port in ports for size in port.shape)


def sizes_of_inputs(program: Program, inputs: Arrays) -> dict[str, int]:
    """Returns the open sizes of one call by name; see `OpenInputs.sizes`."""
    return OpenInputs(program).sizes(inputs)


class OpenInputs:
    """The inputs of a program in which sizes are open, for many calls.

    Args:
        program: The program, at any level.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._planned = planned_sizes(program)
        dims = ((port, _open_dims(port)) for port in user_inputs(program))
        self._dims = [(port, sizes) for port, sizes in dims if sizes]

    def sizes(self, inputs: Arrays) -> dict[str, int]:
        """Returns the open sizes of a call by name.

        Inputs that don't fit otherwise, or are missing, are left for `check_inputs` to refuse; a
        size that follows from no other is as planned then.

        Args:
            inputs: Global inputs by label.

        Raises:
            InvalidInputError: If inputs differ in a size that is one, or it isn't within its range.
        """
        found: dict[str, _Seen] = {}
        problems: list[str] = []
        for port, sizes in self._dims:
            given = _shape(inputs.get(port.user_label))
            for at, size in sizes if len(given) == len(port.shape) else ():
                seen = _Seen(given[at], at, port)
                if not size.admits(seen.number):
                    problems.append(f"{seen}; {limits_text(size)}")
                first = found.setdefault(size.name, seen)
                if first.number != seen.number:
                    problems.append(f"{seen}, but {first}; both are {size.name}")
        if problems:
            raise InvalidInputError("\n".join(problems))
        if self._program.relations:
            counts = {name: seen.number for name, seen in found.items()}
            check_relations(self._program, counts, {n: str(seen) for n, seen in found.items()})
        return self._planned | {name: seen.number for name, seen in found.items()}


class _Seen(NamedTuple):
    """Where a size was seen: so many elements, along a dimension of an input."""

    number: int
    at: int
    port: Port

    def __str__(self) -> str:
        return f"dimension {self.at} of input {self.port.user_label!r} is {self.number}"


def check_relations(program: Program, sizes: Sizes, said: Mapping[str, str] | None = None) -> None:
    """Refuses sizes of a call that aren't what they must be together.

    Args:
        program: The program, at any level.
        sizes: Sizes by name; relations of others aren't looked at.
        said: Where sizes come from, by name.

    Raises:
        InvalidInputError: If a relation doesn't hold. Names the inputs, and what needs it.
    """
    if not program.relations:
        return
    known = as_coords(sizes)
    broken = [r for r in program.relations if r.names <= sizes.keys() and not r.holds(known)]
    if broken:
        raise InvalidInputError("\n".join(_refusal(each, sizes, said or {}) for each in broken))


def _refusal(relation: Relation, sizes: Sizes, said: Mapping[str, str]) -> str:
    names = sorted(relation.names)
    where = "; ".join(said[name] for name in names if name in said)
    numbers = " and ".join(f"{name} is {sizes[name]}" for name in names)
    told = f"{numbers}, but the model needs {relation.told} [{relation.loc}]"
    return f"{where}: {told}" if where else told


def planned_sizes(program: Program) -> dict[str, int]:
    """Returns the sizes that a program leaves open, by name, as they were planned.

    Those of state alone are the smallest, with which it begins.
    """
    state = (size for port in program.signature.inputs for size in port.shape)
    first = {size.name: size.least for size in state if isinstance(size, Size)}
    sizes = (size for port in user_inputs(program) for size in port.shape)
    return first | {size.name: size.planned for size in sizes if isinstance(size, Size)}


def _open_dims(port: Port) -> list[tuple[int, Size]]:
    """Returns the dimensions of an input that are open, and what they may be."""
    return [(at, size) for at, size in enumerate(port.shape) if isinstance(size, Size)]


def _shape(given: Any) -> tuple[int, ...]:
    if given is None or odd_kind(given):
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


def complete_inputs(program: Program, given: Arrays, seed: int | None) -> dict[str, Any]:
    """Returns the given inputs by label, and made-up ones for the rest if there is a seed."""
    return {**(random_inputs(program, seed) if seed is not None else {}), **given}


def random_inputs(program: Program, seed: int) -> dict[str, Tensor]:
    """Returns inputs by label, the same for the same seed: floats are normal, integers 0 or 1.

    Integers often index a table, so they stay where every table has an entry. What has a default,
    as the program's own seed, is left out. Sizes that are open are as planned, and state is empty.
    """
    generator = torch.Generator().manual_seed(seed)
    known = as_coords(planned_sizes(program))
    inputs: dict[str, Tensor] = {}
    for port in user_inputs(program):
        if default_of(port) is not None:
            continue
        dtype, shape = TORCH_DTYPES[port.dtype], [evaluate(size, known) for size in port.shape]
        if dtype.is_floating_point or dtype.is_complex:
            drawn = torch.randn(shape, generator=generator)
        else:
            drawn = torch.randint(0, 2, shape, generator=generator)
        inputs[port.user_label] = drawn.to(dtype)
    return inputs
