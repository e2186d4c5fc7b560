"""Opening a trainer: of this process's rank of a build, or of all ranks on the virtual mesh."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from autopar.base.arguments import FLAG, WHOLE, Kind, expect
from autopar.base.errors import InvalidInputError
from autopar.ir.builds.files import Build, read_build
from autopar.ir.devices import CUDA
from autopar.ir.memory.transfers import hosted
from autopar.ir.program import WRITTEN, Program
from autopar.runtime.execute.distributed import JobRank, read_or_tell
from autopar.runtime.execute.gate import Gate
from autopar.runtime.execute.ranks import Ranks
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.job.device import device_for_all
from autopar.runtime.training.trainer import Trainer
from autopar.runtime.weights.weights import WeightFile, weight_paths


def open_trainer(
    build: str | Path,
    *,
    virtual: bool = False,
    device: torch.device | str = "cpu",
    seed: int | None = None,
    check_loss: bool | str = True,
    weights: str | Path | Sequence[str | Path] = (),
    **options: Any,
) -> Trainer:
    """Returns a trainer of this process's rank of a build, in a job that torchrun started.

    Args:
        build: The folder of a training build.
        virtual: Whether all ranks run in this process instead, without a job.
        device: Where they compute then.
        seed: What the random numbers of all steps depend on; by default the build's own.
        check_loss: Whether a step whose loss isn't finite changes nothing: see `load`.
        weights: A safetensors file with weights to start from, or a folder or index of Hugging
            Face's, of which each rank reads its slices; or several. They count before those of
            the build, which may have none.
        options: Those of `Session`, unless `virtual`.

    Raises:
        InvalidInputError: If the build is damaged, or is not one that trains.
        RuntimeFailure: If the ranks differ, or another rank failed.
    """
    expect(FLAG, virtual=virtual)
    expect(_CHECK, check_loss=check_loss)
    expect(WHOLE.or_none, seed=seed)
    found = read_build(build) if virtual else read_or_tell(build, **options)
    gate = Gate(check_loss is not False, later=_is_later(check_loss, found))
    if virtual:
        with WeightFile(*weight_paths(weights), build=found) as file:
            where = device_for_all(device, found)
            ranks: Ranks = VirtualMesh(found.deployment, file, gate.in_place, where)
    else:
        ranks = JobRank(build, in_place=gate.in_place, weights=weights, **options)
    values = found.serial.main.values
    layouts = {name: value.dist for name, value in values.items() if value.dist is not None}
    try:
        return Trainer(ranks, gate, found, seed=seed, layouts=layouts)
    except BaseException:
        ranks.close()
        raise


NOW, LATER = "now", "later"

_CHECK = Kind(
    lambda value: isinstance(value, bool) or (isinstance(value, str) and value in (NOW, LATER)),
    f"True, False, {NOW!r} or {LATER!r}",
)


def _is_later(check_loss: bool | str, build: Build) -> bool:
    """Returns whether the device judges losses, and the host learns of it later.

    Raises:
        InvalidInputError: If the user says so, and the host has to know at once.
    """
    deployments = (build.deployment, *(each.deployment for each in build.variants))
    programs = [program for each in deployments for program in each.programs]
    possible = not any(map(_acts_on_host, programs))
    if check_loss == LATER and not possible:
        raise InvalidInputError(
            f"check_loss={LATER!r}: state of {build.path} is on the host, or its forward writes to"
            f" the batch, which waits for losses; say {NOW!r}"
        )
    return check_loss == LATER or (possible and check_loss != NOW and build.manifest.device == CUDA)


def _acts_on_host(program: Program) -> bool:
    """Returns whether the host changes what a step leaves, so that it must know how it went."""
    return bool(hosted(program)) or any(p.role == WRITTEN for p in program.signature.outputs)
