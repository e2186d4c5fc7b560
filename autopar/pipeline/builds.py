"""Build folders: what was compiled is written into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autopar.ir.program import Program
from autopar.pipeline.decided import Compiled
from autopar.pipeline.recorded import recorded
from autopar.version import __version__

if TYPE_CHECKING:
    import torch


def write(
    compiled: Compiled,
    weights: Mapping[str, torch.Tensor],
    path: Path,
    variants: Sequence[Compiled] = (),
) -> None:
    """Writes a build folder; an old build at `path` stays whole until the new one is complete.

    Args:
        compiled: The compiled program.
        weights: What it stores, by name.
        path: The folder.
        variants: Programs over the same weights for inputs of other shapes.

    Raises:
        InvalidInputError: If the folder can't be written, or is something else than a build.
    """
    from autopar.ir.builds.files import write_build
    from autopar.runtime.weights.writing import write_digested

    write_build(
        path,
        serial=compiled.serial,
        deployment=compiled.deployment,
        autopar_version=__version__,
        report=compiled.report,
        write_weights=lambda file: write_digested(file, weights),
        variants=[(each.serial, each.deployment) for each in variants],
        completed=compiled.completed if _has_bodies(compiled.completed) else None,
        options=recorded(compiled.options),
        device=compiled.options.device,
    )


def _has_bodies(program: Program) -> bool:
    return any(op.dist is not None and op.dist.body for op in program.main.ops)
