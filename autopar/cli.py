"""The command line: autopar compile | inspect | run | verify.

Heavy imports happen inside the commands, so that `autopar --help` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from autopar import __version__
from autopar.ir.errors import AutoparError

MODEL = click.Path(path_type=Path)


class Commands(click.Group):
    """A command group that prints a user's mistakes as one message, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command; exit code 1 for an error in the input, 2 for wrong usage."""
        try:
            return super().invoke(ctx)
        except AutoparError as error:
            click.echo(f"{click.style('error:', fg='red', bold=True)} {error}", err=True)
            ctx.exit(1)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="autopar")
def main() -> None:
    """Compile a model written for one device into one program per rank, and run them."""


@main.command("compile")
@click.argument("model", type=MODEL)
@click.option("--mesh", required=True, help="Processes: 2x4, or with axis names dp=2,tp=4.")
@click.option("-o", "--output", type=MODEL, default=Path("build"), show_default=True)
@click.option(
    "--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Bind a symbolic dimension."
)
@click.option(
    "--input-shape", "shapes", multiple=True, metavar="NAME:8,128", help="Fix an input's shape."
)
@click.option(
    "--shard", "shards", multiple=True, metavar="PATTERN=[..]", help="Pin: 'enc.*.weight=[-1,tp]'."
)
@click.option("--annotations", type=MODEL, help="YAML file of pins.")
@click.option(
    "--strategy", default="", help="Presets per mesh axis, e.g. data:0,tensor:1 (the default)."
)
@click.option(
    "--cluster", default="cpu", show_default=True, help="Hardware profile: a name or a YAML file."
)
@click.option(
    "--placement",
    default="identity",
    show_default=True,
    help="Logical processes on ranks: identity, auto, or process ids 0,2,1,3.",
)
@click.option("--allow-external", "external", multiple=True, type=MODEL, metavar="DIR")
@click.option(
    "--print-after", "print_after", multiple=True, metavar="PASS", help="Print the program's text."
)
@click.option("--no-verify", is_flag=True, help="Skip the verifier between passes.")
@click.option("-q", "--quiet", is_flag=True)
def compile_command(
    model: Path,
    mesh: str,
    output: Path,
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
    shards: tuple[str, ...],
    annotations: Path | None,
    strategy: str,
    cluster: str,
    placement: str,
    external: tuple[Path, ...],
    print_after: tuple[str, ...],
    no_verify: bool,
    quiet: bool,
) -> None:
    """Compile the ONNX file MODEL for a mesh of processes."""
    from autopar import pipeline

    options = pipeline.CompileOptions.from_text(
        mesh=mesh,
        cluster=cluster,
        strategy=strategy,
        shards=shards,
        annotations=annotations,
        placement=placement,
        verify=not no_verify,
    )
    observer = pipeline.printer(print_after, click.echo)
    imported = pipeline.import_model(model, dims=dims, input_shapes=shapes, allow_external=external)
    compiled = pipeline.compile_program(imported.program, options, observer, imported.report)
    pipeline.write(compiled, imported.weights, output)
    if not quiet:
        _show_summary(output)


@main.command("inspect")
@click.argument("path", type=MODEL)
@click.option("--rank", type=int, help="Show the program of this rank.")
@click.option("--serial", is_flag=True, help="Show the completed program with all attributes.")
@click.option("--format", "form", type=click.Choice(["text", "json", "dot"]), default="text")
def inspect_command(path: Path, rank: int | None, serial: bool, form: str) -> None:
    """Show a build folder, a rank's program, or a single .pb file."""
    from autopar import inspection

    if path.is_file():
        click.echo(inspection.show_file(path, form))
    elif rank is not None:
        click.echo(inspection.show_rank(path, rank, form))
    elif serial or form == "dot":
        click.echo(inspection.show_serial(path, form))
    else:
        _show_summary(path, form)


@main.command("run")
@click.argument("build", type=MODEL)
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE.npy", help="Or one .npz file.")
@click.option("--random-inputs", type=int, metavar="SEED", help="Make up the inputs not given.")
@click.option("--output", type=MODEL, metavar="FILE.npz", help="Where to save the outputs.")
@click.option("--virtual", is_flag=True, help="All ranks in this process, no process group.")
@click.option("--backend", type=click.Choice(["auto", "gloo", "nccl"]), default="auto")
@click.option("--compile", "torch_compile", is_flag=True, help="Run through torch.compile.")
@click.option("--timeout", type=float, default=300.0, show_default=True, help="Seconds.")
def run_command(
    build: Path,
    inputs: tuple[str, ...],
    random_inputs: int | None,
    output: Path | None,
    virtual: bool,
    backend: str,
    torch_compile: bool,
    timeout: float,
) -> None:
    """Run a build on this host: one process per rank."""
    from autopar import report
    from autopar.runtime import api

    arrays = api.read_inputs(build, inputs, seed=random_inputs)
    if virtual:
        outputs = api.run_virtual(build, arrays)
    else:
        outputs = api.launch(
            build, arrays, backend=backend, torch_compile=torch_compile, timeout_seconds=timeout
        )
    if output:
        api.save_outputs(output, outputs)
    click.echo(report.render_outputs(outputs))


@main.command("verify")
@click.argument("build", type=MODEL)
@click.option("--against", type=MODEL, metavar="MODEL.onnx", help="Compare with ONNX Runtime too.")
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE.npy", help="Or one .npz file.")
@click.option("--seed", type=int, default=0, show_default=True, help="For inputs not given.")
@click.option(
    "--tolerance",
    type=float,
    help="Largest error relative to a value's largest element: 1e-4, or 1e-5 with --per-op.",
)
@click.option("--per-op", is_flag=True, help="Judge every op on identical inputs.")
def verify_command(
    build: Path,
    against: Path | None,
    inputs: tuple[str, ...],
    seed: int,
    tolerance: float | None,
    per_op: bool,
) -> None:
    """Compare every rank's program with the serial one, op by op."""
    from autopar import report
    from autopar.runtime import api

    arrays = api.read_inputs(build, inputs, seed=seed)
    result = api.verify(build, arrays, forced=per_op, tolerance=tolerance)
    click.echo(report.render_verification(result, "the serial program"))
    ok = result.ok
    if against is not None:
        from autopar.oracle import onnx_outputs
        from autopar.runtime.verification import FREE_TOLERANCE, compare_outputs

        expected = onnx_outputs(against, arrays)
        differences = compare_outputs(
            api.run_virtual(build, arrays), expected, tolerance or FREE_TOLERANCE
        )
        click.echo(report.render_outputs_compared(differences, "ONNX Runtime"))
        ok = ok and all(difference.ok for difference in differences.values())
    if not ok:
        sys.exit(1)


def _show_summary(build: Path, form: str = "text") -> None:
    from autopar import report

    summary = report.summarize(build)
    click.echo(report.to_json(summary) if form == "json" else report.render_summary(summary))
