"""Build folders: what was compiled is written into one, also straight from an ONNX file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autopar import __version__
from autopar.annotate import MeshLike
from autopar.annotate.mapping_text import Entry
from autopar.cost import Cluster
from autopar.ir.program import Program
from autopar.mapping import Placement
from autopar.pipeline.options import CompileOptions
from autopar.pipeline.passes import Compiled, compile_program, with_fastest_mesh
from autopar.planning.recorded import Recorded

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
    from autopar.ir.build import write_build
    from autopar.runtime.weights import write_weights

    chosen = compiled.options
    write_build(
        path,
        serial=compiled.serial,
        deployment=compiled.deployment,
        autopar_version=__version__,
        report=compiled.report,
        write_weights=lambda file: write_weights(file, weights),
        variants=[(each.serial, each.deployment) for each in variants],
        completed=compiled.completed if _has_bodies(compiled.completed) else None,
        options=Recorded(chosen.cluster, chosen.strategy, chosen.memory_bytes).text(),
    )


def _has_bodies(program: Program) -> bool:
    return any(op.dist is not None and op.dist.body for op in program.main.ops)


def compile_onnx(
    model: str | Path,
    build: str | Path,
    *,
    mesh: MeshLike | None = None,
    devices: int | None = None,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    strategy: str | None = "",
    shard: Mapping[str, Sequence[Entry]] | None = None,
    cluster: str | Cluster = "cpu",
    placement: Placement = "identity",
    memory: str | int | None = None,
    seconds_limit: float | None = None,
    plan: str | Path | None = None,
) -> Compiled:
    """Compiles an ONNX file into a build folder.

        >>> compile_onnx(
        ...     "model.onnx", "build/", mesh="dp=2,tp=4", dims={"batch": 8},
        ...     shard={"encoder.*.weight": [None, "tp"]},
        ... )  # doctest: +SKIP

    Args:
        model: The file.
        build: The folder to write; an older build there is replaced.
        mesh: The processes: a mesh, a torch DeviceMesh, or text as `2x4` or `dp=2,tp=4`.
        devices: In the place of a mesh: how many processes; the fastest shape is searched.
        dims: Sizes of symbolic dimensions.
        input_shapes: Shapes of inputs.
        strategy: `auto`, or "", to search for what is fastest; presets as `data:0,tensor:1`;
            `none` or None for nothing but the pins.
        shard: Pins: a dims_mapping by name pattern.
        cluster: The hardware: a profile's name, a YAML file, or a Cluster.
        placement: Which logical process each rank carries out.
        memory: What a device may hold at once: bytes, or text as `24GiB`.
        seconds_limit: Wall time of a search, after which it takes the best plan so far.
        plan: A file with pins, or a plan that `autopar plan` wrote.

    Raises:
        AutoparError: If the model, an option or a pin can't be used as given.
    """
    from autopar.frontend.onnx import import_onnx

    imported = import_onnx(model, dims=dims, input_shapes=input_shapes)
    options = CompileOptions.of(
        mesh=mesh,
        devices=devices,
        strategy=strategy,
        shard=shard,
        cluster=cluster,
        placement=placement,
        memory=memory,
        seconds_limit=seconds_limit,
        plan=plan,
    )
    report = imported.report
    if devices is not None:
        options, tried = with_fastest_mesh(imported.program, options)
        report = (*report, tried)
    compiled = compile_program(imported.program, options, report=report)
    write(compiled, imported.weights, Path(build))
    return compiled
