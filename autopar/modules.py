"""What users call on a `torch.nn.Module`: `compile` for a mesh.

compiled = autopar.compile(model, (x, y), mesh="dp=2,tp=4", loss=criterion, optimizer=adamw)
compiled.save("build/")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autopar.analysis.reports.summary import render_summary, summarize_programs
from autopar.annotate import apply_pins_of
from autopar.base.arguments import NAMES, PATH, expect, one_of
from autopar.base.errors import InvalidInputError
from autopar.frontend.torch import Captured, Recipe, capture
from autopar.pipeline import (
    CompileArguments,
    Compiled,
    CompileOptions,
    compile_program,
    inherit,
    write,
)


@dataclass(frozen=True)
class CompiledModule:
    """A compiled model or training step.

    Attributes:
        captured: The serial program, as it was captured, and the model's weights.
        compiled: The programs of the ranks.
        variants: The programs for further batches, of other shapes.
    """

    captured: Captured
    compiled: Compiled
    variants: tuple[Compiled, ...] = ()

    def summary(self) -> str:
        """Returns what a step costs, as `autopar inspect` shows it of a build folder."""
        compiled = self.compiled
        found = summarize_programs(compiled.serial, compiled.deployment, compiled.report)
        return render_summary(found)

    def save(self, build: str | Path) -> None:
        """Writes the build folder; an older build there stays whole until the new one is complete.

        Raises:
            InvalidInputError: If the folder can't be written, or is something else than a build.
        """
        expect(PATH, build=build)
        write(self.compiled, self.captured.weights, Path(build), self.variants)


def compile(
    model: nn.Module,
    example_inputs: Any,
    *,
    loss: Callable[..., Tensor] | None = None,
    training_step: Callable[[nn.Module, Any], Tensor] | None = None,
    optimizer: Optimizer | None = None,
    clip_grad_norm: float | None = None,
    accumulate: int = 1,
    autocast: torch.dtype | None = None,
    master_dtype: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
    fetch: Sequence[str] = (),
    more_batches: Sequence[Any] = (),
    **arguments: Unpack[CompileArguments],
) -> CompiledModule:
    """Compiles a model, or a training step of it, for a mesh.

        >>> compile(
        ...     model, (x, y), mesh="dp=2,tp=4", loss=nn.CrossEntropyLoss(),
        ...     optimizer=torch.optim.AdamW(model.parameters(), lr=3e-4),
        ... ).save("build/")  # doctest: +SKIP

    Nothing is computed: shapes and dtypes count. The model isn't changed.

    Args:
        model: The model, in the mode (`train()` or `eval()`) in which it is to be run. It may be
            on the meta device.
        example_inputs: A global batch: the model's only input, a tuple of them, or a dict by name;
            with `loss`, a pair of that and the target.
        loss: `loss(model(inputs), target)`.
        training_step: `training_step(model, batch)`, which returns the loss; in place of `loss`.
            With neither, the model returns the loss, or something that has it as `.loss`.
        optimizer: The optimizer of a training step; without one, the forward pass is compiled.
            Where torch has a fused kernel for it, that is used, unless it says `fused=False`.
        clip_grad_norm: The largest norm of all gradients together.
        accumulate: Number of microbatches that a batch is cut into.
        autocast: The dtype of matrix products, as `torch.autocast` has it.
        master_dtype: What trained parameters of fewer bits are stored and updated in, as
            `torch.float32` for a model in bfloat16.
        scaler: Scales the loss, as for gradients in float16; its own state isn't changed.
        fetch: What a step returns besides the loss: outputs of the model, by their keys or as
            `output`; names of parameters, for their gradients; `grad_norm`.
        more_batches: Further batches, of other shapes, that a step is to take too: the last, short
            one of an epoch. Parameters and state are laid out as for `example_inputs`.
        arguments: How to compile it, as `CompileArguments` explains: `mesh` or `devices`;
            `strategy`, `shard`, `cluster`, `placement`, `memory`, `seconds_limit`, `effort`,
            `plan` and `activations`.

    Raises:
        AutoparError: If the model, an argument or a pin can't be used as given, or a step can't be
            made to fit into memory.
    """
    if isinstance(fetch, str):
        raise InvalidInputError(f"fetch={fetch!r} is a text; give a list of names, [{fetch!r}]")
    expect(NAMES, fetch=fetch)
    expect(one_of(list, tuple, words="a list of batches"), more_batches=more_batches)
    if more_batches and optimizer is None:
        raise InvalidInputError(
            "more_batches= is for training steps: a build without optimizer= takes inputs of one"
            " shape; compile one for each shape, pad inputs to one, or use parallelize(), which"
            " compiles for each shape that it is called with"
        )
    recipe = Recipe(
        loss=loss,
        training_step=training_step,
        optimizer=optimizer,
        clip_grad_norm=clip_grad_norm,
        accumulate=accumulate,
        autocast=autocast,
        master_dtype=master_dtype,
        scaler=scaler,
        fetch=tuple(fetch),
    )
    options = CompileOptions.of(**arguments)
    captured = capture(model, example_inputs, recipe, None if options.any_shape else options.mesh)
    compiled = compile_program(captured.program, options, report=captured.report)
    options = compiled.options
    variants = []
    for batch in more_batches:
        program = capture(model, batch, recipe, options.mesh).program
        pinned = apply_pins_of(captured.program, program, options.mesh, options.pins)
        alike = inherit(pinned, compiled.stored_layouts())
        variants.append(compile_program(alike, replace(options, pins=(), op_pins=())))
    return CompiledModule(captured, compiled, tuple(variants))
