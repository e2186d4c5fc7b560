"""The command `autopar compile`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autopar.base.errors import InvalidInputError, near_misses
from autopar.cli.console import status, usage
from autopar.cli.models import ModelOptions, model_options
from autopar.cli.options import PATH, PROFILES, named_cluster
from autopar.cli.progress import progress
from autopar.ir.devices import DEVICES

if TYPE_CHECKING:
    from autopar.ir.program import Program
    from autopar.pipeline import Observer


@click.command("compile")
@click.argument("model", type=PATH)
@click.option(
    "--mesh",
    metavar="SIZES",
    help="The processes, as 2x4, or with names for the axes, as dp=2,tp=4.",
)
@click.option(
    "--devices",
    type=int,
    metavar="NUMBER",
    help="In the place of a mesh: how many processes; the fastest shape is searched.",
)
@click.option(
    "--time-limit",
    type=float,
    metavar="SECONDS",
    help="After this long, the search takes the best plan so far.",
)
@click.option(
    "--effort",
    type=float,
    default=1.0,
    show_default=True,
    metavar="TIMES",
    help="How many times the usual work the search may do: more may find a faster plan.",
)
@click.option(
    "-o",
    "--build",
    type=PATH,
    default=Path("build"),
    show_default=True,
    metavar="FOLDER",
    help="The build to write. An older build there stays whole until the new one is complete.",
)
@model_options
@click.option(
    "--cluster",
    default="cpu",
    show_default=True,
    metavar="NAME|FILE.yaml",
    help="The hardware whose figures guide the choices: a built-in profile"
    f" ({', '.join(PROFILES)}) or a file.",
)
@click.option(
    "--device",
    type=click.Choice(DEVICES),
    help="What the program is for: ops that only other devices have kernels for are replaced, or"
    " refused.  [default: what the cluster's devices are]",
)
@click.option(
    "--placement",
    default="identity",
    show_default=True,
    metavar="identity|auto|IDS",
    help="The process that each rank carries out: its own number; auto: the axis that"
    " communicates most on the fastest links; or ids as 0,2,1,3, or a file with them.",
)
@click.option(
    "--memory",
    metavar="24GiB",
    help="What a device may hold at once. What doesn't fit is computed again where it is needed.",
)
@click.option(
    "--offload",
    multiple=True,
    metavar="parameters|PATTERN",
    help="Let weights wait in the host's memory until they are read: all, or by name. By default"
    " --memory decides, where the cluster has a link to that memory. Repeatable.",
)
@click.option(
    "--chunks",
    multiple=True,
    metavar="NAME=PARTS",
    help="Compute a module, or what is around a value, in parts, one after another, so that it"
    " is never there as a whole; NAME=DIM:PARTS says along which dimension. Repeatable.",
)
@click.option(
    "--print-after",
    "print_after",
    multiple=True,
    metavar="PASS",
    help="Print the program after a pass, as complete or partition; a name that no pass has gets"
    " them all listed. Repeatable.",
)
@click.option("--no-verify", is_flag=True, help="Don't check the program after each pass.")
@click.option("-q", "--quiet", is_flag=True, help="Don't print the summary.")
def compile_command(
    model: Path,
    mesh: str | None,
    devices: int | None,
    time_limit: float | None,
    effort: float,
    build: Path,
    given: ModelOptions,
    cluster: str,
    device: str | None,
    placement: str,
    memory: str | None,
    offload: tuple[str, ...],
    chunks: tuple[str, ...],
    print_after: tuple[str, ...],
    no_verify: bool,
    quiet: bool,
) -> None:
    """Compile the ONNX file MODEL for a mesh of processes.

    \b
    Examples:
      autopar compile model.onnx --mesh 8 --dims batch=8
      autopar compile model.onnx --mesh 2x4 --strategy data:0,tensor:1 -o build/
      autopar compile model.onnx --mesh dp=2,tp=4 --shard 'encoder.*.weight=[-1,tp]'
      autopar compile model.onnx --mesh 4 --strategy none --shard 'ids=[(0),-1]'
      autopar compile model.onnx --mesh 2x4 --print-after complete | less
      autopar compile model.onnx --mesh 2x4 --memory 24GiB --time-limit 60
      autopar compile model.onnx --mesh 8 --cluster h100 --offload parameters
      autopar compile model.onnx --mesh 2 --chunks lm_head=8
      autopar compile model.onnx --devices 64 --cluster h100
      autopar compile model.onnx --mesh 8 --device cuda
      autopar compile model.onnx --mesh pp=4,tp=2 --pipeline pp --microbatches 8
    """
    from autopar import pipeline
    from autopar.base.file import is_stdout
    from autopar.compiled import CompiledModel
    from autopar.completion.search.watch import Watch
    from autopar.ir.builds.files import check_output
    from autopar.mapping import parse_placement
    from autopar.pipeline.arguments import on_command_line

    # What is wrong with a file is no wrong usage, as a wrong text is.
    placed = parse_placement(placement) if os.path.isfile(placement) else placement
    options = pipeline.CompileOptions.from_text(
        words=usage,
        mesh=mesh,
        devices=devices,
        strategy=given.strategy,
        shards=given.shard,
        cluster=named_cluster(cluster),
        device=device,
        placement=placed,
        memory=memory,
        time_limit=time_limit,
        effort=effort,
        plan=given.plan,
        verify=not no_verify,
    )
    options = given.in_stages(options).offloading(offload or None, on_command_line)
    with usage():
        options = options.with_chunk_texts(chunks)
        observer = _printer(print_after)
    if is_stdout(build):
        raise click.UsageError("-o -: a build is a folder; name one, as -o build/")
    check_output(build)
    with status(f"importing {model.name}"):
        imported = given.load(model)
        imported = imported.recognized(options.pinned(imported.program))
    text = f"compiling for {options.mesh.size} processes"
    with progress(text, hidden=bool(print_after)) as tell:
        watch = Watch(time_limit, tell, effort=options.effort)
        compiled = pipeline.compile_program(
            imported.program, options, observer, imported.report, watch=watch
        )
    made = CompiledModel.of(compiled, imported.program, imported.weights)
    with status(f"writing {build}"):
        made.save(build)
    if not quiet:
        click.echo(made.summary())


def _printer(names: Sequence[str]) -> Observer | None:
    """Returns an observer that prints the program after the named passes; None for no names.

    Raises:
        InvalidInputError: If there is no pass of a name.
    """
    from autopar.ir.text import print_program
    from autopar.pipeline import PASSES

    for name in names:
        if name not in PASSES:
            raise InvalidInputError(
                f"--print-after {name}: no such pass, only {', '.join(PASSES)}"
                f"{near_misses(name, PASSES)}"
            )

    def show(name: str, program: Program) -> None:
        if name in names:
            click.echo(print_program(program))

    return show if names else None
