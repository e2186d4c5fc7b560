"""The order of the passes, from a model to a build folder.

    frontend -> annotate -> completion -> legalize -> partition -> coalesce -> prefetch
    -> recompute -> mapping -> strip

Passes never call one another; this is the one place that knows their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autopar import __version__
from autopar.annotate import (
    MeshLike,
    OpPin,
    Pin,
    apply_mesh,
    apply_op_pins,
    apply_pins,
    as_mesh,
    load_annotations,
    parse_mesh,
    parse_pin,
    refuse_unexecuted,
)
from autopar.annotate.mapping_text import Entry
from autopar.completion import Complete, Legalize, explain
from autopar.completion.presets.strategy import AUTO, parse_strategy
from autopar.cost import Cluster, CommunicationModel, ReshardPlanner
from autopar.ir.deployment import Deployment
from autopar.ir.errors import AnnotationError, InvalidInputError, near_misses
from autopar.ir.layout import Layout, Origin
from autopar.ir.manifest import ReportEntry
from autopar.ir.mesh import ProcessMesh
from autopar.ir.passes import Pass
from autopar.ir.program import STORED_ROLES, Program
from autopar.ir.text import print_program
from autopar.ir.units import parse_limit
from autopar.ir.verify import verify_distribution, verify_structure
from autopar.mapping import Placement, deploy, parse_placement
from autopar.mapping.placement import given
from autopar.partition import Coalesce, Partition, Prefetch, Recompute
from autopar.planning.mesh_shape import fastest_shapes
from autopar.planning.recorded import Recorded
from autopar.planning.within_memory import complete_within

if TYPE_CHECKING:
    import torch

Observer = Callable[[str, Program], None]
"""Called with (pass name, program) after each pass."""

NO_PRESETS = "none"
"""As a strategy in text: nothing but the user's pins."""

PASSES = (
    *("annotate", "complete", "legalize", "partition", "coalesce", "prefetch", "recompute"),
    *("map", "strip"),
)


@dataclass(frozen=True)
class CompileOptions:
    """What a user decides about a compilation.

    Attributes:
        mesh: The logical processes to compile for.
        cluster: The hardware whose costs guide the decisions.
        strategy: Presets as `data:0,tensor:1`; "" for the mesh's default, None for no presets,
            `auto` to search.
        pins: The user's pins.
        placement: Which logical process each rank carries out.
        verify: Whether to verify the program between passes.
        phases_apart: Whether the forward pass must not wait for anything of the backward pass.
        memory_bytes: What a device may hold at once; None for any number.
        seconds_limit: Wall time of a search, after which it takes the best plan so far.
        op_pins: The user's pins of ops.
    """

    mesh: ProcessMesh
    cluster: Cluster
    strategy: str | None = ""
    pins: tuple[Pin, ...] = ()
    placement: Placement = "identity"
    verify: bool = True
    phases_apart: bool = False
    memory_bytes: int | None = None
    seconds_limit: float | None = None
    op_pins: tuple[OpPin, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        mesh: MeshLike,
        strategy: str | None = "",
        shard: Mapping[str, Sequence[Entry]] | None = None,
        cluster: str | Cluster = "cpu",
        placement: Placement = "identity",
        memory: str | int | None = None,
        plan: str | Path | None = None,
    ) -> CompileOptions:
        """Returns the options as Python callers give them; see `compile_onnx`.

        Raises:
            AnnotationError, InvalidInputError: If an option can't be understood.
        """
        pins = tuple(Pin.of(pattern, mapping) for pattern, mapping in (shard or {}).items())
        options = cls(
            mesh=as_mesh(mesh),
            cluster=Cluster.load(cluster) if isinstance(cluster, str) else cluster,
            strategy=None if strategy == NO_PRESETS else strategy,
            pins=pins,
            placement=placement,
            memory_bytes=None if memory is None else parse_limit(memory),
        )
        return options if plan is None else options.with_file(Path(plan))

    @classmethod
    def from_text(
        cls,
        *,
        mesh: str,
        cluster: str = "cpu",
        strategy: str = "",
        shards: Sequence[str] = (),
        annotations: Path | None = None,
        placement: str = "identity",
        memory: str | None = None,
        time_limit: float | None = None,
        verify: bool = True,
    ) -> CompileOptions:
        """Returns the options that a command line spells out.

        The strategy may also be `none`: no presets.

        Raises:
            AnnotationError, InvalidInputError: If an option can't be understood.
        """
        parsed = parse_mesh(mesh)
        pins = [parse_pin(text, f"--shard '{text}'") for text in shards]
        if strategy not in ("", NO_PRESETS, AUTO):
            parse_strategy(strategy, parsed)
        placed = parse_placement(placement)
        options = cls(
            mesh=parsed,
            cluster=Cluster.load(cluster),
            strategy=None if strategy == NO_PRESETS else strategy,
            pins=tuple(pins),
            placement=given(parsed, placed) if isinstance(placed, tuple) else placed,
            memory_bytes=None if memory is None else parse_limit(memory),
            seconds_limit=time_limit,
            verify=verify,
        )
        return options if annotations is None else options.with_file(annotations)

    def with_file(self, path: Path) -> CompileOptions:
        """Returns the options with what an annotation file or a plan says besides.

        Raises:
            AnnotationError, InvalidInputError: If it can't be read, or is for another mesh.
        """
        loaded = load_annotations(path)
        if loaded.mesh is not None and loaded.mesh != self.mesh:
            raise AnnotationError(
                f"{path} is for {loaded.mesh}, but --mesh says {self.mesh}; make them equal"
            )
        strategy = self.strategy
        if strategy == "" and loaded.strategy is not None:
            strategy = None if loaded.strategy == NO_PRESETS else loaded.strategy
        return replace(
            self,
            strategy=strategy,
            pins=(*self.pins, *loaded.pins),
            op_pins=(*self.op_pins, *loaded.ops),
        )


