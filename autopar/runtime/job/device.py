"""Where a rank computes, and what its process groups send through there."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from autopar.base.arguments import expect, one_of, shown
from autopar.base.errors import InvalidInputError, RuntimeFailure
from autopar.base.units import counted
from autopar.ir.builds.files import Build
from autopar.ir.devices import CPU, CUDA
from autopar.runtime.job.processes import Processes


def choose_device(
    backend: str, processes: Processes, mesh: object = None, tensors: Iterable[Tensor] = ()
) -> torch.device:
    """Returns where a rank computes: where what the user has is, else as the backend says.

    Args:
        backend: `gloo` (on the CPU), `nccl` (on a GPU of the rank's own), or `auto`: nccl where
            there are GPUs.
        processes: Who this process is.
        mesh: The mesh as the user gave it. A DeviceMesh says where before all else.
        tensors: The user's, as those of a model: the first that has values says where.

    Raises:
        RuntimeFailure: If nccl is asked for and there are fewer GPUs than ranks.
    """
    if isinstance(mesh, DeviceMesh):
        if mesh.device_type == "cuda":
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device(mesh.device_type)
    found = next((each.device for each in tensors if not each.is_meta), None)
    return _device_of(backend, processes) if found is None else found


def backend_for(backend: str, build: Build) -> str:
    """Returns the backend that `auto` means for a build: gloo for one that was compiled for CPUs.

    Args:
        backend: What the user says.
        build: What is to be run.
    """
    return "gloo" if backend == "auto" and build.manifest.device == CPU else backend


def check_device(device: torch.device, build: Build) -> None:
    """Refuses a device that a build wasn't compiled for.

    Args:
        device: Where a rank is about to compute.
        build: What it is to run. Builds of older versions don't say what they are for.

    Raises:
        RuntimeFailure: If the build is for devices of another type.
    """
    wanted = build.manifest.device
    if wanted in ("", device.type):
        return
    others = f"compile the model again with device={device.type!r} (--device {device.type})"
    if wanted == CUDA:
        reach = "" if torch.cuda.is_available() else ", and torch finds no GPU here"
        raise RuntimeFailure(
            f"{build.path} was compiled for {wanted}, but this rank computes on the CPU{reach};"
            f" use the backend nccl on a host with GPUs, run all ranks in one process (virtual), or"
            f" {others}"
        )
    raise RuntimeFailure(
        f"{build.path} was compiled for {wanted}, but this rank computes on {device.type}; use the"
        f" backend gloo, or {others}"
    )


def device_for_all(device: torch.device | str, build: Build) -> torch.device:
    """Returns the device on which one process computes what a build's ranks do.

    A CPU computes what any build does.

    Args:
        device: As the user names it, as `cuda` or `cuda:1`.
        build: What it is to run.

    Raises:
        InvalidInputError: If there is no such device, or the build is for devices of another type.
    """
    expect(_DEVICE, device=device)
    try:
        found = torch.empty(0, device=device).device
    except (RuntimeError, TypeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidInputError(f"device={shown(str(device))} can't be used: {reason}") from error
    wanted = build.manifest.device
    if wanted not in ("", found.type) and found.type != CPU:
        raise InvalidInputError(
            f"device={shown(str(device))}: {build.path} was compiled for {wanted}; compile the"
            f" model again with device={found.type!r}, or leave it out here"
        )
    return found


def backend_of(device: torch.device) -> str:
    """Returns the backend of the process groups that send from a device."""
    return "nccl" if device.type == "cuda" else "gloo"


def _device_of(backend: str, processes: Processes) -> torch.device:
    if backend not in ("auto", "gloo", "nccl"):
        raise RuntimeFailure(f"unknown backend {backend!r}: use auto, gloo or nccl")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if backend == "gloo" or (backend == "auto" and count == 0):
        return torch.device("cpu")
    if count == 0:
        raise RuntimeFailure(
            "the backend nccl wants a GPU for each rank, and torch finds none here; use a host with"
            " GPUs, or compile for CPUs and use the backend gloo"
        )
    if count < processes.local_size:
        raise RuntimeFailure(
            f"{counted(processes.local_size, 'rank')} on this host but {counted(count, 'GPU')}, and"
            " nccl wants one for each; start fewer ranks per host, compile for fewer, or use the"
            " backend gloo"
        )
    return torch.device("cuda", processes.local_rank)


_DEVICE = one_of(str, torch.device, words="a device, as 'cpu'")
