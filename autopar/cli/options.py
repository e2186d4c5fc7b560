"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

_PROFILES = Path(__file__).parents[1] / "cost/profiles"
PROFILES = sorted(file.stem for file in _PROFILES.glob("*.yaml"))
PATH = click.Path(path_type=Path)

MODULES = click.option(
    "--import",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="Import a Python module first: one that registers the model's custom ops with torch."
    " Repeatable.",
)
