"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

_PROFILES = Path(__file__).parents[1] / "cost/profiles"
PROFILES = sorted(file.stem for file in _PROFILES.glob("*.yaml"))
PATH = click.Path(path_type=Path)

DIMS = click.option(
    "--dim",
    "dims",
    multiple=True,
    metavar="NAME=SIZE",
    help="Bind a dimension that the model leaves open, by its name. Repeatable.",
)

SHAPES = click.option(
    "--input-shape",
    "shapes",
    multiple=True,
    metavar="INPUT:8,128",
    help="Give an input's whole shape, where its open dimensions have no names. Repeatable.",
)

STRATEGY = click.option(
    "--strategy",
    default="",
    metavar="PRESET:AXIS,...",
    help="What each mesh axis splits: data (the batch), tensor (weights of matrix products and"
    " convolutions), fsdp (all weights, and the batch), replicate (nothing); or none: only what"
    " --shard says; or auto: whatever is predicted to be fastest. An axis is a number or a name."
    "  [default: data:0,tensor:1]",
)

SHARDS = click.option(
    "--shard",
    "shards",
    multiple=True,
    metavar="PATTERN=[...]",
    help="Fix the layout of tensors by name: per dimension -1 (not split), an axis, or several in"
    " parentheses. Repeatable.",
)

ANNOTATIONS = click.option(
    "--annotations",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE.yaml",
    help="Read such layouts, and the mesh they are for, from a file; or a plan, which has all that"
    " was decided (see autopar plan).",
)

EXTERNAL = click.option(
    "--allow-external",
    "external",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Trust this folder too to hold the model's external data. Repeatable.",
)
