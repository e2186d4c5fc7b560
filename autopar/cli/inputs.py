"""Inputs as a command line gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autopar.base.errors import InvalidInputError
from autopar.ir.expr.expression import shape_str

INPUTS = click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=FILE.npy",
    help="An input, by its name in the model; or an .npz or .safetensors file with several.",
)


def read_inputs(build: Path, specs: tuple[str, ...], seed: int | None) -> dict[str, Any]:
    """Reads the inputs of a build, and makes up the others if there is a seed.

    Raises:
        InvalidInputError: If some are missing; it says how to give them.
    """
    from autopar.ir.builds.files import read_build
    from autopar.runtime import api
    from autopar.runtime.ports import ports

    arrays = api.read_inputs(build, specs, seed=seed)
    wanted = {port.user_label: port for port in ports.user_inputs(read_build(build).serial)}
    needed = [label for label, port in wanted.items() if ports.default_of(port) is None]
    missing = [label for label in needed if label not in arrays]
    # A name that is wrong explains one that is missing, and is reported with it.
    if missing and arrays.keys() <= wanted.keys():
        lines = [
            f"  --input {label}=FILE.npy    {wanted[label].dtype}{shape_str(wanted[label].shape)}"
            for label in missing
        ]
        raise InvalidInputError(
            "\n".join(["inputs are missing:", *lines, "or --random-inputs SEED makes them up"])
        )
    return arrays


def with_seed(build: Path, arrays: dict[str, Any], seed: int | None) -> dict[str, Any]:
    """Returns the inputs with the seed of the program's random numbers."""
    from autopar.ir.builds.files import read_build
    from autopar.runtime.ports import ports

    return ports.with_seed(read_build(build).serial, arrays, seed)
