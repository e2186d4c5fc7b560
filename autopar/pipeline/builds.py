"""Build folders: what was compiled is written into one, also straight from an ONNX file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from autopar.base.arguments import PATH, expect
from autopar.ir.program import Program
from autopar.pipeline.arguments import CompileArguments
from autopar.pipeline.decided import Compiled
from autopar.pipeline.options import CompileOptions
from autopar.pipeline.passes import compile_program
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
    )


def _has_bodies(program: Program) -> bool:
    return any(op.dist is not None and op.dist.body for op in program.main.ops)


def compile_onnx(
    model: str | Path,
    build: str | Path,
    *,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    **arguments: Unpack[CompileArguments],
) -> Compiled:
    """Compiles an ONNX file into a build folder.

        >>> compile_onnx(
        ...     "model.onnx", "build/", mesh="dp=2,tp=4", dims={"batch": 8},
        ...     shard={"encoder.*.weight": [None, "tp"]},
        ... )  # doctest: +SKIP

    Args:
        model: The file.
        build: The folder to write; an older build there is replaced.
        dims: Sizes of symbolic dimensions.
        input_shapes: Shapes of inputs.
        arguments: How to compile it, as `CompileArguments` explains: `mesh` or `devices`;
            `strategy`, `shard`, `cluster`, `placement`, `memory`, `seconds_limit`, `effort` and
            `plan`.
            Without a backward pass there is nothing for `activations` to be about.

    Raises:
        AutoparError: If the model, an argument or a pin can't be used as given.
    """
    from autopar.frontend.onnx import import_onnx

    expect(PATH, model=model, build=build)
    options = CompileOptions.of(**arguments)
    imported = import_onnx(model, dims=dims, input_shapes=input_shapes)
    compiled = compile_program(imported.program, options, report=imported.report)
    write(compiled, imported.weights, Path(build))
    return compiled
