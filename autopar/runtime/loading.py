"""Opening a build, to go on with it: as one of several kinds, each a class.

All of them are a rank of a job, or all ranks within this process. What starts ranks and keeps them,
to be called from outside, is a session of `autopar.serving`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import torch

from autopar.base.arguments import CALLABLE, FLAG, PATH, Kind, expect
from autopar.base.errors import InvalidInputError
from autopar.ir.builds.files import Build, read_build
from autopar.runtime.execute.distributed import read_or_tell
from autopar.runtime.execute.session import Session
from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.init.initialize import MakeModel
from autopar.runtime.job.patience import DEFAULT_START_TIMEOUT, DEFAULT_TIMEOUT
from autopar.runtime.job.processes import Processes
from autopar.runtime.ports.rates import trains
from autopar.runtime.tracing.tracer import Trace
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.trainer import Trainer


class Opening(TypedDict, total=False):
    """How a build is opened: what `load` takes and explains, for type checkers."""

    virtual: bool
    device: torch.device | str
    init: MakeModel | None
    resume: str | Path | None
    weights: str | Path | Sequence[str | Path]
    seed: int | None
    check_loss: bool | str
    backend: str
    timeout: float
    start_timeout: float
    torch_compile: bool | None
    cuda_graphs: bool
    processes: Processes | None
    on_failure: Callable[[RankFailure], None] | None
    check_inputs: bool
    trace: Trace | str | Path | None


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
    device: torch.device | str = "cpu",
    init: MakeModel | None = None,
    resume: str | Path | None = None,
    weights: str | Path | Sequence[str | Path] = (),
    seed: int | None = None,
    check_loss: bool | str = True,
    backend: str = "auto",
    timeout: float = DEFAULT_TIMEOUT,
    start_timeout: float = DEFAULT_START_TIMEOUT,
    torch_compile: bool | None = None,
    cuda_graphs: bool = False,
    processes: Processes | None = None,
    on_failure: Callable[[RankFailure], None] | None = None,
    check_inputs: bool = True,
    trace: Trace | str | Path | None = None,
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
        device: Where this process computes then, as `cuda`; in a job, ranks choose for themselves.
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
        check_loss: Of a build that trains: whether a step whose loss isn't finite changes nothing.
            By default that is raised by the step itself; of a build for GPUs, whose host would wait
            for each loss, by the step two behind, or `Trainer.check_losses`. `now` and `later` say
            which.
        backend: `gloo` (on the CPU), `nccl` (on GPUs), or `auto`: what the build is for.
        timeout: Seconds that each collective waits for the other ranks. In a process group of the
            user's own, among all ranks, its own time-out counts.
        start_timeout: Seconds that the start waits for the other ranks, all its steps together.
        torch_compile: Whether to run the program through `torch.compile`; by default on GPUs.
        cuda_graphs: Whether a GPU is told of a step once, and then to do it again, which spares the
            host much; where it can be: where no state waits on the host, nor grows.
        processes: Who this process is; by default what the launcher says.
        on_failure: See `Supervisor`.
        check_inputs: Whether the ranks compare their inputs, which must be the same, and what they
            load. Of large inputs each call compares a twentieth.
        trace: Where to write when each op of each rank ran, or a `Trace`, which says of which
            calls; by default nothing is recorded.

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
    if not virtual and str(device) != "cpu":
        raise InvalidInputError("ranks choose their devices, so leave out device=, or say virtual=")
    if virtual and trace is not None:
        raise InvalidInputError("ranks in one process take turns, so leave out trace= or virtual=")
    joined: dict[str, Any] = {
        "backend": backend,
        "timeout": timeout,
        "start_timeout": start_timeout,
        "torch_compile": torch_compile,
        "cuda_graphs": cuda_graphs,
        "processes": processes,
        "on_failure": on_failure,
        "check_inputs": check_inputs,
        "trace": trace,
    }
    file = read_build(build) if virtual else read_or_tell(build, **joined)
    found: Trainer | Session
    if _as(kind, file) is Trainer:
        trained: dict[str, Any] = {"virtual": virtual, "seed": seed, "check_loss": check_loss}
        found = open_trainer(build, weights=weights, device=device, **trained, **joined)
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


def _check_session(
    build: str | Path, virtual: bool, seed: int | None, check_loss: bool | str
) -> None:
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


_KIND = Kind(
    lambda value: any(value is each for each in (None, Trainer, Session)),
    "runtime.Trainer or runtime.Session",
)
