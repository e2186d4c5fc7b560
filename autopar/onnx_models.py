"""What users call on an ONNX file: `compile_onnx` for a mesh.

autopar.compile_onnx("model.onnx", "build/", mesh="dp=2,tp=4", dims={"batch": 8})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autopar.annotate import MeshLike
from autopar.base.arguments import PATH, expect
from autopar.compiled import CompiledModel
from autopar.cost import Cluster
from autopar.frontend.onnx import import_onnx
from autopar.ir.text.layouts import Entry
from autopar.mapping import Placement
from autopar.pipeline import CompileOptions, compile_program
from autopar.pipeline.widths import Stages

if TYPE_CHECKING:
    import torch


def compile_onnx(
    model: str | Path,
    build: str | Path | None = None,
    *,
    dims: Mapping[str, int | str] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    allow_external: Sequence[str | Path] = (),
    state: Mapping[str, str] | None = None,
    pipeline: str = "",
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
    offload: str | Sequence[str] | None = None,
    chunks: Mapping[str, int | Sequence[int]] | None = None,
) -> CompiledModel:
    """Compiles an ONNX file for a mesh.

        >>> compile_onnx(
        ...     "model.onnx", "build/", mesh="dp=2,tp=4", dims={"batch": 8},
        ...     shard={"encoder.*.weight": [None, "tp"]},
        ... )  # doctest: +SKIP

    Args:
        model: The file.
        build: The folder to write, if any; an older build there is replaced.
        dims: Sizes of symbolic dimensions: 8 binds one, "1:64" says what it may be, and "8~1:64"
            for which size to plan, too. Others stay open.
        input_shapes: Shapes of inputs.
        allow_external: Folders beside the model's own that may hold its external data.
        state: Outputs that are inputs of the next call, by input, as "past_key_values.*":
            "present.*". They stay on the ranks from call to call, laid out as the plan says; they
            begin as zeros, open sizes of theirs as small as may be.
        pipeline: The mesh axis along which the stages of the model lie. It is cut so that a batch
            takes the least predicted time; stage s runs on index s.
        stages: At how many indices of the axis each stage is, as in `autopar.compile`.
        microbatches: How many the batch is cut into, which pass through the model one after
            another, or from stage to stage of a pipeline.
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
        offload: What waits in the host's memory between uses: `parameters`, or patterns of names as
            `shard` takes them, one or a list. A device holds two buckets of it, one in use and
            one under way. By default `memory` decides, where the cluster has a link to that memory;
            [] for nothing.
        chunks: What is computed in parts, one after another, so that it is never there as a whole:
            by pattern of names of modules or values into how many parts, `{"lm_head": 8}`, or
            along which dimension too, `{"lm_head": (0, 8)}`. What is large around it follows as
            far as its ops allow it.

    Returns:
        What was compiled, which can be saved too.

    Raises:
        AutoparError: If the model, an argument or a pin can't be used as given.
    """
    expect(PATH, model=model)
    expect(PATH.or_none, build=build)
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
    options = options.in_stages(pipeline, microbatches=microbatches, stages=stages)
    options = options.offloading(offload).in_chunks(chunks)
    imported = import_onnx(
        model,
        dims=dims,
        input_shapes=input_shapes,
        allow_external=allow_external,
        state=state,
    )
    imported = imported.recognized(options.pinned(imported.program))
    compiled = compile_program(imported.program, options, report=imported.report)
    made = CompiledModel.of(compiled, imported.program, imported.weights)
    if build is not None:
        made.save(build)
    return made
