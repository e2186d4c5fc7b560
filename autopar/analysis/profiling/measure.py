"""From modules, programs and builds to profiles. Nothing is run, and no weight is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autopar.analysis.profiling.figures import Node
from autopar.analysis.profiling.inside import executed, figures_of, name_of
from autopar.analysis.profiling.show import Profile
from autopar.base.arguments import CALLABLE, FLAG, Kind, expect
from autopar.base.errors import InvalidInputError
from autopar.cost import (
    AUTOGRAD,
    EXACT,
    Allocator,
    Cluster,
    CommunicationModel,
    Evaluation,
    Execution,
    MemoryTimeline,
    evaluate,
    evaluate_together,
    kinds_of_ranks,
    memory_timeline,
    peak_rank_timeline,
)
from autopar.cost.memory.buffers import HOST, SAVED
from autopar.ir.builds.files import read_build
from autopar.ir.collectives import without_runs
from autopar.ir.deployment import Deployment
from autopar.ir.layers import layer_of
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops import RuleDefect
from autopar.ir.program import Program
from autopar.pipeline import Compiled, recorded_options
from autopar.pipeline.arguments import CLUSTER

if TYPE_CHECKING:
    from torch import Tensor, nn


_TARGET = Kind(
    lambda value: hasattr(value, "training") and not isinstance(value, type),
    "a made module, a program, a build folder, or what compile returned",
)


def profile(
    target: nn.Module | Program | Compiled | str | Path,
    inputs: Any = None,
    *,
    loss: Callable[..., Tensor] | None = None,
    backward: bool | None = None,
    keep_outputs: bool = True,
    cluster: str | Cluster | None = None,
    allocator: Allocator = EXACT,
) -> Profile:
    """Returns what a module costs under autograd, or a program when it is executed.

        >>> profile(model, (x, y), loss=nn.CrossEntropyLoss(), cluster="h100")  # doctest: +SKIP
        >>> profile("build/")  # doctest: +SKIP

    Args:
        target: A module, which may be on the meta device; an `fx.GraphModule`, whose nodes are the
            layers of the profile then; a program; or what `compile` or `compile_onnx` returned,
            or a build folder. Of these it is the class of ranks that takes longest;
            `profile_compiled` and `profile_build` return all classes.
        inputs: Of a module: its only input, a tuple of them, or a dict by name; with `loss`, a pair
            of that and the target. Shapes and dtypes count, and values only of what the module's
            code looks at.
        loss: `loss(model(inputs), target)`.
        backward: Whether gradients are computed: by default those of a module in training mode.
        keep_outputs: Whether what a module returned is held during the backward pass.
        cluster: The hardware: a profile's name, a YAML file, or a Cluster. By default `cpu`; of
            what is compiled, what it was compiled for.
        allocator: How bytes are rounded.

    Raises:
        AutoparError: If an argument can't be used as given.
    """
    expect(CLUSTER.or_none, cluster=cluster)
    expect(CALLABLE.or_none, loss=loss)
    expect(FLAG.or_none, backward=backward)
    expect(FLAG, keep_outputs=keep_outputs)
    named = Cluster.load(cluster) if isinstance(cluster, str) else cluster
    if isinstance(target, str | Path | Compiled | Program) and not (
        inputs is None and loss is None and backward is None
    ):
        raise InvalidInputError(
            "a program knows its inputs, its loss and its backward pass; leave them out"
        )
    if isinstance(target, str | Path):
        return _longest(profile_build(Path(target), named, allocator))
    if isinstance(target, Compiled):
        known = target.options.cluster if named is None else named
        return _longest(profile_compiled(target.serial, target.deployment, known, allocator))
    hardware = Cluster.load("cpu") if named is None else named
    if isinstance(target, Program):
        timeline = peak_rank_timeline(target, allocator=allocator)
        return _profile(target.name, hardware, target, timeline, evaluate(target, hardware))
    expect(_TARGET, target=target)
    return _of_module(target, inputs, loss, backward, keep_outputs, hardware, allocator)


def _longest(profiles: Sequence[Profile]) -> Profile:
    return max(profiles, key=lambda each: each.serialized_seconds)


def _of_module(
    module: nn.Module,
    inputs: Any,
    loss: Callable[..., Tensor] | None,
    backward: bool | None,
    keep_outputs: bool,
    cluster: Cluster,
    allocator: Allocator,
) -> Profile:
    from autopar.frontend.torch.capture.eager import record

    if inputs is None:
        raise InvalidInputError(
            f"{type(module).__name__} is a module: give inputs=, its only input, a tuple of them,"
            " or a dict by name; with loss=, a pair of that and the target"
        )
    trains = module.training if backward is None else backward
    found = record(module, inputs, loss=loss, backward=trains, keep_outputs=keep_outputs)
    timeline = memory_timeline(
        found.program,
        allocator=allocator,
        execution=replace(AUTOGRAD, until=found.until, kept_until=found.held),
    )
    evaluation = evaluate(found.program, cluster)
    title = f"{type(module).__name__} under autograd"
    return _profile(
        title, cluster, found.program, timeline, evaluation, found.layers, found.numbers
    )


def profile_compiled(
    serial: Program,
    deployment: Deployment,
    cluster: Cluster,
    allocator: Allocator = EXACT,
) -> tuple[Profile, ...]:
    """Returns the profiles of a compiled program, one per class of ranks that run one program.

    Of each class seconds are those of the rank with the largest blocks, and memory is that of the
    rank that takes most: where blocks are uneven, another one may.

    Args:
        serial: The completed serial program.
        deployment: The programs of the ranks.
        cluster: The hardware.
        allocator: How bytes are rounded.
    """
    mesh = serial.mesh
    axes_of = {name: _axes(name, mesh) for name in deployment.groups}
    sizes = {name: max(map(len, lists)) for name, lists in deployment.groups.items()}
    model = CommunicationModel(cluster, mesh) if mesh is not None else None
    execution = Execution(group_sizes=sizes)
    users = [_ranks_of(deployment, number) for number in range(len(deployment.programs))]
    runs = [
        (program, deployment.coords_of(ranks[0]))
        for program, ranks in zip(deployment.programs, users, strict=True)
    ]
    evaluations = evaluate_together(runs, cluster, model=model, axes_of=axes_of)
    found = []
    for program, ranks, costs in zip(deployment.programs, users, evaluations, strict=True):
        kinds = kinds_of_ranks(program, [deployment.coords_of(rank) for rank in ranks])
        timeline = peak_rank_timeline(program, kinds, allocator=allocator, execution=execution)
        title = f"{serial.name}: rank {ranks[0]} of {deployment.world_size}{_mesh_text(mesh)}"
        if len(ranks) < deployment.world_size:
            title += f", one of {len(ranks)} that run this program"
        found.append(_profile(title, cluster, program, timeline, costs))
    return tuple(found)


def _ranks_of(deployment: Deployment, program: int) -> list[int]:
    """Returns the ranks that run a program, by their coordinates."""
    ranks = [at for at, rank in enumerate(deployment.ranks) if rank.program == program]
    return sorted(ranks, key=lambda rank: deployment.ranks[rank].coords)


def profile_build(
    path: Path, cluster: Cluster | None = None, allocator: Allocator = EXACT
) -> tuple[Profile, ...]:
    """Returns the profiles of a build folder, one per class of ranks.

    Args:
        path: The folder.
        cluster: The hardware; by default that for which it was compiled.
        allocator: How bytes are rounded.

    Raises:
        InvalidInputError: If it isn't a build, or an older autopar wrote it and no cluster is
            given.
    """
    build = read_build(path)
    hardware = recorded_options(build).cluster if cluster is None else cluster
    try:
        return profile_compiled(build.serial, build.deployment, hardware, allocator)
    except RuleDefect as error:
        raise InvalidInputError(f"{path}: {error}; compile the model again") from error


def _axes(group: str, mesh: ProcessMesh | None) -> tuple[str, ...]:
    """Returns the mesh axes that a process group is named after."""
    names = without_runs(group.partition(":")[0])
    underscored = any("_" in axis for axis in (mesh.dim_names if mesh else ()))
    return tuple(names.split("." if underscored else "_"))


def _mesh_text(mesh: ProcessMesh | None) -> str:
    if mesh is None:
        return ""
    sizes = " x ".join(f"{axis}={size}" for axis, size in mesh.axis_sizes().items())
    return f" ({sizes})"


def _profile(
    title: str,
    cluster: Cluster,
    program: Program,
    timeline: MemoryTimeline,
    costs: Evaluation,
    layers: Sequence[str] | None = None,
    numbers: Sequence[int | None] = (),
) -> Profile:
    nodes = tuple(_nodes(timeline, costs, layers, _backward(costs, numbers)))
    return Profile(
        title,
        cluster.name,
        nodes,
        executed(nodes, timeline, costs, program.functions),
        timeline,
        costs,
    )


def _nodes(
    timeline: MemoryTimeline,
    costs: Evaluation,
    layers: Sequence[str] | None,
    backward: Mapping[int, tuple[int, int, float]],
) -> Iterator[Node]:
    made, saved = _made(timeline, len(costs.ops))
    for at, (op, cost) in enumerate(zip(costs.ops, costs.costs, strict=True)):
        yield Node(
            name_of(op),
            op.kind,
            layer_of(op) if layers is None else layers[at],
            op.phase,
            op.loc,
            *figures_of(cost),
            made[at],
            saved[at],
            timeline.at_bytes[at],
            timeline.after_bytes[at],
            *backward.get(at, ()),
        )


def _made(timeline: MemoryTimeline, count: int) -> tuple[list[int], list[int]]:
    """Returns, per op, the bytes of the memory that it takes, and of what of it is saved."""
    made, saved = [0] * count, [0] * count
    for buffer in timeline.lifetimes.buffers:
        if buffer.first >= 0 and buffer.kind != HOST:
            size = timeline.allocator.size(buffer.nbytes)
            made[buffer.first] += size
            saved[buffer.first] += size if buffer.kind == SAVED else 0
    return made, saved


def _backward(
    costs: Evaluation, numbers: Sequence[int | None]
) -> dict[int, tuple[int, int, float]]:
    """Returns flops, bytes and seconds of what differentiates each op of the forward phase."""
    forward: dict[int, int] = {}
    found: dict[int, tuple[int, int, float]] = {}
    for at, number in enumerate(numbers):
        if number is None:
            continue
        if costs.ops[at].phase == "forward":
            forward.setdefault(number, at)
        elif number in forward:
            cost, before = costs.costs[at], found.get(forward[number], (0, 0, 0.0))
            found[forward[number]] = (
                before[0] + cost.flops,
                before[1] + cost.moved_bytes,
                before[2] + cost.seconds,
            )
    return found
