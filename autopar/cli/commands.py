"""The command line: autopar compile | inspect | run | verify.

Heavy imports happen inside the commands, so that `autopar --help` answers at once.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from autopar import __version__
from autopar.cli.console import Commands, PositiveNumber, status, unsuited, usage
from autopar.cli.options import (
    ANNOTATIONS,
    DIMS,
    EXTERNAL,
    PATH,
    PROFILES,
    SHAPES,
    SHARDS,
    STRATEGY,
)
from autopar.cli.planning import (
    calibrate_command,
    diff_command,
    explain_command,
    plan_command,
)
from autopar.cli.profiling import profile_command
from autopar.ir.errors import InvalidInputError

RANK_BYTES = 200 * 2**20
"""Memory that a process takes at least when it has loaded PyTorch."""

MODULES = click.option(
    "--import",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="Import a Python module first: one that registers the model's custom ops with torch."
    " Repeatable.",
)
INPUT_HELP = "An input, by its name in the model; or an .npz or .safetensors file with several."


@click.group(
    "autopar",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="autopar")
@click.option("--traceback", is_flag=True, help="Show where in autopar an error was raised.")
def main(traceback: bool) -> None:
    """Compile a model written for one device into one program per rank, and run them.

    \b
    Examples:
      autopar compile model.onnx --mesh 2x4 --dim batch=8 -o build/
      autopar inspect build/                   what it costs
      autopar inspect build/ --rank 5          what rank 5 runs
      autopar run build/ --random-inputs 0     8 processes on this host
      autopar verify build/ --against model.onnx

    On a cluster, torch's launcher starts the ranks:

    \b
      torchrun --nproc-per-node 8 -m autopar.runtime build/ --input ids=ids.npy

    Exit codes: 0 done; 1 the model, build or data can't be used as given, or are found to differ;
    2 wrong usage; 70 a defect of autopar; 130 interrupted.
    """
    del traceback  # `Commands` looks at it.


@main.command("compile")
@click.argument("model", type=PATH)
@click.option(
    "--mesh",
    metavar="SIZES",
    help="The processes, as 2x4, or with names for the axes, as dp=2,tp=4.",
)
@click.option(
    "--devices",
    type=click.IntRange(1),
    metavar="NUMBER",
    help="In the place of a mesh: how many processes; the fastest shape is searched.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="After this long, --strategy auto takes the best plan so far.",
)
@click.option(
    "-o",
    "--output",
    type=PATH,
    default=Path("build"),
    show_default=True,
    metavar="FOLDER",
    help="The build to write. An older build there stays whole until the new one is complete.",
)
@DIMS
@SHAPES
@STRATEGY
@SHARDS
@ANNOTATIONS
@click.option(
    "--cluster",
    default="cpu",
    show_default=True,
    metavar="NAME|FILE.yaml",
    help="The hardware whose figures guide the choices: a built-in profile"
    f" ({', '.join(PROFILES)}) or a file.",
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
@EXTERNAL
@click.option(
    "--print-after",
    "print_after",
    multiple=True,
    metavar="PASS",
    help="Print the program after annotate, complete, legalize, partition, recompute, map or"
    " strip. Repeatable.",
)
@click.option("--no-verify", is_flag=True, help="Don't check the program after each pass.")
@click.option("-q", "--quiet", is_flag=True, help="Don't print the summary.")
def compile_command(
    model: Path,
    mesh: str | None,
    devices: int | None,
    time_limit: float | None,
    output: Path,
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
    strategy: str,
    shards: tuple[str, ...],
    annotations: Path | None,
    cluster: str,
    placement: str,
    memory: str | None,
    external: tuple[Path, ...],
    print_after: tuple[str, ...],
    no_verify: bool,
    quiet: bool,
) -> None:
    """Compile the ONNX file MODEL for a mesh of processes.

    \b
    Examples:
      autopar compile model.onnx --mesh 8 --dim batch=8
      autopar compile model.onnx --mesh 2x4 --strategy data:0,tensor:1 -o build/
      autopar compile model.onnx --mesh dp=2,tp=4 --shard 'encoder.*.weight=[-1,tp]'
      autopar compile model.onnx --mesh 4 --strategy none --shard 'ids=[(0),-1]'
      autopar compile model.onnx --mesh 2x4 --print-after complete | less
      autopar compile model.onnx --mesh 2x4 --strategy auto --memory 24GiB
      autopar compile model.onnx --devices 64 --cluster h100
    """
    from autopar import pipeline
    from autopar.ir.build import check_output

    with usage():
        options = pipeline.CompileOptions.from_text(
            mesh=_only_devices(devices, strategy, shards) if mesh is None else mesh,
            cluster=cluster,
            strategy="auto" if mesh is None else strategy,
            shards=shards,
            annotations=annotations,
            placement=placement,
            memory=memory,
            time_limit=time_limit,
            verify=not no_verify,
        )
        observer = pipeline.printer(print_after, click.echo)
        sizes, bound = pipeline.parse_shapes(shapes), pipeline.parse_dims(dims)
    check_output(output)
    with status(f"importing {model.name}"):
        from autopar.frontend.onnx import import_onnx

        imported = import_onnx(model, dims=bound, input_shapes=sizes, allow_external=external)
    if mesh is None:
        with status(f"searching the shape of a mesh of {options.mesh.size} processes"):
            options = pipeline.with_fastest_mesh(imported.program, options)
    with status(f"compiling for {options.mesh.size} processes", hidden=bool(print_after)):
        compiled = pipeline.compile_program(imported.program, options, observer, imported.report)
    with status(f"writing {output}"):
        pipeline.write(compiled, imported.weights, output)
    if not quiet:
        _show_summary(output)


def _only_devices(devices: int | None, strategy: str, shards: tuple[str, ...]) -> str:
    """Returns the mesh to begin with if only the number of processes is given.

    Raises:
        click.UsageError: If it isn't, or something else names the axes of a mesh.
    """
    if devices is None:
        raise click.UsageError("Missing option '--mesh', or --devices")
    if strategy not in ("", "auto") or shards:
        raise click.UsageError("--strategy and --shard name axes of a mesh; give it by --mesh")
    return str(devices)


@main.command("inspect")
@click.argument("path", type=PATH)
@click.option("--rank", type=int, metavar="RANK", help="Show the program that this rank runs.")
@click.option("--serial", is_flag=True, help="Show the serial program with all layouts.")
@click.option("--brief", is_flag=True, help="Leave source locations and reasons out of programs.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "dot"]),
    default="text",
    show_default=True,
    help="dot is a graph for Graphviz; of a build without --rank, of the serial program.",
)
def inspect_command(path: Path, rank: int | None, serial: bool, brief: bool, form: str) -> None:
    """Show a build folder, or any single .pb file of one.

    \b
    Examples:
      autopar inspect build/                       ops, collectives, weights, replicated ops
      autopar inspect build/ --rank 5 --brief | grep comm
      autopar inspect build/ --serial              every layout, and why it was chosen
      autopar inspect build/ --rank 0 --format dot | dot -Tsvg > rank0.svg
      autopar inspect build/ranks.pb               which process each rank carries out
    """
    from autopar.reports import inspection

    if path.is_file():
        unsuited(f"{path} is a single file; it has no", ("rank", "serial"))
        _show_program(inspection.show_file(path, form, brief))
    elif rank is not None:
        unsuited("a rank's program is not", ("serial",))
        _show_program(inspection.show_rank(path, rank, form, brief))
    elif serial or form == "dot":
        _show_program(inspection.show_serial(path, form, brief))
    else:
        unsuited("the summary has no programs for", ("brief",))
        _show_summary(path, form)


for command in (explain_command, diff_command, plan_command, calibrate_command, profile_command):
    main.add_command(command)


@main.command("run")
@click.argument("build", type=PATH)
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE.npy", help=INPUT_HELP)
@click.option(
    "--random-inputs", type=int, metavar="SEED", help="Make up the inputs that are not given."
)
@click.option(
    "--seed",
    type=int,
    metavar="N",
    help="What the program's random numbers depend on, and nothing else.  [default: 0]",
)
@click.option(
    "--output", type=PATH, metavar="FILE.npz", help="Save the outputs; also as .safetensors."
)
@click.option(
    "--updates",
    is_flag=True,
    help="Show and save new content of parameters and other state too. Nothing is kept for a next"
    " run: to train, use autopar.load in Python.",
)
@click.option("--virtual", is_flag=True, help="Run all ranks in this process, step by step.")
@click.option(
    "--backend",
    type=click.Choice(["auto", "gloo", "nccl"]),
    default="auto",
    show_default=True,
    help="gloo runs on CPUs, nccl on GPUs; auto: nccl where there are GPUs.",
)
@MODULES
@click.option("--compile", "torch_compile", is_flag=True, help="Run through torch.compile.")
@click.option(
    "--timeout",
    type=PositiveNumber(),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the start and each collective wait for other ranks.",
)
def run_command(
    build: Path,
    inputs: tuple[str, ...],
    random_inputs: int | None,
    seed: int | None,
    output: Path | None,
    updates: bool,
    virtual: bool,
    backend: str,
    modules: tuple[str, ...],
    torch_compile: bool,
    timeout: float,
) -> None:
    """Run a build on this host: one process per rank.

    \b
    Examples:
      autopar run build/ --input ids=ids.npy --input mask=mask.npy --output out.npz
      autopar run build/ --input inputs.npz --virtual
      autopar run build/ --random-inputs 0
    """
    if virtual:
        others = ("backend", "torch_compile", "timeout")
        unsuited("with --virtual no processes are started, which rules out", others)
    from autopar.reports import summary as report
    from autopar.runtime import api, files
    from autopar.runtime.libraries import import_modules

    import_modules(modules)
    if output is not None:
        files.check_output(output)
    arrays = _with_seed(build, _read_inputs(build, inputs, random_inputs), seed)
    if virtual:
        with status("running all ranks in this process"):
            outputs = api.run_virtual(build, arrays, updates=updates)
    else:
        _check_memory(build)
        with status("running all ranks"):
            outputs = api.launch(
                build,
                arrays,
                backend=backend,
                torch_compile=torch_compile,
                timeout_seconds=timeout,
                modules=modules,
                updates=updates,
            )
    if output is not None:
        api.save_outputs(output, outputs)
    click.echo(report.render_outputs(outputs))


@main.command("verify", short_help="Compare every rank's program with the serial program.")
@click.argument("build", type=PATH)
@click.option(
    "--against",
    type=PATH,
    metavar="MODEL.onnx",
    help="Compare the outputs with ONNX Runtime's too, if it is installed.",
)
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE.npy", help=INPUT_HELP)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Makes up the inputs that are not given, and the program's random numbers.",
)
@MODULES
@click.option(
    "--tolerance",
    type=PositiveNumber(),
    help="Largest error that passes, relative to a value's largest element.  [default: 1e-4; 1e-5"
    " with --per-op]",
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
) -> None:
    """Compare every rank's program with the serial program, op by op.

    All ranks run in this process. On a difference it names the first op that diverges, its ranks
    and where in the model it comes from, and exits with 1.

    \b
    Examples:
      autopar verify build/
      autopar verify build/ --against model.onnx --input ids=ids.npy
    """
    from autopar.cli.oracle import OnnxRuntime
    from autopar.ir.build import read_build
    from autopar.reports import summary as report
    from autopar.runtime import api
    from autopar.runtime.libraries import import_modules
    from autopar.runtime.ports import seed_input
    from autopar.runtime.verification import FREE_TOLERANCE, compare_outputs

    import_modules(modules)
    found = read_build(build)
    judge = OnnxRuntime(against, found.serial) if against is not None else None
    arrays = _read_inputs(build, inputs, seed)
    drawing = seed_input(found.serial)
    if drawing is not None:
        arrays.setdefault(drawing.label or drawing.name, seed)
    with status("comparing all ranks"):
        found.check_weights()
        result = api.verify(build, arrays, forced=per_op, tolerance=tolerance)
    _show_verdicts(report.render_verification(result, found.deployment.world_size))
    ok = result.ok
    if judge is not None:
        with status("running ONNX Runtime"):
            expected = judge.run(arrays)
            found_outputs = api.run_virtual(build, arrays)
        allowed = tolerance or FREE_TOLERANCE
        differences = compare_outputs(found_outputs, expected, allowed, found.serial)
        _show_verdicts(report.render_outputs_compared(differences, "ONNX Runtime", judge.random))
        ok = ok and all(difference.ok for difference in differences.values())
    if not ok:
        sys.exit(1)


def _read_inputs(build: Path, specs: tuple[str, ...], seed: int | None) -> dict[str, Any]:
    """Reads and makes up inputs; says how to give those that are missing."""
    from autopar.ir.build import read_build
    from autopar.runtime import api, ports

    arrays = api.read_inputs(build, specs, seed=seed)
    wanted = {port.label or port.name: port for port in ports.user_inputs(read_build(build).serial)}
    needed = [label for label, port in wanted.items() if ports.default_of(port) is None]
    missing = [label for label in needed if label not in arrays]
    # A name that is wrong explains one that is missing, and is reported with it.
    if missing and arrays.keys() <= wanted.keys():
        lines = [
            f"  --input {label}=FILE.npy    {wanted[label].dtype}{list(wanted[label].shape)}"
            for label in missing
        ]
        raise InvalidInputError(
            "\n".join(["inputs are missing:", *lines, "or --random-inputs SEED makes them up"])
        )
    return arrays


def _with_seed(build: Path, arrays: dict[str, Any], seed: int | None) -> dict[str, Any]:
    from autopar.ir.build import read_build
    from autopar.runtime import ports

    return ports.with_seed(read_build(build).serial, arrays, seed)


def _check_memory(build: Path) -> None:
    """Refuses to start more processes than this host can hold."""
    from autopar.ir.build import read_build

    ranks = read_build(build).rank_table.world_size
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if ranks * RANK_BYTES > memory:
        raise InvalidInputError(
            f"{build} is for {ranks} ranks, which take more than the {memory / 2**30:.0f} GiB of"
            " memory of this host; start them on a cluster with torchrun, or say --virtual"
        )


def _show_summary(build: Path, form: str = "text") -> None:
    from autopar.reports import summary as report

    summary = report.summarize(build)
    click.echo(report.to_json(summary) if form == "json" else report.render_summary(summary))


def _show_program(text: str) -> None:
    """Prints a program, on a terminal with its collectives marked."""
    click.echo(re.sub(r"^.* = comm\..*$", _in_color("cyan"), text, flags=re.MULTILINE))


def _show_verdicts(text: str) -> None:
    text = re.sub(r"\bDIFFERENT\b|^first difference:", _in_color("red"), text, flags=re.MULTILINE)
    click.echo(re.sub(r"\bok$", _in_color("green"), text, flags=re.MULTILINE))


def _in_color(color: str) -> Callable[[re.Match[str]], str]:
    return lambda found: click.style(found[0], fg=color)