@dataclass(frozen=True)
class Compiled:
    """A compiled program.

    Attributes:
        serial: The completed program, with all attributes, that the ranks' programs realize.
        completed: The same before ops were replaced by bodies.
        options: What the user decided.
        partitioned: What a rank runs, before mapping and strip.
        deployment: The executable programs and which rank runs which.
        report: What the user should know: fallbacks, ignored features, decided conflicts.
    """

    serial: Program
    completed: Program
    options: CompileOptions
    partitioned: Program
    deployment: Deployment
    report: tuple[ReportEntry, ...] = ()

    def stored_layouts(self) -> dict[str, Layout]:
        """Returns how what is stored lies, by value name."""
        values = self.serial.main.values
        stored = [port.name for port in self.serial.signature.inputs if port.role in STORED_ROLES]
        return {name: dist for name in stored if (dist := values[name].dist) is not None}


def parse_dims(texts: Sequence[str]) -> dict[str, int]:
    """Returns the sizes by symbolic dimension that options such as `batch=8` bind.

    Raises:
        InvalidInputError: If an option can't be understood, or contradicts an earlier one.
    """
    sizes: dict[str, int] = {}
    for text in texts:
        name, equals, size = (part.strip() for part in text.rpartition("="))
        if not equals or not name or not _is_size(size):
            raise InvalidInputError(f"--dim {text}: write NAME=SIZE, as batch=8")
        if sizes.setdefault(name, int(size)) != int(size):
            raise InvalidInputError(f"--dim {text} contradicts --dim {name}={sizes[name]}")
    return sizes


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes by input that options such as `ids:8,128` give.

    Raises:
        InvalidInputError: If an option can't be understood, or contradicts an earlier one.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        # A name may hold colons, sizes can't.
        name, colon, sizes = (part.strip() for part in text.rpartition(":"))
        parts = [part.strip() for part in sizes.split(",")] if sizes else []
        if not colon or not name or not all(map(_is_size, parts)):
            raise InvalidInputError(f"--input-shape {text}: write NAME:SIZES, as ids:8,128")
        shape = tuple(map(int, parts))
        if shapes.setdefault(name, shape) != shape:
            earlier = ",".join(map(str, shapes[name]))
            raise InvalidInputError(
                f"--input-shape {text} contradicts --input-shape {name}:{earlier}"
            )
    return shapes


