"""What users and the command line call to run a build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autopar.base.arguments import (
    CALLABLE,
    FLAG,
    MAPPING,
    NAMES,
    PATH,
    POSITIVE,
    WHOLE,
    expect,
    one_of,
    shown,
)
from autopar.base.errors import InvalidInputError, RuntimeFailure
from autopar.ir.builds.files import Build, read_build
from autopar.ir.program import Program
from autopar.runtime.execute.distributed import DEFAULT_TIMEOUT, Session, read_or_tell
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.specialize import specialize
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.files.checked_build import check_files, check_weights
from autopar.runtime.files.tensors import read_arrays, save_arrays
from autopar.runtime.init.initialize import MakeModel
from autopar.runtime.job.launcher import launch
from autopar.runtime.ports.ports import (
    Arrays,
    complete_inputs,
    input_types,
    labelled_inputs,
    read_weights,
)
from autopar.runtime.training.rates import trains
from autopar.runtime.training.trainer import NonFiniteLoss, Trainer, open_trainer
from autopar.runtime.verification.verification import Verification, verify_mesh
from autopar.runtime.weights.weights import WeightFile


def load(
    build: str | Path,
    *,
    init: MakeModel | None = None,
    resume: str | Path | None = None,
    **options: Any,
) -> Any:
    """Opens this process's rank of a build, in a job that torchrun started.

        trainer = autopar.load("build/")
        for batch in loader:
            loss = trainer.step(batch)

    A build of a forward pass is called like the model: `outputs = autopar.load("build/")(x)`.

    Args:
        build: The build folder.
        init: The model's constructor, as `lambda: GPT(config)`. Parameters and buffers start with
            the values that it gives them, but for those that a file in `weights=` has; by
            default with those that the model had when it was compiled. See
            `Trainer.initialize`.
        resume: A folder with checkpoints, of a build that trains. If there is one that is whole,
            the trainer goes on from the newest, and `init` and `weights` don't count. See
            `Trainer.resume`.
        options: Those of `open_trainer` for a build that trains, else those of `Session`.

    Returns:
        A `Trainer` of a build that trains, else a `Session`.

    Raises:
        InvalidInputError: If the build is damaged, or is to run in one process and doesn't train,
            or `init` makes another model, or there are only damaged checkpoints.
        RuntimeFailure: If the ranks differ, or another rank failed.
    """
    expect(CALLABLE.or_none, init=init)
    expect(PATH.or_none, resume=resume)
    found = _opened(build, options)
    try:
        if resume is not None and _resumed(found, resume):
            return found
        if init is not None:
            # Weights that are given count before those that are drawn.
            found.initialize(init, absent=bool(options.get("weights")))
    except BaseException:
        found.close()
        raise
    return found


def _resumed(found: Trainer | Session, folder: str | Path) -> bool:
    if isinstance(found, Trainer):
        return found.resume(folder) is not None
    raise InvalidInputError(f"resume={str(folder)!r}: the build doesn't train; load weights")


def _opened(build: str | Path, options: dict[str, Any]) -> Trainer | Session:
    virtual = options.get("virtual", False)
    expect(FLAG, virtual=virtual)
    found = read_build(build) if virtual else read_or_tell(build, **options)
    if trains(found.serial):
        return open_trainer(build, **options)
    if options.pop("virtual", False):
        raise InvalidInputError(
            f"{build} doesn't train; runtime.run_virtual(build, inputs) runs all its ranks here"
        )
    return Session(build, **options)


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


def run(build: str | Path, inputs: Arrays, **options: Any) -> dict[str, Tensor]:
    """Runs this process's rank of a build once, in a job that torchrun started.

    To run it more often, open a `Session`.

    Args:
        build: The build folder.
        inputs: Global inputs by label, the same on all ranks.
        options: See `Session`.

    Returns:
        The global outputs by label on rank 0, nothing on the others.

    Raises:
        InvalidInputError: If the inputs don't fit the program.
        RuntimeFailure: If this or another rank fails.
    """
    with Session(build, **options) as session:
        return session.run(inputs)


def run_virtual(
    build: str | Path, inputs: Arrays | Sequence[Any], *, updates: bool = False
) -> dict[str, Tensor]:
    """Runs all ranks of a build in this process and returns the global outputs by label.

    Args:
        build: The build folder.
        inputs: Global inputs by label, or a list of them in the order of the program. Those that
            the model writes to are written to.
        updates: Whether new content of parameters and other state is returned too.

    Raises:
        InvalidInputError: If the inputs don't fit the program.
        RuntimeFailure: If an op fails or the ranks' collectives don't match.
    """
    expect(FLAG, updates=updates)
    found = read_build(build)
    tensors = labelled_inputs(found.serial, inputs)
    with WeightFile(build=found) as weights:
        mesh = VirtualMesh(found.deployment, weights)
    return mesh.run(tensors, updates=updates, write=True)


def run_one_device(
    build: str | Path, inputs: Arrays | Sequence[Any], device: str = "cpu"
) -> dict[str, Tensor]:
    """Runs the serial program of a build and returns its outputs by label.

    Raises:
        InvalidInputError: If the inputs don't fit the program.
        RuntimeFailure: If an op fails.
    """
    found = read_build(build)
    tensors = labelled_inputs(found.serial, inputs)
    _check_device(device)
    return run_serial(found.serial, _all_weights(found), tensors, device=device)


def verify(
    build: str | Path,
    inputs: Arrays | Sequence[Any],
    *,
    forced: bool = False,
    tolerance: float | None = None,
) -> Verification:
    """Compares every rank's values with the serial program's, op by op.

    Args:
        build: The build folder.
        inputs: Global inputs by label, or a list of them in the order of the program.
        forced: Whether every op is judged on the serial program's inputs.
        tolerance: Largest allowed error, relative to the largest element of a value; by default
            1e-5 if forced, else 1e-4.

    Raises:
        InvalidInputError: If the inputs don't fit the program.
        RuntimeFailure: If an op fails or the ranks' collectives don't match.
    """
    expect(FLAG, forced=forced)
    expect(POSITIVE.or_none, tolerance=tolerance)
    found = read_build(build)
    tensors = labelled_inputs(found.serial, inputs)
    check_weights(found)
    whole = _all_weights(found)
    with WeightFile(build=found) as weights:
        mesh = VirtualMesh(found.deployment, weights)
    return verify_mesh(found.serial, whole, mesh, tensors, forced=forced, tolerance=tolerance)


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


def _check_device(device: str) -> None:
    expect(one_of(str, torch.device, words="a device, as 'cpu'"), device=device)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidInputError(f"device={shown(device)} can't be used: {reason}") from error


def _all_weights(build: Build) -> dict[str, Tensor]:
    with WeightFile(build=build) as file:
        return read_weights(specialize(build.serial, {}), file, "cpu")


__all__ = [
    "DEFAULT_TIMEOUT",
    "NonFiniteLoss",
    "Session",
    "Trainer",
    "Verification",
    "check_files",
    "launch",
    "load",
    "open_trainer",
    "read_inputs",
    "read_program",
    "run",
    "run_one_device",
    "run_virtual",
    "save_outputs",
    "verify",
]
