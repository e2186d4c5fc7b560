"""The commands about plans: explain, diff, plan and calibrate."""

from __future__ import annotations

from pathlib import Path

import click

from autopar.cli.console import status, unsuited
from autopar.cli.options import BACKEND, PATH, named_cluster
from autopar.cli.progress import progress


@click.command("explain", short_help="Say why a value is split so, and what else it could be.")
@click.argument("build", type=PATH)
@click.argument("name", required=False, metavar="[VALUE_OR_OP]")
@click.option(
    "--cluster",
    metavar="NAME|FILE.yaml",
    help="Predict for other hardware than the build was compiled for.",
)
@click.option(
    "--alternatives/--no-alternatives",
    default=True,
    help="Whether to say what other splits would cost: each is pinned, all else follows as it was"
    " decided, and the whole program that was found is priced. A search changes its plan as far as"
    " that helps; one from scratch may find a faster one.",
)
def explain_command(build: Path, name: str | None, cluster: str | None, alternatives: bool) -> None:
    """Say why a value is split as it is, and what other splits would cost.

    An op is named by its result, or by its ONNX node. Without a name: the collectives that take
    most time, with the lines of the model that they come from.

    \b
    Examples:
      autopar explain build/
      autopar explain build/ layers.3.attn.out.weight
      autopar explain build/ mm_3 --cluster h100x4
    """
    from autopar.analysis.explanation import explain

    hardware = named_cluster(cluster) if cluster else None
    with progress("predicting") as tell:
        if name is None:
            unsuited("the list of collectives has no", ("alternatives",))
            shown = str(explain(build, cluster=hardware))
        else:
            found = explain(build, name, cluster=hardware, alternatives=alternatives, tell=tell)
            shown = str(found)
    click.echo(shown)


@click.command("diff", short_help="Compare two builds of a model.")
@click.argument("first", type=PATH)
@click.argument("second", type=PATH)
@click.option(
    "--cluster",
    metavar="NAME|FILE.yaml",
    help="Predict for this hardware.  [default: what FIRST was compiled for]",
)
def diff_command(first: Path, second: Path, cluster: str | None) -> None:
    """Compare two builds of a model: layouts, communication, seconds and memory.

    \b
    Examples:
      autopar diff build-a/ build-b/
      autopar diff build-a/ build-b/ --cluster h100x4
    """
    from autopar.analysis.reports.comparison import diff

    hardware = named_cluster(cluster) if cluster else None
    with status("predicting"):
        found = diff(first, second, cluster=hardware, names=(str(first), str(second)))
    click.echo(str(found))


@click.command("plan", short_help="Write what was decided as a readable file.")
@click.argument("build", type=PATH)
@click.option("-o", "--output", type=PATH, metavar="FILE.yaml", help="Write it there.")
def plan_command(build: Path, output: Path | None) -> None:
    """Show what was decided about a build, as a file from which it is compiled again.

    The plan can be edited. It holds names, layouts and the limit of memory, nothing of the machine.

    \b
    Examples:
      autopar plan build/ -o plan.yaml
      autopar compile model.onnx --mesh 2x4 --plan plan.yaml
    """
    from autopar.analysis.plan_file import plan_of, save_plan

    with status("reducing the plan to what decides"):
        if output is not None:
            save_plan(build, output)
            return
        text = plan_of(build)
    click.echo(text, nl=False)


@click.command("calibrate", short_help="Measure this machine, for --cluster.")
@click.option(
    "-o",
    "--output",
    type=PATH,
    required=True,
    metavar="CLUSTER.yaml",
    help="The cluster file to write, for --cluster; - for standard output.",
)
@click.option(
    "--processes",
    type=int,
    metavar="N",
    help="Start N processes on this host that measure together. Without it, and without torchrun,"
    " one process measures its device, and no links.",
)
@BACKEND
@click.option(
    "--device",
    type=click.Choice(("cpu", "cuda")),
    default=None,
    help="What to measure.  [default: as the backend says]",
)
@click.option(
    "--clock",
    type=click.Choice(("wall", "cpu", "events")),
    default=None,
    help="What seconds of ops are of: what passes, what the process computes, which other programs"
    " don't change, or what passes on a GPU.  [default: events on a GPU, else wall]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.001, 60.0),
    default=0.4,
    show_default=True,
    help="About how long each figure is measured; each of the families of ops an eighth of it.",
)
@click.option("--name", default="", help="The cluster's name.  [default: the host's]")
@click.option(
    "--levels",
    default="",
    metavar="host=8,rack=4",
    help="Name and size of each level of links, from the inside.  [default: the launcher's hosts]",
)
@click.option("-q", "--quiet", is_flag=True, help="Don't print the figures.")
def calibrate_command(
    output: Path,
    processes: int | None,
    backend: str,
    device: str | None,
    clock: str | None,
    seconds: float,
    name: str,
    levels: str,
    quiet: bool,
) -> None:
    """Measure this machine's devices and links, and write them as a cluster file.

    Processes measure all at once, so calibrate with as many as a program will have: those that
    share cores are as slow then as they will be. It takes about a minute.

    \b
    Examples:
      autopar calibrate --processes 4 -o cluster.yaml
      torchrun --nproc-per-node 8 -m autopar calibrate -o cluster.yaml
      torchrun --nnodes 8 ... -m autopar calibrate --levels host=8,rack=4,spine=2 -o cluster.yaml
      autopar compile model.onnx --mesh 2x2 --cluster ./cluster.yaml
    """
    from autopar.base.file import check_file, is_stdout
    from autopar.calibration import calibrate
    from autopar.calibration.calibrating import write_cluster

    check_file(output)
    with status("measuring"):
        found = calibrate(
            processes=processes,
            backend=backend,
            seconds=seconds,
            name=name,
            levels=levels,
            device=device or "",
            clock=clock or "",
        )
    if found is None:
        return
    write_cluster(found, output)
    if not quiet and not is_stdout(output):
        click.echo(str(found))
