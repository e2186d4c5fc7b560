"""What users and the command line call to run a build.

A build is opened by `load`, to go on with it, or run once by `run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from autopar.base.arguments import FLAG, MAPPING, NAMES, PATH, POSITIVE, WHOLE, expect
from autopar.base.errors import RuntimeFailure
from autopar.ir.builds.files import read_build
from autopar.ir.program import Program
from autopar.runtime.execute.serial import whole_weights
from autopar.runtime.execute.session import Session
from autopar.runtime.execute.specialize import specialize
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.files.checked_build import check_files, check_weights
from autopar.runtime.files.tensors import read_arrays, save_arrays
from autopar.runtime.job.patience import DEFAULT_TIMEOUT
from autopar.runtime.loading import load
from autopar.runtime.ports.open_inputs import complete_inputs, ranks_for, serial_for
from autopar.runtime.ports.ports import Arrays, input_types, labelled_inputs
from autopar.runtime.running import run
from autopar.runtime.tracing.tracer import Trace
from autopar.runtime.training.trainer import Trainer
from autopar.runtime.training.verdicts import NonFiniteLoss
from autopar.runtime.verification.verification import Verification, verify_mesh
from autopar.runtime.weights.weights import WeightFile


def read_program(build: str | Path, rank: int | None = None) -> Program:
    """Returns what a rank of a build runs, or the serial program without a rank.

    Args:
        build: The build folder.
        rank: The rank, whose coordinates resolve every rank expression.

    Raises:
        InvalidInputError: If the build is damaged.
        RuntimeFailure: If there is no such rank.
    """
    expect(WHOLE.or_none, rank=rank)
    found = read_build(build)
    if rank is None:
        return found.serial
    deployment = found.deployment
    if not 0 <= rank < deployment.world_size:
        last = deployment.world_size - 1
        raise RuntimeFailure(f"{build} has no rank {rank}; its ranks are 0 to {last}")
    return specialize(deployment.program_of(rank), deployment.coords_of(rank))


def verify(
    build: str | Path,
    inputs: Arrays | Sequence[Any],
    *,
    per_op: bool = False,
    tolerance: float | None = None,
) -> Verification:
    """Compares every rank's values with the serial program's, op by op.

    Args:
        build: The build folder.
        inputs: Global inputs by label, or a list of them in the order of the program.
        per_op: Whether every op is judged on the serial program's inputs.
        tolerance: Largest allowed error, relative to the largest element of a value; by default
            1e-5 if `per_op`, else 1e-4.

    Raises:
        InvalidInputError: If the inputs don't fit the program.
        RuntimeFailure: If an op fails or the ranks' collectives don't match.
    """
    expect(FLAG, per_op=per_op)
    expect(POSITIVE.or_none, tolerance=tolerance)
    found = read_build(build)
    tensors = labelled_inputs(found.serial, inputs)
    check_weights(found)
    whole = whole_weights(found)
    serial = serial_for(found.serial, tensors)
    deployment = ranks_for(found.deployment, found.serial, tensors)
    with WeightFile(build=found) as weights:
        mesh = VirtualMesh(deployment, weights)
    return verify_mesh(serial, whole, mesh, tensors, forced=per_op, tolerance=tolerance)


def read_inputs(build: str | Path, specs: Sequence[str], seed: int | None = None) -> dict[str, Any]:
    """Returns the inputs of a build by label from files, the rest made up if a seed is given.

    Args:
        build: The build folder.
        specs: `NAME=FILE.npy`, or `FILE.npz` with several.
        seed: Makes up the inputs that are not given.

    Raises:
        InvalidInputError: If a file can't be read.
    """
    expect(NAMES, specs=specs)
    expect(WHOLE.or_none, seed=seed)
    program = read_build(build).serial
    return complete_inputs(program, read_arrays(specs, input_types(program)), seed)


def save_outputs(path: str | Path, outputs: Mapping[str, Tensor]) -> None:
    """Writes outputs to a `.npz` or `.safetensors` file.

    Raises:
        InvalidInputError: If the file can't be written.
    """
    expect(PATH, path=path)
    expect(MAPPING, outputs=outputs)
    save_arrays(Path(path), outputs)


__all__ = [
    "DEFAULT_TIMEOUT",
    "NonFiniteLoss",
    "Session",
    "Trace",
    "Trainer",
    "Verification",
    "check_files",
    "load",
    "read_inputs",
    "read_program",
    "run",
    "save_outputs",
    "verify",
]
