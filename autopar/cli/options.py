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

BACKEND = click.option(
    "--backend",
    type=click.Choice(["auto", "gloo", "nccl"]),
    default="auto",
    show_default=True,
    help="What processes communicate by: gloo on CPUs, nccl on GPUs; auto: nccl where there are"
    " GPUs.",
)