def compile_program(
    program: Program,
    options: CompileOptions,
    observe: Observer | None = None,
    report: Sequence[ReportEntry] = (),
    store: Callable[[Program], Program] | None = None,
) -> Compiled:
    """Compiles a serial program for a mesh.

    Args:
        program: The program for one device.
        options: What the user decided.
        observe: Called after each pass.
        report: Entries of the frontend, to be put before those of the passes.
        store: Says of the completed program how inputs and outputs are to be stored, where that
            isn't how its ops want them.

    Raises:
        AnnotationError: If pins contradict the program or one another, or ask for what isn't
            carried out yet.
        VerificationError: If a pass left a program that violates the IR's rules: a defect.
    """
    observers: list[Observer] = [_verify] if options.verify else []
    if observe is not None:
        observers.append(observe)

    def seen(name: str, done: Program) -> None:
        for observer in observers:
            observer(name, done)

    if options.pins:
        program = apply_pins(program, options.mesh, options.pins)
    program = apply_op_pins(apply_mesh(program, options.mesh), options.op_pins)
    seen("annotate", program)
    refuse_unexecuted(program)
    planner = ReshardPlanner(CommunicationModel(options.cluster, options.mesh))
    complete = Complete(
        options.cluster, options.strategy, planner, seconds_limit=options.seconds_limit
    )
    if options.strategy == AUTO and options.memory_bytes is not None:
        decided = complete_within(
            complete,
            program,
            lambda completed: lower(completed, options, planner, store=store)[1],
            options.cluster,
            options.memory_bytes,
        )
    else:
        decided = complete.decide(program)
    completed = decided.program
    seen(complete.name, completed)
    program, partitioned = lower(completed, options, planner, seen, store)
    recompute = Recompute(options.cluster, options.memory_bytes)
    fitted = recompute.decide(partitioned)
    partitioned = fitted.program
    seen(recompute.name, partitioned)
    deployment = deploy(partitioned, options.cluster, options.placement, seen)
    entries = (*report, *decided.remarks, *fitted.remarks, *explain(program, planner))
    return Compiled(program, completed, options, partitioned, deployment, entries)


def with_fastest_mesh(program: Program, options: CompileOptions) -> CompileOptions:
    """Returns the options with the mesh shape, of as many processes, of the fastest plan.

    Args:
        program: The serial program.
        options: With any mesh of as many processes.
    """
    complete = Complete(options.cluster, AUTO, seconds_limit=options.seconds_limit)
    shapes = fastest_shapes(program, options.mesh.size, complete)
    return replace(options, mesh=shapes[0].mesh, strategy=AUTO)


def _unseen(name: str, program: Program) -> None:
    """Observes nothing: the program is one of several."""


def lower(
    completed: Program,
    options: CompileOptions,
    planner: ReshardPlanner,
    seen: Observer = _unseen,
    store: Callable[[Program], Program] | None = None,
) -> tuple[Program, Program]:
    """Returns a completed program legalized, and what a rank runs of it.

    What is to be recomputed for lack of memory isn't decided yet.

    Args:
        completed: The program.
        options: What the user decided.
        planner: Knows reshards of earlier passes.
        seen: Called after each pass.
        store: See `compile_program`.
    """
    legalize = Legalize(options.cluster, planner)
    coalesce = Coalesce(options.cluster, phases_apart=options.phases_apart)
    passes: tuple[Pass, ...] = (Partition(options.cluster, planner), coalesce, Prefetch())
    legal = legalize(completed)
    seen(legalize.name, legal)
    legal = partitioned = legal if store is None else store(legal)
    for each in passes:
        partitioned = each(partitioned)
        seen(each.name, partitioned)
    return legal, partitioned


def predicted(completed: Program, options: CompileOptions, planner: ReshardPlanner) -> Program:
    """Returns what a rank would run of a completed program, to be priced.

    Raises:
        AutoparError: If it can't be made to fit into memory.
    """
    _, partitioned = lower(completed, options, planner)
    return Recompute(options.cluster, options.memory_bytes)(partitioned)


