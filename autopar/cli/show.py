"""Results on standard output, on a terminal in color."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import click


def show_summary(build: Path, form: str = "text") -> None:
    """Prints what a build costs, as text or json."""
    from autopar.analysis.reports import summary as report

    summary = report.summarize(build)
    click.echo(report.to_json(summary) if form == "json" else report.render_summary(summary))


def show_program(text: str) -> None:
    """Prints a program, on a terminal with its collectives marked."""
    click.echo(re.sub(r"^.* = comm\..*$", _in_color("cyan"), text, flags=re.MULTILINE))


def show_verdicts(text: str) -> None:
    """Prints what was compared, on a terminal with its verdicts marked."""
    text = re.sub(r"\bDIFFERENT\b|^first difference:", _in_color("red"), text, flags=re.MULTILINE)
    click.echo(re.sub(r"\bok$", _in_color("green"), text, flags=re.MULTILINE))


def _in_color(color: str) -> Callable[[re.Match[str]], str]:
    return lambda found: click.style(found[0], fg=color)
