"""Options that several commands have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autopar.base.package import PACKAGE
from autopar.cli.console import usage

if TYPE_CHECKING:
    from autopar.cost import Cluster

_PROFILES = PACKAGE / "cost/profiles"
PROFILES = sorted(file.stem for file in _PROFILES.glob("*.yaml"))
PATH = click.Path(path_type=Path)

MODULES = click.option(
    "--modules",
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
    help="What processes communicate by: gloo on CPUs, nccl on GPUs; auto: what the build is for,"
    " or without one nccl where there are GPUs.",
)


def named_cluster(text: str) -> Cluster:
    """Returns the cluster that `--cluster` means.

    Raises:
        click.UsageError: If it is neither the name of a built-in one nor the path of a file.
        InvalidInputError: If the file can't be used.
    """
    from autopar.cost import Cluster

    if Cluster.is_file(text) or os.path.isfile(text):
        return Cluster.load(text)
    with usage():
        return Cluster.load(text)
