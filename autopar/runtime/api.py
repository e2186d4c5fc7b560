"""What users and the command line call to run a build.

A build is opened by `load`, to go on with it, or run once by `run`. `load` opens it as one of
several kinds, each a class. All of them are a rank of a job, or all ranks within this process. What
starts ranks and keeps them, to be called from outside, is a session of `autopar.serving`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

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
    Kind,
    expect,
    one_of,
    shown,
)
from autopar.base.errors import InvalidInputError, RuntimeFailure
from autopar.ir.builds.files import Build, read_build
from autopar.ir.program import Program
from autopar.runtime.execute.distributed import read_or_tell
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.session import Session
from autopar.runtime.execute.specialize import specialize
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.files.checked_build import check_files, check_weights
from autopar.runtime.files.tensors import read_arrays, save_arrays
from autopar.runtime.init.initialize import MakeModel
from autopar.runtime.job.launcher import launch
from autopar.runtime.job.patience import DEFAULT_START_TIMEOUT, DEFAULT_TIMEOUT
from autopar.runtime.job.processes import Processes
from autopar.runtime.ports.open_inputs import complete_inputs, ranks_for, serial_for
from autopar.runtime.ports.ports import (
    Arrays,
    input_types,
    labelled_inputs,
    read_weights,
)
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.rates import trains
from autopar.runtime.training.stepping import NonFiniteLoss
from autopar.runtime.training.trainer import Trainer
from autopar.runtime.verification.verification import Verification, verify_mesh
from autopar.runtime.weights.weights import WeightFile


class Opening(TypedDict, total=False):
    """How a build is opened: what `load` takes and explains, for type checkers."""

    virtual: bool
    init: MakeModel | None
    resume: str | Path | None
    weights: str | Path | Sequence[str | Path]
    seed: int | None
    check_loss: bool
    backend: str
    timeout: float
    start_timeout: float
    torch_compile: bool
    processes: Processes | None
    on_failure: Callable[[RankFailure], None] | None
    check_inputs: bool


@overload
def load(build: str | Path, kind: type[Trainer], **options: Unpack[Opening]) -> Trainer: ...


@overload
def load(build: str | Path, kind: type[Session], **options: Unpack[Opening]) -> Session: ...


@overload
def load(build: str | Path, kind: None = None, **options: Unpack[Opening]) -> Trainer | Any: ...


def load(
    build: str | Path,
    kind: type[Trainer] | type[Session] | None = None,
    *,
    virtual: bool = False,
    init: MakeModel | None = None,
    resume: str | Path | None = None,
    weights: str | Path | Sequence[str | Path] = (),
    seed: int | None = None,
    check_loss: bool = True,
    backend: str = "auto",
    timeout: float = DEFAULT_TIMEOUT,
    start_timeout: float = DEFAULT_START_TIMEOUT,
    torch_compile: bool = False,
    processes: Processes | None = None,
    on_failure: Callable[[RankFailure], None] | None = None,
    check_inputs: bool = True,
) -> Trainer | Session:
    """Opens this process's rank of a build, in a job that torchrun started.

        trainer = autopar.load("build/")
        for batch in loader:
            loss = trainer.step(batch)

    A build of a forward pass is called like the model: `outputs = autopar.load("build/")(x)`.

    Args:
        build: The build folder.
        kind: What it is opened as, and what it must be: `runtime.Trainer` or `runtime.Session`. By
            default the one that it is for; type checkers take it for a trainer then.
        virtual: Whether all ranks of a build that trains run in this process instead, without a
            job; what follows from `backend` on doesn't count then.
        init: The model's constructor, as `lambda: GPT(config)`. Parameters and buffers start with
            the values that it gives them, but for those that a file in `weights` has; by
            default with those that the model had when it was compiled. See
            `Trainer.initialize`.
        resume: A folder with checkpoints, of a build that trains. If there is one that is whole,
            the trainer goes on from the newest, and `init` and `weights` don't count. See
            `Trainer.resume`.
        weights: A safetensors file with weights to start from, or a folder or index of Hugging
            Face's, of which each rank reads its slices; or several. They count before those of
            the build, which may have none.
        seed: Of a build that trains: what the random numbers of all steps depend on; by default
            the build's own.
        check_loss: Of a build that trains: whether a step whose loss isn't finite is refused.
            Looking at the loss makes the host wait for an accelerator once per step.
        backend: `gloo` (on the CPU), `nccl` (on GPUs), or `auto`: nccl where there are GPUs.
        timeout: Seconds that each collective waits for the other ranks. In a process group of the
            user's own, among all ranks, its own time-out counts.
        start_timeout: Seconds that the start waits for the other ranks, all its steps together.
        torch_compile: Whether to run the program through `torch.compile`.
        processes: Who this process is; by default what the launcher says.
        on_failure: See `Supervisor`.
        check_inputs: Whether the ranks compare their inputs, which must be the same, and what they
            load. Of large inputs each call compares a twentieth.

    Returns:
        A `Trainer` of a build that trains, else a `Session`.

    Raises:
        InvalidInputError: If the build is damaged, or of another kind than asked for, or is to run
            in one process and doesn't train, or `init` makes another model, or there are only
            damaged checkpoints.
        RuntimeFailure: If the ranks differ, or another rank failed.
    """
    expect(_KIND, kind=kind)
    expect(CALLABLE.or_none, init=init)
    expect(PATH.or_none, resume=resume)
    expect(FLAG, virtual=virtual)
    joined: dict[str, Any] = {
        "backend": backend,
        "timeout": timeout,
        "start_timeout": start_timeout,
        "torch_compile": torch_compile,
        "processes": processes,
        "on_failure": on_failure,
        "check_inputs": check_inputs,
    }
    file = read_build(build) if virtual else read_or_tell(build, **joined)
    found: Trainer | Session
    if _as(kind, file) is Trainer:
        trained: dict[str, Any] = {"virtual": virtual, "seed": seed, "check_loss": check_loss}
        found = open_trainer(build, weights=weights, **trained, **joined)
    else:
        _check_session(build, virtual, seed, check_loss)
        found = Session(build, weights=weights, **joined)
    try:
        if resume is not None and _resumed(found, resume):
            return found
        if init is not None:
            # Weights that are given count before those that are drawn.
            found.initialize(init, absent=bool(weights))
    except BaseException:
        found.close()
        raise
    return found


def _as(kind: type[Trainer] | type[Session] | None, build: Build) -> type[Trainer] | type[Session]:
    """Returns as what a build is opened.

    Raises:
        InvalidInputError: If it isn't of the kind that is asked for.
    """
    own: type[Trainer] | type[Session] = Trainer if trains(build.serial) else Session
    if kind is Trainer and own is Session:
        raise InvalidInputError(
            f"{build.path} computes outputs and trains nothing; compile with an optimizer, or open"
            " it as a runtime.Session"
        )
    if kind is Session and own is Trainer:
        raise InvalidInputError(f"{build.path} trains; open it as a runtime.Trainer")
    return own


def _check_session(build: str | Path, virtual: bool, seed: int | None, check_loss: bool) -> None:
    if virtual:
        raise InvalidInputError(
            f"{build} doesn't train; runtime.run(build, inputs, virtual=True) runs all its ranks"
            " here"
        )
    if seed is not None or check_loss is not True:
        given = "check_loss" if seed is None else "seed"
        raise InvalidInputError(
            f"{build} doesn't train, so there is nothing for {given}= to be about; the seed of a"
            " program that draws random numbers is one of its inputs"
        )


def _resumed(found: Trainer | Session, folder: str | Path) -> bool:
    if isinstance(found, Trainer):
        return found.resume(folder) is not None
    raise InvalidInputError(f"resume={str(folder)!r}: the build doesn't train; load weights")


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


def run(
    build: str | Path,
    inputs: Arrays | Sequence[Any],
    *,
    virtual: bool = False,
    serial: bool = False,
    updates: bool = False,
    device: str = "cpu",
    backend: str = "auto",
    timeout: float = DEFAULT_TIMEOUT,
    start_timeout: float = DEFAULT_START_TIMEOUT,
    torch_compile: bool = False,
    threads: int = 1,
    modules: Sequence[str] = (),
) -> dict[str, Tensor]:
    """Runs a build once, and returns the global outputs by label.

    By default one process per rank is started on this host. In a job that torchrun started, a rank
    is opened by `load`, and then called as often as it is needed.

    Args:
        build: The build folder.
        inputs: Global inputs by label, or a list of them in the order of the program. Unless
            processes are started, those that the model writes to are written to.
        virtual: Whether all ranks run in this process instead, without a process group.
        serial: Whether the program for one device runs in this process instead.
        updates: Whether new content of parameters and other state is returned too.
        device: Where the serial program runs.
        backend: Of processes: `gloo` (on the CPU), `nccl` (on GPUs), or `auto`: nccl where there
            are GPUs.
        timeout: Of processes: seconds that each collective waits for other ranks.
        start_timeout: Of processes: seconds that the start does.
        torch_compile: Of processes: whether they run the programs through `torch.compile`.
        threads: Of processes: threads that each computes with.
        modules: Of processes: what each imports first, which registers ops of other libraries.

    Raises:
        InvalidInputError: If the inputs don't fit the program, or an argument doesn't fit another.
        RuntimeFailure: If an op or a rank fails, or the ranks' collectives don't match.
    """
    expect(FLAG, virtual=virtual, serial=serial, updates=updates)
    expect(_DEVICE, device=device)
    started = {
        "backend": backend,
        "timeout": timeout,
        "start_timeout": start_timeout,
        "torch_compile": torch_compile,
        "threads": threads,
        "modules": modules,
    }
    if virtual or serial:
        _refuse_other("no processes are started", started, _OF_PROCESSES)
    if virtual and serial:
        raise InvalidInputError("virtual=True and serial=True: give one of them")
    if serial:
        _refuse_other("the serial program is run", {"updates": updates}, {"updates": False})
        return _run_serial(build, inputs, device)
    _refuse_other("ranks choose their devices", {"device": device}, {"device": "cpu"})
    if virtual:
        return _run_virtual(build, inputs, updates)
    return launch(build, inputs, updates=updates, **started)  # type: ignore[arg-type]


_OF_PROCESSES: Mapping[str, object] = {
    "backend": "auto",
    "timeout": DEFAULT_TIMEOUT,
    "start_timeout": DEFAULT_START_TIMEOUT,
    "torch_compile": False,
    "threads": 1,
    "modules": (),
}
"""What is said of processes that are started where nothing is."""


def _refuse_other(why: str, given: Mapping[str, object], usual: Mapping[str, object]) -> None:
    """Refuses arguments that mean nothing beside others, unless they are as usual."""
    odd = [name for name, value in given.items() if not _is_usual(value, usual[name])]
    if odd:
        raise InvalidInputError(f"{why}, so leave out {', '.join(f'{name}=' for name in odd)}")


def _is_usual(value: object, usual: object) -> bool:
    plain = tuple(value) if isinstance(value, list) else value
    return isinstance(plain, str | int | float | tuple) and plain == usual


def _run_virtual(
    build: str | Path, inputs: Arrays | Sequence[Any], updates: bool
) -> dict[str, Tensor]:
    found = read_build(build)
    tensors = labelled_inputs(found.serial, inputs)
    deployment = ranks_for(found.deployment, found.serial, tensors)
    with WeightFile(build=found) as weights:
        mesh = VirtualMesh(deployment, weights)
    return mesh.run(tensors, updates=updates, write=True)


def _run_serial(
    build: str | Path, inputs: Arrays | Sequence[Any], device: str
) -> dict[str, Tensor]:
    found = read_build(build)
    tensors = labelled_inputs(found.serial, inputs)
    _check_device(device)
    serial = serial_for(found.serial, tensors)
    return run_serial(serial, _all_weights(found), tensors, device=device)


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
    whole = _all_weights(found)
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


_DEVICE = one_of(str, torch.device, words="a device, as 'cpu'")
_KIND = Kind(
    lambda value: any(value is each for each in (None, Trainer, Session)),
    "runtime.Trainer or runtime.Session",
)


def _check_device(device: str) -> None:
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
    "load",
    "read_inputs",
    "read_program",
    "run",
    "save_outputs",
    "verify",
]
