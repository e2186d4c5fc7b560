"""The command `autopar profile`: what a model or build costs per op, per layer and over time."""

from __future__ import annotations

from pathlib import Path

import click

from autopar.cli.console import status, unsuited, usage
from autopar.cli.models import MODEL, ModelOptions, model_options
from autopar.cli.options import PATH, PROFILES, named_cluster


@click.command("profile")
@click.argument("path", type=PATH)
@click.option(
    "--mesh",
    metavar="SIZES",
    help="Of a model: the processes to compile it for, as 2x4 or dp=2,tp=4; by default one.",
)
@model_options
@click.option(
    "--cluster",
    metavar="NAME|FILE.yaml",
    help=f"The hardware: a built-in profile ({', '.join(PROFILES)}) or a file.  [default: cpu; of a"
    " build, what it was compiled for]",
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="How many layers and ops to list.",
)
@click.option(
    "--depth",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many parts of a module's name make a layer.  [default: up to the first number]",
)
@click.option(
    "--measured",
    type=PATH,
    metavar="TRACE.json",
    help="Of a build: beside what is predicted, what a run took that was traced with autopar run"
    " --trace, or trace= in Python.",
)
@click.option(
    "--json",
    "json_file",
    type=PATH,
    metavar="FILE",
    help="Write all figures to a file too; - for standard output, in the place of the tables.",
)
def profile_command(
    path: Path,
    mesh: str | None,
    given: ModelOptions,
    cluster: str | None,
    top: int,
    depth: int | None,
    measured: Path | None,
    json_file: Path | None,
) -> None:
    """Show what an ONNX file or a build costs, without running it.

    Flops, bytes, seconds and saved activations per op and layer, and memory over time with its
    peak, of each class of ranks that run one program: of the rank with the largest part. Of a
    pipeline, which microbatch each of them is at, over time.

    \b
    Examples:
      autopar profile model.onnx --mesh 2x4 --dims batch=8 --cluster h100
      autopar profile build/ --top 20 --json profile.json
      autopar profile build/ --measured trace.json
    """
    from autopar import pipeline
    from autopar.analysis.profiling import Profile, profile, profile_build, profile_compiled
    from autopar.analysis.profiling.drawn import drawn
    from autopar.analysis.profiling.show import render_profile, write_json
    from autopar.base.file import check_file, is_stdout

    if json_file is not None:
        check_file(json_file)
    if measured is not None:
        _compare(path, measured, cluster, top, depth, json_file)
        return
    found: tuple[Profile, ...]
    if path.is_dir():
        unsuited("a build is compiled already, which rules out", ("mesh", *MODEL))
        hardware = named_cluster(cluster) if cluster else None
        with status("predicting"):
            found = profile_build(path, hardware)
    else:
        if mesh is None:
            unsuited(
                "without --mesh nothing is split, which rules out",
                ("strategy", "shard", "pipeline", "stages"),
            )
        options = pipeline.CompileOptions.from_text(
            words=usage,
            mesh=mesh or "1",
            cluster=named_cluster(cluster or "cpu"),
            strategy=given.strategy,
            shards=given.shard,
            plan=given.plan,
        )
        options = given.in_stages(options)
        with status(f"importing {path.name}"):
            model = given.load(path)
            model = model.recognized(options.pinned(model.program))
        with status("predicting"):
            if mesh is None:
                found = (profile(model.program, cluster=options.cluster),)
            else:
                made = pipeline.compile_program(model.program, options)
                found = profile_compiled(made.serial, made.deployment, options.cluster)
    if json_file is not None:
        write_json(found, json_file)
    if is_stdout(json_file):
        return
    blocks = [*(render_profile(each, top, depth) for each in found), *drawn(found)]
    click.echo("\n\n".join(blocks))


def _compare(
    path: Path,
    trace: Path,
    cluster: str | None,
    top: int,
    depth: int | None,
    json_file: Path | None,
) -> None:
    """Shows what a run of a build took beside what was predicted."""
    unsuited("--measured is of a build, which rules out", ("mesh", *MODEL))
    if not path.is_dir():
        raise click.UsageError(f"--measured is of a build folder, and {path} is none")
    from autopar.analysis.profiling.measured import compare_build, render_comparison
    from autopar.analysis.profiling.show import write_json
    from autopar.base.file import is_stdout

    hardware = named_cluster(cluster) if cluster else None
    with status("predicting"):
        found = compare_build(path, trace, hardware, depth)
    if json_file is not None:
        write_json(found, json_file)
    if not is_stdout(json_file):
        click.echo("\n\n".join(render_comparison(each, top) for each in found))
