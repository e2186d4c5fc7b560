"""The command `autopar inspect`."""

from __future__ import annotations

from pathlib import Path

import click

from autopar.cli.console import unsuited
from autopar.cli.options import PATH
from autopar.cli.show import show_program, show_summary


@click.command("inspect")
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
    from autopar.analysis.reports import inspection

    if path.is_file():
        unsuited(f"{path} is a single file; it has no", ("rank", "serial"))
        show_program(inspection.show_file(path, form, brief))
    elif rank is not None:
        unsuited("a rank's program is not", ("serial",))
        show_program(inspection.show_rank(path, rank, form, brief))
    elif serial or form == "dot":
        show_program(inspection.show_serial(path, form, brief))
    else:
        unsuited("the summary has no programs for", ("brief",))
        show_summary(path, form)
