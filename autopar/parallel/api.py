"""`parallelize`: a new module, of the same class and names, that runs a compiled plan.

pmodel = autopar.parallelize(model, (ids,), mesh="dp=2,tp=2")
optimizer = torch.optim.AdamW(pmodel.parameters(), lr=3e-4)
for ids, labels in loader:                      # the global batch, on every rank
    loss = criterion(pmodel(ids), labels)       # the global outputs, on every rank
    loss.backward()
    torch.nn.utils.clip_grad_norm_(pmodel.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from autopar.annotate import MeshLike
from autopar.base.arguments import FLAG, NAMES, WHOLE, Kind, expect, shown
from autopar.base.errors import InvalidInputError
from autopar.base.units import counted
from autopar.completion.presets.strategy import AUTO, parse_strategy
from autopar.completion.presets.table import KEEPING
from autopar.cost import Cluster
from autopar.frontend.torch import Dynamic
from autopar.frontend.torch.step.batch import call_arguments
from autopar.ir.devices import CPU, CUDA, DEVICES, type_of
from autopar.ir.mesh import ProcessMesh
from autopar.ir.text.layouts import Entry
from autopar.mapping import Placement
from autopar.parallel.calls import Modes, check_whole
from autopar.parallel.compiling import Compiler, Layouts
from autopar.parallel.instance import instance, skeleton
from autopar.parallel.job import connect
from autopar.parallel.module import ParallelModule
from autopar.parallel.runner import Runner
from autopar.pipeline import CompileOptions, check_loss_outside
from autopar.pipeline.widths import Stages
from autopar.runtime.job.device import choose_device
from autopar.runtime.job.processes import Processes

Parameters = Literal["dtensor", "local"]
"""What the parameters of a parallel module are."""

Outputs = Literal["global", "dtensor"]
"""What a parallel module returns, unless it is asked for single outputs."""


def parallelize(
    model: nn.Module,
    example_inputs: Any,
    *,
    parameters: Parameters = "dtensor",
    outputs: Outputs | Sequence[str] = "global",
    dynamic: Dynamic | None = None,
    seed: int = 0,
    torch_compile: bool | None = None,
    check_inputs: bool = True,
    local: bool = False,
    pipeline: str = "",
    schedule: str = "gpipe",
    stages: Stages = None,
    microbatches: int = 1,
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
) -> ParallelModule:
    """Returns a new module whose parameters are this rank's, and that computes on all ranks.

    Every rank of a job that torchrun started calls it, and then the module, alike: with the global
    batch, for the global outputs. The user keeps loss, `backward()`, optimizer and loop. Gradients
    are complete after `backward()`; nothing has to be averaged or waited for.

    The forward and backward passes of each mode (`train()`, `eval()`, `torch.no_grad()`) and of
    batches of each shape are one program, compiled when it is first needed; with `dynamic`, it is
    one for all sizes that stay open. The example's decides
    how parameters are laid out, and the shape of the mesh where `devices` asks for that. Rank 0
    alone searches, for at most `time_limit` per program.

    The optimizer is the user's. So its state lies as the parameters do (`fsdp` splits it too), and
    `memory` is without it: parameters, gradients, activations and the batch. `activations` count
    where there is a backward pass. Along each mesh axis `placement` must have ranks ascend, unless
    parameters are local: torch mixes up DTensors on other meshes. A `plan` may not lay out fused
    weights by their parts, as `apart` says there: the parameters are those of the model.

    With a `pipeline` a parameter is a DTensor on the ranks of the stages that read it, and has no
    elements on others. Optimizers and torch.distributed.checkpoint take these as they are, but
    `torch.nn.utils.clip_grad_norm_` doesn't: clip with the module's own `clip_grad_norm_`.

    Args:
        model: The model; it isn't changed. Its values on rank 0 count. On the meta device, so are
            the parameters that are returned: call `to_empty` and load a state dict.
        example_inputs: A global batch: the model's only input, a tuple of them, or a dict by name.
        parameters: `dtensor`: DTensors, so that optimizers, `torch.nn.utils.clip_grad_norm_` and
            torch.distributed.checkpoint work on them. A parameter that is best split within a
            dimension, which DTensors can't be, is kept split as a whole one and moved in each
            step; a warning names it. `local`: plain tensors that hold the rank's piece, split
            however is best; clip with the module's own `clip_grad_norm_`.
            In a job of one process, parameters are plain and whole.
        outputs: `global`: whole tensors, on every rank. `dtensor`: outputs that are split come as
            DTensors, so that nothing is gathered; others as whole tensors. A list of names, as
            `["loss"]`: these are whole, and the others None; they are neither gathered nor kept,
            nor computed where the rest doesn't need them. An output is called by its key or
            field, else `output`, or `output.0` in a tuple. A call that returns none of them, as
            one without labels, returns all.
        dynamic: Dimensions that stay open, as in `autopar.compile`, by name or position of the
            example's tensor: `{"ids": {0: "batch", 1: "length=1:512"}}`. One program of a mode
            is for all sizes, but for those at which the model's code does something else.
        seed: What dropout depends on: each call draws anew, the same on any mesh.
        torch_compile: Whether the programs run through `torch.compile`; by default on GPUs.
        check_inputs: Whether the ranks compare the tensors of each call, which must be the same.
            Of large ones each call compares a twentieth.
        local: Whether calls take this rank's part of a batch, unless they say `local=False`; see
            `ParallelModule.forward`. The example is a global batch all the same.
        pipeline: The mesh axis along which the stages of the model lie, as in `autopar.compile`.
            The loss is the user's, so a call runs the forward pass of all microbatches, and
            `backward()` the backward pass of all of them.
        schedule: In which order: `gpipe`. The others begin backward passes before, which is for
            `autopar.compile`, where the loss is part of the step.
        stages: At how many indices of the axis each stage is, as in `autopar.compile`.
        microbatches: How many the batch of a call is cut into, which pass from stage to stage.
            Outputs and gradients are those of the whole batch: what a model computes across rows,
            as a batch norm, is computed once for all of them.
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
        AutoparError: If the model, an option or a pin can't be used as given, or the job has
            another number of processes than the mesh.
    """
    _check_types(model, seed, outputs)
    expect(FLAG, check_inputs=check_inputs, local=local)
    expect(FLAG.or_none, torch_compile=torch_compile)
    _check_options(mesh, parameters, outputs, placement)
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
    check_loss_outside(schedule)
    options = options.in_stages(
        pipeline, schedule=schedule, microbatches=microbatches, stages=stages, default="gpipe"
    )
    if local:
        check_whole(microbatches)
    _check_strategy(options)
    _check_plan(options, plan)
    wanted = options.mesh if mesh is None else mesh
    # A model without values yet is made on the CPU.
    tensors = [*model.parameters(), *model.buffers()]
    where = choose_device("gloo", Processes.from_environment(), wanted, tensors)
    options = replace(options, phases_apart=True, device=_type_of(where, device))
    job = connect(wanted, where, check_inputs)
    compiler = Compiler(
        skeleton(model),
        options,
        job,
        placed=parameters == "dtensor" and job.size > 1,
        whole=outputs != "dtensor",
        outputs=() if isinstance(outputs, str) else outputs,
        torch_compile=where.type == CUDA if torch_compile is None else torch_compile,
        values={**dict(model.named_parameters()), **dict(model.named_buffers())},
    )
    runner = Runner(compiler, dynamic)
    modules, own = model.modules(), model.parameters()
    modes = Modes(tuple(m.training for m in modules), tuple(p.requires_grad for p in own))
    runner.variant(modes, *call_arguments(example_inputs), drawn={"seed": str(seed)})
    if job.rank == 0 and compiler.layouts.moved:
        warnings.warn(_moved_text(compiler.layouts), stacklevel=2)
    if job.rank == 0 and compiler.gathered and compiler.has_loss:
        warnings.warn(_gathered_text(compiler.gathered), stacklevel=2)
    return instance(model, runner, seed, local)


_OUTPUTS = Kind(
    lambda value: isinstance(value, str) or NAMES.fits(value),
    "'global', 'dtensor', or a list of names of outputs",
)


def _type_of(where: torch.device, device: str | torch.device | None) -> str:
    """Returns the type of the device that programs are for: the one where the model is.

    Raises:
        InvalidInputError: If the caller says another one.
    """
    if device is not None and type_of(device) != where.type:
        raise InvalidInputError(
            f"device={type_of(device)!r}, but this rank computes on {where}, where the model or its"
            " mesh is; leave device= out, or move the model there"
        )
    return where.type if where.type in DEVICES else CPU


def _check_types(model: nn.Module, seed: int, outputs: Outputs | Sequence[str]) -> None:
    if not isinstance(model, nn.Module):
        raise InvalidInputError(
            f"parallelize() was given a {type(model).__name__} as the model; it takes a"
            " torch.nn.Module"
        )
    expect(WHOLE, seed=seed)
    expect(_OUTPUTS, outputs=outputs)


def _check_options(
    mesh: MeshLike | None,
    parameters: Parameters,
    outputs: Outputs | Sequence[str],
    placement: Placement,
) -> None:
    if not isinstance(parameters, str) or parameters not in get_args(Parameters):
        raise InvalidInputError(f"parameters={shown(parameters)}; give 'dtensor' or 'local'")
    if isinstance(outputs, str) and outputs not in get_args(Outputs):
        raise InvalidInputError(
            f"outputs={outputs!r}; give 'global', 'dtensor', or a list of outputs, as [{outputs!r}]"
        )
    if isinstance(mesh, DeviceMesh) and placement != "identity":
        raise InvalidInputError("a DeviceMesh says which rank is where; leave placement= out")


def _check_plan(options: CompileOptions, plan: str | Path | None) -> None:
    if options.apart:
        raise InvalidInputError(
            f"{plan} lays fused weights out by their parts, but a parallel module's parameters are"
            " those of the model, whole; take `apart` and the pins of parts out"
        )


def _check_strategy(options: CompileOptions) -> None:
    strategy, mesh = options.strategy, options.mesh
    if strategy is None or strategy == AUTO:
        return
    for each in parse_strategy(strategy, mesh):
        if each.preset.keeps_state_only:
            raise InvalidInputError(
                f"strategy {strategy!r}: {each.preset} splits the optimizer's state, which is the"
                f" user's here and lies as parameters do; use {_with_most(strategy, mesh)!r}, which"
                " splits parameters, gradients and state, or autopar.compile() with the optimizer"
            )


def _with_most(strategy: str, mesh: ProcessMesh) -> str:
    """Returns a strategy that splits parameters wherever it would split the state alone."""
    return ",".join(
        str(replace(each, preset=KEEPING[0]) if each.preset.keeps_state_only else each)
        for each in parse_strategy(strategy, mesh)
    )


def _gathered_text(names: Sequence[str]) -> str:
    listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return (
        f"the model returns a loss and {listed}, which is gathered on every rank in each call; if"
        " the loss is all that you need of it, name it in outputs=, as outputs=['loss'], and with"
        " outputs='dtensor' the others are left split"
    )


def _moved_text(layouts: Layouts) -> str:
    listed = "; ".join(
        f"{name} as {layouts.stored[name]} and not {layouts.wanted[name]}"
        for name in layouts.moved[:4]
    )
    more = f"; and {len(layouts.moved) - 4} more" if len(layouts.moved) > 4 else ""
    return (
        f"DTensors can't be split within a dimension, so {counted(len(layouts.moved), 'parameter')}"
        f" kept in other pieces than computed in must be moved in each step: {listed}{more};"
        " parameters='local' saves that"
    )
