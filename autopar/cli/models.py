"""The options of commands that take a model: how it is read, and how it is to be laid out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from autopar.cli.console import usage
from autopar.cli.options import PATH
from autopar.cli.sizes import parse_dims, parse_shapes, parse_state

if TYPE_CHECKING:
    from autopar.frontend.onnx import ImportedModel
    from autopar.pipeline import CompileOptions

T = TypeVar("T")


def _parsed(parse: Callable[[Sequence[str]], T]) -> Callable[..., T]:
    """Returns a callback by which click hands on what the texts of an option mean."""

    def callback(context: click.Context, option: click.Parameter, texts: Sequence[str]) -> T:
        del context, option
        with usage():
            return parse(texts)

    return callback


OPTIONS = (
    click.option(
        "--dims",
        multiple=True,
        callback=_parsed(parse_dims),
        metavar="NAME=SIZE,...",
        help="Bind a dimension that the model leaves open, by its name (batch=8), say what it may"
        " be (batch=1:64), or for which size to plan (batch=8~1:64). Others stay open. Repeatable.",
    ),
    click.option(
        "--input-shapes",
        multiple=True,
        callback=_parsed(parse_shapes),
        metavar="INPUT:8,128",
        help="Give an input's whole shape, where its open dimensions have no names. Repeatable.",
    ),
    click.option(
        "--strategy",
        default="",
        metavar="auto|none|PRESET:AXIS,...",
        help="auto: whatever is predicted to be fastest; none: only what --shard says; or what each"
        " mesh axis splits: data (the batch), tensor (weights of matrix products and convolutions),"
        " fsdp (all weights, and the batch), replicate (nothing). An axis is a number or a name; a"
        " preset without one works along every axis that no other names."
        "  [default: auto]",
    ),
    click.option(
        "--shard",
        multiple=True,
        metavar="PATTERN=[...]",
        help="Fix the layout of tensors by name: per dimension -1 (not split), an axis, or several"
        " in parentheses. Repeatable.",
    ),
    click.option(
        "--plan",
        type=PATH,
        metavar="FILE.yaml",
        help="A file with such layouts, and the mesh they are for; or with all that was decided, as"
        " autopar plan writes it.",
    ),
    click.option(
        "--allow-external",
        multiple=True,
        type=PATH,
        metavar="FOLDER",
        help="Trust this folder too to hold the model's external data. Repeatable.",
    ),
    click.option(
        "--state",
        multiple=True,
        callback=_parsed(parse_state),
        metavar="INPUT=OUTPUT",
        help="An output that is an input of the next call, which the ranks keep: a * on both sides"
        " stands for the same, as in 'past_key_values.*=present.*'. Repeatable.",
    ),
    click.option(
        "--pipeline",
        default="",
        metavar="AXIS",
        help="The mesh axis along which the model is cut into stages, as pp of pp=2,dp=4.",
    ),
    click.option(
        "--stages",
        metavar="WIDTHS",
        help="At how many indices of that axis each stage is, which add up to its size, as 3,1 for"
        " two stages along an axis of 4; auto: with which it is the fastest. By default each is at"
        " one.",
    ),
    click.option(
        "--microbatches",
        type=int,
        default=1,
        show_default=True,
        metavar="COUNT",
        help="Cut the batch into so many parts, which pass through the model, or from stage to"
        " stage, one after another.",
    ),
)


@dataclass(frozen=True)
class ModelOptions:
    """What the options say.

    Attributes:
        dims: Sizes or ranges by symbolic dimension.
        input_shapes: Shapes by input.
        strategy: Presets, as `CompileOptions.from_text` takes them.
        shard: Pins, as it takes them.
        plan: A file with pins, or a plan.
        allow_external: Folders that may hold the model's external data.
        state: Outputs that are inputs of the next call, by input.
        pipeline: The mesh axis along which stages lie; "" for no pipeline.
        stages: At how many indices of that axis each is; None for one each.
        microbatches: How many the batch is cut into.
    """

    dims: dict[str, str]
    input_shapes: dict[str, tuple[int, ...]]
    strategy: str
    shard: tuple[str, ...]
    plan: Path | None
    allow_external: tuple[Path, ...]
    state: dict[str, str]
    pipeline: str
    stages: str | None
    microbatches: int

    def in_stages(self, options: CompileOptions) -> CompileOptions:
        """Returns options of a compilation with what is said of stages and microbatches."""
        with usage():
            return options.in_stages(
                self.pipeline, microbatches=self.microbatches, stages=self.stages
            )

    def load(self, path: Path) -> ImportedModel:
        """Imports an ONNX file.

        Raises:
            AutoparError: If it can't be used as given.
        """
        from autopar.frontend.onnx import import_onnx

        return import_onnx(
            path,
            dims=self.dims,
            input_shapes=self.input_shapes,
            allow_external=self.allow_external,
            state=self.state,
        )


MODEL = tuple(field.name for field in fields(ModelOptions))
"""The names of the options as parameters."""


def model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of a model, as one argument `given`."""

    @wraps(command)
    def packed(**parameters: Any) -> None:
        given = ModelOptions(**{name: parameters.pop(name) for name in MODEL})
        command(given=given, **parameters)

    wrapped: Callable[..., None] = packed
    for option in reversed(OPTIONS):
        wrapped = option(wrapped)
    return wrapped