def inherit(program: Program, layouts: Mapping[str, Layout]) -> Program:
    """Returns a serial program in which values lie as another one over the same storage has them.

    Args:
        program: The program, with the user's pins: the other one may have placed those within a
            dimension.
        layouts: Of inputs, by name.
    """
    values = dict(program.main.values)
    for name, layout in layouts.items():
        if name in values:
            values[name] = replace(values[name], dist=layout, origin=INHERITED)
    return program.with_main(replace(program.main, values=values))


INHERITED = Origin("inherited", "stored as for the first batch")


def write(
    compiled: Compiled,
    weights: Mapping[str, torch.Tensor],
    path: Path,
    variants: Sequence[Compiled] = (),
) -> None:
    """Writes a build folder; an old build at `path` stays whole until the new one is complete.

    Args:
        compiled: The compiled program.
        weights: What it stores, by name.
        path: The folder.
        variants: Programs over the same weights for inputs of other shapes.

    Raises:
        InvalidInputError: If the folder can't be written, or is something else than a build.
    """
    from autopar.ir.build import write_build
    from autopar.runtime.weights import write_weights

    chosen = compiled.options
    write_build(
        path,
        serial=compiled.serial,
        deployment=compiled.deployment,
        autopar_version=__version__,
        report=compiled.report,
        write_weights=lambda file: write_weights(file, weights),
        variants=[(each.serial, each.deployment) for each in variants],
        completed=compiled.completed if _has_bodies(compiled.completed) else None,
        options=Recorded(chosen.cluster, chosen.strategy, chosen.memory_bytes).text(),
    )


def _has_bodies(program: Program) -> bool:
    return any(op.dist is not None and op.dist.body for op in program.main.ops)


def compile_onnx(
    model: str | Path,
    build: str | Path,
    *,
    mesh: MeshLike,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    strategy: str | None = "",
    shard: Mapping[str, Sequence[Entry]] | None = None,
    cluster: str | Cluster = "cpu",
    placement: Placement = "identity",
    plan: str | Path | None = None,
) -> Compiled:
    """Compiles an ONNX file into a build folder.

        >>> compile_onnx(
        ...     "model.onnx", "build/", mesh="dp=2,tp=4", dims={"batch": 8},
        ...     shard={"encoder.*.weight": [None, "tp"]},
        ... )  # doctest: +SKIP

    Args:
        model: The file.
        build: The folder to write; an older build there is replaced.
        mesh: The processes: a mesh, a torch DeviceMesh, or text as `2x4` or `dp=2,tp=4`.
        dims: Sizes of symbolic dimensions.
        input_shapes: Shapes of inputs.
        strategy: Presets as `data:0,tensor:1`; "" for the mesh's default, `none` or None for no
            presets.
        shard: Pins: a dims_mapping by name pattern.
        cluster: The hardware: a profile's name, a YAML file, or a Cluster.
        placement: Which logical process each rank carries out.
        plan: A file with pins, or a plan that `autopar plan` wrote.

    Raises:
        AutoparError: If the model, an option or a pin can't be used as given.
    """
    from autopar.frontend.onnx import import_onnx

    imported = import_onnx(model, dims=dims, input_shapes=input_shapes)
    options = CompileOptions.of(
        mesh=mesh,
        strategy=strategy,
        shard=shard,
        cluster=cluster,
        placement=placement,
        plan=plan,
    )
    compiled = compile_program(imported.program, options, report=imported.report)
    write(compiled, imported.weights, Path(build))
    return compiled


def printer(names: Sequence[str], echo: Callable[[str], None]) -> Observer | None:
    """Returns an observer that prints the program after the named passes; None for no names.

    Raises:
        InvalidInputError: If there is no pass of a name.
    """
    for name in names:
        if name not in PASSES:
            raise InvalidInputError(
                f"--print-after {name}: no such pass, only {', '.join(PASSES)}"
                f"{near_misses(name, PASSES)}"
            )

    def show(name: str, program: Program) -> None:
        if name in names:
            echo(print_program(program))

    return show if names else None


def _verify(name: str, program: Program) -> None:
    verify_structure(program)
    if name in ("complete", "legalize"):
        verify_distribution(program)


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18
