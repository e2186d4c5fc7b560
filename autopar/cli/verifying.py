"""The command `autopar verify`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from autopar.base.errors import InvalidInputError
from autopar.base.units import counted, human_bytes
from autopar.cli.console import PositiveNumber, Seed, status, unsuited
from autopar.cli.inputs import INPUTS, read_inputs
from autopar.cli.options import MODULES, PATH
from autopar.cli.show import show_verdicts


@click.command("verify", short_help="Compare every rank's program with the serial program.")
@click.argument("build", type=PATH)
@click.option(
    "--against",
    type=PATH,
    metavar="MODEL.onnx",
    help="Compare the outputs with ONNX Runtime's too, if it is installed.",
)
@click.option(
    "--files",
    "files_only",
    is_flag=True,
    help="Only read all files, weights too, and compare them with their digests.",
)
@INPUTS
@click.option(
    "--seed",
    type=Seed(),
    default=0,
    show_default=True,
    help="Makes up the inputs that are not given, and the program's random numbers.",
)
@MODULES
@click.option(
    "--tolerance",
    type=PositiveNumber(),
    help="Largest error that passes, relative to a value's largest element, if it is more than 8"
    " times the rounding of the value's dtype, which always pass.  [default: 1e-4; 1e-5 with"
    " --per-op]",
)
@click.option(
    "--per-op",
    is_flag=True,
    help="Judge every op on the serial program's inputs: for models that quantize as they run,"
    " where rounding amplifies harmless differences.",
)
def verify_command(
    build: Path,
    against: Path | None,
    inputs: tuple[str, ...],
    seed: int,
    modules: tuple[str, ...],
    tolerance: float | None,
    per_op: bool,
    files_only: bool,
) -> None:
    """Compare every rank's program with the serial program, op by op.

    All ranks run in this process. On a difference it names the first op that diverges, its ranks
    and where in the model it comes from, and exits with 1. Weights are compared with their digests
    first; --files does that for all files, and nothing else. It takes checkpoints too, or a folder
    of several, and safetensors files or folders of Hugging Face's, which have no digests: of these
    it compares headers, lengths and the index.

    \b
    Examples:
      autopar verify build/
      autopar verify build/ --files
      autopar verify checkpoints/ --files
      autopar verify build/ --against model.onnx --input ids=ids.npy
    """
    from autopar.analysis.reports import summary as report
    from autopar.cli.oracle import OnnxRuntime
    from autopar.ir.builds.files import read_build
    from autopar.pipeline.device_memory import check_machine_memory, machine_bytes
    from autopar.runtime import api
    from autopar.runtime.execute.libraries import import_modules
    from autopar.runtime.ports.ports import seed_input
    from autopar.runtime.verification.verification import FREE_TOLERANCE, compare_outputs

    if files_only:
        _verify_files(build)
        return
    found = read_build(build)
    check_machine_memory(found.serial, machine_bytes())
    import_modules(modules)
    judge = OnnxRuntime(against, found.serial) if against is not None else None
    arrays = read_inputs(build, inputs, seed)
    drawing = seed_input(found.serial)
    if drawing is not None:
        arrays.setdefault(drawing.user_label, seed)
    with status("comparing all ranks"):
        result = api.verify(build, arrays, per_op=per_op, tolerance=tolerance)
    show_verdicts(report.render_verification(result, found.deployment.world_size))
    ok = result.ok
    if judge is not None:
        with status("running ONNX Runtime"):
            expected = judge.run(arrays)
            found_outputs = api.run(build, arrays, virtual=True, updates=True)
        allowed = tolerance or FREE_TOLERANCE
        differences = compare_outputs(found_outputs, expected, allowed, found.serial)
        show_verdicts(report.render_outputs_compared(differences, "ONNX Runtime", judge.random))
        ok = ok and all(difference.ok for difference in differences.values())
    if not ok:
        sys.exit(1)


def _verify_files(folder: Path) -> None:
    from autopar.ir.builds.files import read_build
    from autopar.runtime import api
    from autopar.runtime.checkpoint.checked import checkpoints_in
    from autopar.runtime.weights.checked import holds_weights

    unsuited(
        "--files compares no values, so there is nothing to do for",
        ("against", "inputs", "seed", "modules", "tolerance", "per_op"),
    )
    if checkpoints := checkpoints_in(folder):
        _verify_checkpoints(checkpoints)
        return
    if holds_weights(folder):
        _verify_weights(folder)
        return
    found = read_build(folder)
    with status("reading all files"):
        api.check_files(found)
    files = found.manifest.files
    size = human_bytes(sum(file.bytes for file in files))
    click.echo(f"{counted(len(files), 'file')} of {size} compared with what was written:  ok")


def _verify_weights(path: Path) -> None:
    from autopar.runtime.weights.checked import check_weights_given

    with status("reading all files"):
        found = check_weights_given(path)
    click.echo(
        f"{counted(found.files, 'file')} of {human_bytes(found.bytes)} read:"
        f" {counted(found.tensors, 'tensor')}, as headers and index say; they have no digests, so"
        " a flipped bit isn't noticed:  ok"
    )


def _verify_checkpoints(folders: Sequence[Path]) -> None:
    from autopar.runtime.checkpoint.checked import check_checkpoint

    right, damages = [], []
    for folder in folders:
        try:
            with status(f"reading {folder}"):
                found = check_checkpoint(folder)
        except InvalidInputError as error:
            damages.append(str(error))
            continue
        pieces = counted(found.pieces, "piece")
        how = "read, which have no digests" if found.undigested else "compared with what was saved"
        right.append(f"{folder}: {pieces} of tensors, {human_bytes(found.bytes)}, {how}:  ok")
    if damages:
        raise InvalidInputError("\n".join(damages))
    click.echo("\n".join(right))
