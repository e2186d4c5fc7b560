"""The command `autopar run`."""

from __future__ import annotations

from pathlib import Path

import click

from autopar.base.errors import InvalidInputError
from autopar.cli.console import PositiveNumber, Seed, status, unsuited
from autopar.cli.inputs import INPUTS, read_inputs, with_seed
from autopar.cli.options import BACKEND, MODULES, PATH

RANK_BYTES = 200 * 2**20
"""Memory that a process takes at least when it has loaded PyTorch."""


@click.command("run")
@click.argument("build", type=PATH)
@INPUTS
@click.option(
    "--random-inputs", type=Seed(), metavar="SEED", help="Make up the inputs that are not given."
)
@click.option(
    "--seed",
    type=Seed(),
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
    " run: to train, or to call a model that keeps state, use autopar.load in Python.",
)
@click.option("--virtual", is_flag=True, help="Run all ranks in this process, step by step.")
@BACKEND
@MODULES
@click.option("--torch-compile", is_flag=True, help="Run through torch.compile.")
@click.option(
    "--trace",
    type=PATH,
    metavar="FILE.json",
    help="Write when each op of each process ran, for ui.perfetto.dev and chrome://tracing.",
)
@click.option(
    "--timeout",
    type=PositiveNumber(),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long each collective waits for other ranks.",
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
    trace: Path | None,
    timeout: float,
) -> None:
    """Run a build on this host: one process per rank.

    \b
    Examples:
      autopar run build/ --input ids=ids.npy --input mask=mask.npy --output out.npz
      autopar run build/ --input inputs.npz --virtual
      autopar run build/ --random-inputs 0
      autopar run build/ --random-inputs 0 --trace trace.json
    """
    if virtual:
        others = ("backend", "torch_compile", "timeout", "trace")
        unsuited("with --virtual no processes are started, which rules out", others)
    from autopar.analysis.reports import summary as report
    from autopar.runtime import api
    from autopar.runtime.execute.libraries import import_modules
    from autopar.runtime.files import tensors as files

    import_modules(modules)
    if output is not None:
        files.check_output(output)
    _check_memory(build, virtual)
    arrays = with_seed(build, read_inputs(build, inputs, random_inputs), seed)
    if virtual:
        with status("running all ranks in this process"):
            outputs = api.run(build, arrays, virtual=True, updates=updates)
    else:
        with status("running all ranks"):
            outputs = api.run(
                build,
                arrays,
                backend=backend,
                torch_compile=torch_compile,
                timeout=timeout,
                modules=modules,
                updates=updates,
                trace=trace,
            )
    if output is not None:
        api.save_outputs(output, outputs)
    click.echo(report.render_outputs(outputs))


def _check_memory(build: Path, virtual: bool) -> None:
    """Refuses to run what this host can't hold."""
    from autopar.ir.builds.files import read_build
    from autopar.pipeline.device_memory import check_machine_memory, machine_bytes

    found = read_build(build)
    ranks = found.rank_table.world_size
    memory = machine_bytes()
    if not virtual and ranks * RANK_BYTES > memory:
        raise InvalidInputError(
            f"{build} is for {ranks} ranks, which take more than the {memory / 2**30:.0f} GiB of"
            " memory of this host; start them on a cluster with torchrun, or say --virtual"
        )
    sizes = {name: max(map(len, lists)) for name, lists in found.deployment.groups.items()}
    for program in found.deployment.programs:
        check_machine_memory(program, memory, sizes)
