"""What users call on a `torch.nn.Module`: `compile` for a mesh.

compiled = autopar.compile(model, (x, y), mesh="dp=2,tp=4", loss=criterion, optimizer=adamw)
compiled.save("build/")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autopar.annotate import MeshLike, apply_pins_of
from autopar.base.arguments import MAPPING, NAMES, expect, one_of
from autopar.base.errors import InvalidInputError
from autopar.compiled import CompiledModel
from autopar.cost import Cluster
from autopar.frontend.lower.state import with_state
from autopar.frontend.torch import Dynamic, Recipe, capture
from autopar.ir.text.layouts import Entry
from autopar.mapping import Placement
from autopar.pipeline import CompileOptions, compile_program, inherit
from autopar.pipeline.widths import Stages


def compile(
    model: nn.Module,
    example_inputs: Any,
    *,
    loss: Callable[..., Tensor] | None = None,
    training_step: Callable[[nn.Module, Any], Tensor] | None = None,
    optimizer: Optimizer | None = None,
    clip_grad_norm: float | None = None,
    accumulate: int = 1,
    loss_denominator: str = "auto",
    pipeline: str = "",
    schedule: str = "1f1b",
    stages: Stages = None,
    microbatches: int = 1,
    offload: str | Sequence[str] | None = None,
    update: str = "auto",
    chunks: Mapping[str, int | Sequence[int]] | None = None,
    autocast: torch.dtype | None = None,
    master_dtype: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
    fetch: Sequence[str] = (),
    dynamic: Dynamic | None = None,
    state: Mapping[str, str] | None = None,
    more_batches: Sequence[Any] = (),
    mesh: MeshLike | None = None,
    devices: int | None = None,
    strategy: str | None = "",
    shard: Mapping[str, Sequence[Entry]] | None = None,
    cluster: str | Cluster = "cpu",
    device: str | torch.device | None = None,
    placement: Placement = "identity",
    memory: str | int | None = None,
    time_limit: float | None = None,
    effort: float = 1.0,
    plan: str | Path | None = None,
    activations: Mapping[str, str] | None = None,
) -> CompiledModel:
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
        accumulate: Number of microbatches that a batch is cut into, of sizes that differ by at
            most one row.
        loss_denominator: What the loss is divided by where `accumulate` cuts the batch: with
            `batch`, as a step of the whole batch divides it (a mean by all rows, cross-entropy by
            all targets that aren't ignored, a sum by nothing); with `microbatch`, as each
            microbatch does by itself, and the mean of that, weighted by rows, is taken; with
            `auto`, as `batch` but for terms of which the code doesn't tell how, which the report
            names.
        pipeline: The mesh axis along which the stages of the model lie. `annotate.pipeline_stage`
            marks them, and stage s runs on index s, modulo the size of the axis; a model without
            marks is cut so that a step takes the least predicted time. Microbatches pass from stage
            to stage.
        schedule: In which order: `1f1b`, `interleaved` (the same, with two stages per index where
            the model is cut automatically), `gpipe`, or those in which gradients of weights fill
            the gaps: `zb-h1`, `zb-h2` (with more activations), `zb-v` (two stages per index, there
            and back) and `dualpipe-v` (the same, with each forward pass beside a backward pass of
            the other stage); or `auto`, whichever is predicted to be the fastest within `memory`.
        stages: At how many indices of the axis each stage is, in their order, as `(3, 1)`: they add
            up to its size; or `auto`, with which a step is predicted to be the fastest, within
            `memory`. A stage at several is split along the axis as along any other. By default each
            is at one.
        microbatches: Without an optimizer: how many the batch is cut into, which pass through the
            model one after another, or from stage to stage of a pipeline.
        offload: What waits in the host's memory between uses: `optimizer` (all of its state),
            `parameters`, or patterns of names as `shard` takes them (`exp_avg*/layers.*`), one or a
            list. A device holds two buckets of it, one in use and one under way. By default
            `memory` decides, where the cluster has a link to that memory; [] for nothing.
        update: Who updates what waits there: the `device`, to which it comes for that; the `host`,
            to which gradients go, and which keeps its part of the optimizer's state; or by default
            `auto`, for each parameter whichever is predicted to take less time.
        chunks: What is computed in parts, one after another, so that it is never there as a whole:
            by pattern of names of modules or values into how many parts, `{"lm_head": 8}`, or
            along which dimension too, `{"lm_head": (0, 8)}`. What is large around it follows as
            far as its ops allow it, forward and backward.
        autocast: The dtype of matrix products, as `torch.autocast` has it.
        master_dtype: What trained parameters of fewer bits are stored and updated in, as
            `torch.float32` for a model in bfloat16.
        scaler: Scales the loss, as for gradients in float16; its own state isn't changed.
        fetch: What a step returns besides the loss: outputs of the model, by their keys or as
            `output`; names of parameters, for their gradients; `grad_norm`.
        dynamic: Dimensions that stay open, by name or position of the tensor and by dimension:
            `{"ids": {0: "batch", 1: "length=1:512"}, "target": {0: "batch"}}`. Each is given a
            name, a range ("1:64", or "8~1:64" to plan for 8), both, or a `torch.export.Dim`.
            Dimensions of one name have one size. Plans are made for the example's sizes.
        state: Outputs that are inputs of the next call, by input: `{"past.*": "present.*"}`. They
            stay on the ranks from call to call, laid out as the plan says; they begin as zeros,
            open sizes of theirs as small as may be.
        more_batches: Further batches, of other shapes, that a step is to take too: the last, short
            one of an epoch. Parameters and state are laid out as for `example_inputs`.
        mesh: The processes: a mesh, a torch DeviceMesh, or text as `2x4` or `dp=2,tp=4`;
            or sizes, as `8` or `(2, 4)`.
        devices: In the place of a mesh: how many processes; the fastest shape is searched.
        strategy: `auto`, or "", to search for what is fastest; presets as `data:0,tensor:1`;
            `none` or None for nothing but pins and marks.
        shard: Pins: a dims_mapping by name pattern, such as a parameter's name in the state dict.
        cluster: The hardware: a profile's name, a YAML file, or a Cluster; `cpu` by default.
        device: What the program is for: `cpu` or `cuda`, the type of the ranks' devices, or a
            `torch.device` of it; by default what the cluster's are. It has no op that only another
            device has a kernel for.
        placement: Which logical process each rank carries out: `identity`, its own number, by
            default; `auto`, the axis that communicates most on the fastest links; or ids.
        memory: What a device may hold at once, parameters, optimizer state and batch included:
            bytes, or text as `24GiB`. Activations that don't fit are computed again in the
            backward pass.
        time_limit: Wall time of a search, after which it takes the best plan so far; without
            one, the same program always gets the same plan.
        effort: How many times the usual work a search may do: 1 by default, where it takes no
            longer than capturing and compiling besides; more may find a faster plan, or prove that
            there is none.
        plan: A file with pins, or a plan that `autopar plan` wrote.
        activations: What becomes of activations until the backward pass reads them, by pattern of
            names of modules or values: `save`, `offload` to the host's memory, or `recompute`,
            which of a module is all but its outputs. Of what isn't named, `memory` decides.

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
            "more_batches= is for training steps; for inputs of other shapes, leave dimensions open"
            " with dynamic=, or compile a build for each shape"
        )
    expect(MAPPING.or_none, state=state)
    if state and optimizer is not None:
        raise InvalidInputError(
            "state= is for models that answer calls; what a training step keeps, its model and"
            " optimizer say"
        )
    if more_batches and dynamic is not None:
        raise InvalidInputError(
            "more_batches= and dynamic= both say what batches a step takes besides the example;"
            " dynamic= needs no other batches: give one of both"
        )
    recipe = Recipe(
        loss=loss,
        training_step=training_step,
        optimizer=optimizer,
        clip_grad_norm=clip_grad_norm,
        accumulate=accumulate,
        loss_denominator=loss_denominator,
        autocast=autocast,
        master_dtype=master_dtype,
        scaler=scaler,
        fetch=tuple(fetch),
    )
    options = CompileOptions.from_arguments(
        mesh=mesh,
        devices=devices,
        strategy=strategy,
        shard=shard,
        cluster=cluster,
        device=device,
        placement=placement,
        memory=memory,
        time_limit=time_limit,
        effort=effort,
        plan=plan,
        activations=activations,
    )
    options = options.in_stages(
        pipeline, schedule=schedule, microbatches=microbatches, stages=stages
    )
    options = options.offloading(offload, update=update).in_chunks(chunks)
    known = None if options.any_shape else options.mesh
    captured = capture(model, example_inputs, recipe, known, dynamic)
    serial = with_state(captured.program, state or {})
    compiled = compile_program(serial, options, report=captured.report)
    options = compiled.options
    variants = []
    for batch in more_batches:
        program = capture(model, batch, recipe, options.mesh).program
        pinned = apply_pins_of(captured.program, program, options.mesh, options.pins)
        alike = inherit(pinned, compiled.stored_layouts())
        variants.append(compile_program(alike, replace(options, pins=(), op_pins=())))
    return CompiledModel.of(compiled, serial, captured.weights, variants)
