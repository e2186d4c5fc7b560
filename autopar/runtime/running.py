"""Running a build once: in processes of this host, or within this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autopar.base.arguments import FLAG, expect
from autopar.base.errors import InvalidInputError
from autopar.ir.builds.files import read_build
from autopar.runtime.execute.serial import run_serial, whole_weights
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.job.device import device_for_all
from autopar.runtime.job.launcher import launch
from autopar.runtime.job.patience import DEFAULT_START_TIMEOUT, DEFAULT_TIMEOUT
from autopar.runtime.ports.open_inputs import ranks_for, serial_for
from autopar.runtime.ports.ports import Arrays, labelled_inputs
from autopar.runtime.weights.weights import WeightFile


def run(
    build: str | Path,
    inputs: Arrays | Sequence[Any],
    *,
    virtual: bool = False,
    serial: bool = False,
    updates: bool = False,
    device: torch.device | str = "cpu",
    backend: str = "auto",
    timeout: float = DEFAULT_TIMEOUT,
    start_timeout: float = DEFAULT_START_TIMEOUT,
    torch_compile: bool = False,
    threads: int = 1,
    modules: Sequence[str] = (),
    trace: str | Path | None = None,
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
        device: Where this process computes, if `virtual` or `serial`.
        backend: Of processes: `gloo` (on the CPU), `nccl` (on GPUs), or `auto`: what the build
            is for.
        timeout: Of processes: seconds that each collective waits for other ranks.
        start_timeout: Of processes: seconds that the start does.
        torch_compile: Of processes: whether they run the programs through `torch.compile`.
        threads: Of processes: threads that each computes with.
        modules: Of processes: what each imports first, which registers ops of other libraries.
        trace: Of processes: where to write when each op of each ran.

    Raises:
        InvalidInputError: If the inputs don't fit the program, or an argument doesn't fit another.
        RuntimeFailure: If an op or a rank fails, or the ranks' collectives don't match.
    """
    expect(FLAG, virtual=virtual, serial=serial, updates=updates)
    started = {
        "backend": backend,
        "timeout": timeout,
        "start_timeout": start_timeout,
        "torch_compile": torch_compile,
        "threads": threads,
        "modules": modules,
        "trace": trace,
    }
    if virtual or serial:
        _refuse_other("no processes are started", started, _OF_PROCESSES)
    if virtual and serial:
        raise InvalidInputError("virtual=True and serial=True: give one of them")
    if serial:
        _refuse_other("the serial program is run", {"updates": updates}, {"updates": False})
        return _run_serial(build, inputs, device)
    if virtual:
        return _run_virtual(build, inputs, updates, device)
    _refuse_other("ranks choose their devices", {"device": str(device)}, {"device": "cpu"})
    return launch(build, inputs, updates=updates, **started)  # type: ignore[arg-type]


_OF_PROCESSES: Mapping[str, object] = {
    "backend": "auto",
    "timeout": DEFAULT_TIMEOUT,
    "start_timeout": DEFAULT_START_TIMEOUT,
    "torch_compile": False,
    "threads": 1,
    "modules": (),
    "trace": None,
}
"""What is said of processes that are started where nothing is."""


def _refuse_other(why: str, given: Mapping[str, object], usual: Mapping[str, object]) -> None:
    """Refuses arguments that mean nothing beside others, unless they are as usual."""
    odd = [name for name, value in given.items() if not _is_usual(value, usual[name])]
    if odd:
        raise InvalidInputError(f"{why}, so leave out {', '.join(f'{name}=' for name in odd)}")


def _is_usual(value: object, usual: object) -> bool:
    plain = tuple(value) if isinstance(value, list) else value
    return (plain is None or isinstance(plain, str | int | float | tuple)) and plain == usual


def _run_virtual(
    build: str | Path,
    inputs: Arrays | Sequence[Any],
    updates: bool,
    device: torch.device | str,
) -> dict[str, Tensor]:
    found = read_build(build)
    where = device_for_all(device, found)
    tensors = labelled_inputs(found.serial, inputs)
    deployment = ranks_for(found.deployment, found.serial, tensors)
    with WeightFile(build=found) as weights:
        mesh = VirtualMesh(deployment, weights, device=where)
    return mesh.run(tensors, updates=updates, write=True)


def _run_serial(
    build: str | Path, inputs: Arrays | Sequence[Any], device: torch.device | str
) -> dict[str, Tensor]:
    found = read_build(build)
    where = device_for_all(device, found)
    tensors = labelled_inputs(found.serial, inputs)
    serial = serial_for(found.serial, tensors)
    return run_serial(serial, whole_weights(found), tensors, device=str(where))
