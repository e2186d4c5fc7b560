"""What a user decides about a compilation, as Python callers and command lines say it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from autopar.annotate import (
    ActivationPin,
    ChunkPin,
    MeshLike,
    OffloadPin,
    OpPin,
    Pin,
    as_mesh,
    load_annotations,
    parse_pin,
    pinned_names,
    pinned_results,
)
from autopar.annotate.stages import check_axis
from autopar.base.arguments import COUNT, MAPPING, NAMES, TEXT, Kind, expect, one_name
from autopar.base.errors import AnnotationError, InvalidInputError
from autopar.base.units import parse_limit
from autopar.completion.presets.strategy import AUTO, parse_strategy
from autopar.cost import Cluster
from autopar.ir.devices import CPU, type_of
from autopar.ir.memory.transfers import EITHER, PLACES
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program
from autopar.mapping import Placement, parse_placement
from autopar.mapping.placement import given
from autopar.partition.pipeline.runs import Runs, Widths
from autopar.partition.pipeline.schedules import AUTO_SCHEDULE, DEFAULT_SCHEDULE, SCHEDULES
from autopar.pipeline.arguments import (
    DEFAULTS,
    CompileArguments,
    Spelling,
    check_arguments,
    in_python,
    on_command_line,
)
from autopar.pipeline.widths import Stages, checked_widths, is_auto

_SCHEDULE = one_name((*SCHEDULES, AUTO_SCHEDULE))

OFFLOAD = "offload"
"""Where a pin stands that says what another one came to."""

_UPDATE = one_name(PLACES)

_PATTERNS = Kind(
    lambda value: value is None or isinstance(value, str) or NAMES.fits(value),
    "a pattern of names, or a list of them",
)

_CHUNKS = replace(MAPPING, words="a dict, as {'lm_head': 8}").or_none

NO_PRESETS = "none"
"""As a strategy in text: nothing but the user's pins."""


@dataclass(frozen=True)
class CompileOptions:
    """What a user decides about a compilation.

    Attributes:
        mesh: The logical processes to compile for.
        cluster: The hardware whose costs guide the decisions.
        strategy: `auto` to search, presets as `data:0,tensor:1`, or None for neither.
        pins: The user's pins.
        placement: Which logical process each rank carries out.
        verify: Whether to verify the program between passes.
        phases_apart: Whether the forward pass must not wait for anything of the backward pass.
        memory_bytes: What a device may hold at once; None for any number.
        memory_place: The file that says so; "" if the caller does.
        time_limit: Wall time of a search, after which it takes the best plan so far.
        effort: How many times the usual work a search may do.
        op_pins: The user's pins of ops.
        apart: Whether pins name fused weights of unequal parts by their parts.
        activations: What becomes of activations until the backward pass, where the user says it.
        any_shape: Whether the mesh only says how many processes there are, and its shape is
            searched.
        pipeline: The mesh axis along which the stages of a pipeline lie; "" for no pipeline.
        schedule: In which order processes do their parts of it.
        widths: At how many indices of the axis the processes of stages are; none: at one each.
        any_widths: Whether these are searched.
        microbatches: How many the batch of a program of inference is cut into.
        offload: Which stored tensors wait in the host's memory; None where `memory_bytes` decides.
        chunks: What is computed in parts, one after another; None where `memory_bytes` decides.
        update: Who updates these, one of `PLACES`.
        device: The type of the devices that ranks compute on, one of `DEVICES`.
    """

    mesh: ProcessMesh
    cluster: Cluster
    strategy: str | None = AUTO
    pins: tuple[Pin, ...] = ()
    placement: Placement = "identity"
    verify: bool = True
    phases_apart: bool = False
    memory_bytes: int | None = None
    memory_place: str = ""
    time_limit: float | None = None
    effort: float = 1.0
    op_pins: tuple[OpPin, ...] = ()
    apart: bool = False
    activations: tuple[ActivationPin, ...] = ()
    any_shape: bool = False
    pipeline: str = ""
    schedule: str = DEFAULT_SCHEDULE
    widths: Widths = ()
    any_widths: bool = False
    microbatches: int = 1
    offload: tuple[OffloadPin, ...] | None = None
    chunks: tuple[ChunkPin, ...] | None = None
    update: str = EITHER
    device: str = CPU

    @classmethod
    def from_arguments(cls, **arguments: Unpack[CompileArguments]) -> CompileOptions:
        """Returns the options as Python callers give them.

        Raises:
            AnnotationError, InvalidInputError: If an argument can't be understood.
        """
        check_arguments(arguments)
        shard = arguments.get("shard") or {}
        pins = tuple(Pin.from_entries(pattern, mapping) for pattern, mapping in shard.items())
        return _finished(_said(arguments, pins, in_python), arguments.get("plan"), in_python)

    @classmethod
    def from_text(
        cls,
        *,
        shards: Sequence[str] = (),
        verify: bool = True,
        words: Callable[[], AbstractContextManager[None]] = nullcontext,
        **arguments: Unpack[CompileArguments],
    ) -> CompileOptions:
        """Returns the options that a command line spells out.

        Args:
            shards: Pins, as text.
            verify: Whether to verify the program between passes.
            words: Entered while what the texts say is looked at, and left for what a plan says.
            arguments: The same as of Python callers, of which texts mean the same; no `shard`.

        Raises:
            AnnotationError, InvalidInputError: If an argument can't be understood.
        """
        with words():
            pins = tuple(parse_pin(text, f"--shard '{text}'") for text in shards)
            said = _said(arguments, pins, on_command_line)
            if said.any_shape or arguments.get("plan") is None:
                _finished(said, None, on_command_line)
        return replace(_finished(said, arguments.get("plan"), on_command_line), verify=verify)

    def in_stages(
        self,
        pipeline: str,
        *,
        schedule: str = DEFAULT_SCHEDULE,
        microbatches: int = 1,
        stages: Stages = None,
        default: str = DEFAULT_SCHEDULE,
    ) -> CompileOptions:
        """Returns the options of a pipeline along an axis of the mesh; "" for none.

        Args:
            pipeline: The axis.
            schedule: In which order processes do their parts.
            microbatches: How many the batch of a program of inference is cut into.
            stages: At how many indices of the axis the processes of stages are, as (3, 1), which
                together are all of them; `auto` for the fastest; None: at one each.
            default: The schedule of which nothing is said.

        Raises:
            InvalidInputError: If there is no such schedule, or one is said without a pipeline, the
                shape of the mesh is searched, or there are other numbers of indices.
            AnnotationError: If the mesh has no such axis.
        """
        expect(TEXT, pipeline=pipeline)
        expect(_SCHEDULE, schedule=schedule)
        expect(COUNT, microbatches=microbatches)
        if pipeline and self.any_shape:
            raise InvalidInputError(
                f"pipeline={pipeline!r} is an axis of a certain mesh; give mesh= in the place of"
                " devices="
            )
        if pipeline:
            check_axis(self.mesh, pipeline)
        if not pipeline and schedule == AUTO_SCHEDULE:
            schedule = DEFAULT_SCHEDULE
        if not pipeline and schedule not in (DEFAULT_SCHEDULE, default):
            raise InvalidInputError(
                f"schedule={schedule!r} is for a pipeline; say along which axis, as pipeline='pp'"
            )
        return replace(
            self,
            pipeline=pipeline,
            schedule=schedule,
            microbatches=microbatches,
            widths=checked_widths(stages, self.mesh, pipeline),
            any_widths=is_auto(stages),
        )

    def offloading(
        self,
        offload: str | Sequence[str] | None,
        spelled: Spelling = in_python,
        *,
        update: str = EITHER,
    ) -> CompileOptions:
        """Returns the options with patterns of what waits in the host's memory; None for none.

        Args:
            offload: The patterns.
            spelled: Says how the user wrote an argument.
            update: Who updates what waits there.

        Raises:
            InvalidInputError: If they are no texts, or there is no such place.
        """
        expect(_PATTERNS, offload=offload)
        expect(_UPDATE, update=update)
        self = replace(self, update=update if update != EITHER else self.update)
        if offload is None:
            return self
        patterns = (offload,) if isinstance(offload, str) else offload
        pins = tuple(OffloadPin(each, spelled("offload", repr(each))) for each in patterns)
        return replace(self, offload=pins)

    def with_offload(self, labels: Sequence[str]) -> CompileOptions:
        """Returns the options with what waits in the host's memory, by exact labels."""
        return replace(self, offload=tuple(OffloadPin(label, OFFLOAD) for label in labels))

    def in_chunks(self, chunks: Mapping[str, int | Sequence[int]] | None) -> CompileOptions:
        """Returns the options with what is computed in parts, by name; None if nobody says it.

        Raises:
            AnnotationError, InvalidInputError: If it isn't said in how many parts.
        """
        expect(_CHUNKS, chunks=chunks)
        if chunks is None:
            return self
        return self.with_chunks(ChunkPin.from_entry(*each) for each in chunks.items())

    def with_chunk_texts(self, texts: Sequence[str]) -> CompileOptions:
        """Returns the options with what a command line says of chunks.

        Raises:
            AnnotationError: If a text spells no chunk.
        """
        return self.with_chunks(map(ChunkPin.from_text, texts)) if texts else self

    def with_chunks(self, chunks: Iterable[ChunkPin]) -> CompileOptions:
        """Returns the options with what is computed in parts."""
        return replace(self, chunks=tuple(chunks))

    @property
    def chooses_chunks(self) -> bool:
        """Whether a limit of memory decides what is computed in parts."""
        limited = self.memory_bytes is not None and self.chunks is None
        return limited and not self.phases_apart

    @property
    def offloaded(self) -> tuple[str, ...] | None:
        """The labels of what waits in the host's memory, where options name these alone."""
        return None if self.offload is None else tuple(pin.pattern for pin in self.offload)

    @property
    def runs(self) -> Runs:
        """The runs of the pipeline's axis at which stages are."""
        return Runs.of(self.mesh, self.pipeline, self.widths)

    def process_of(self, stage: int) -> int:
        """Returns the number of the run of the pipeline's axis at which a stage runs."""
        return SCHEDULES[self.schedule].pipeline(len(self.runs), stage + 1, 1).process_of(stage)

    def index_of(self, stage: int) -> int | range:
        """Returns the index, or run of indices, of the pipeline's axis at which a stage runs."""
        return self.runs.indices[self.process_of(stage)]

    def with_file(self, path: Path, spelled: Spelling = in_python) -> CompileOptions:
        """Returns the options with what an annotation file or a plan says besides.

        Args:
            path: The file.
            spelled: Says how the user wrote an argument.

        Raises:
            AnnotationError, InvalidInputError: If it can't be read, or is for another mesh.
        """
        loaded = load_annotations(path)
        if loaded.mesh is not None and loaded.mesh != self.mesh:
            raise AnnotationError(
                f"{path} is for {loaded.mesh}, but {spelled('mesh')} says {self.mesh}; make them"
                " equal"
            )
        strategy = self.strategy
        if strategy == "" and loaded.strategy is not None:
            strategy = None if loaded.strategy == NO_PRESETS else loaded.strategy
            if not self.any_shape:
                _check_strategy(strategy, self.mesh, f"{path}: ")
        says_memory = self.memory_bytes is None and loaded.memory_bytes is not None
        return replace(
            self,
            strategy=strategy,
            memory_bytes=loaded.memory_bytes if says_memory else self.memory_bytes,
            memory_place=str(path) if says_memory else self.memory_place,
            pins=(*self.pins, *loaded.pins),
            op_pins=(*self.op_pins, *loaded.ops),
            apart=self.apart or loaded.apart,
            activations=(*loaded.activations, *self.activations),
            offload=loaded.offload if self.offload is None else self.offload,
            chunks=loaded.chunks if self.chunks is None else self.chunks,
            update=loaded.update if self.update == EITHER else self.update,
        )

    def pinned(self, program: Program) -> frozenset[str]:
        """Returns the names of the values of a program that the user's pins are about."""
        return pinned_names(program, self.pins) | pinned_results(program, self.op_pins)


def _said(arguments: CompileArguments, pins: tuple[Pin, ...], spelled: Spelling) -> CompileOptions:
    """Returns the options that arguments mean, but for the plan.

    Args:
        arguments: The arguments.
        pins: The user's pins.
        spelled: Says how the user wrote an argument.

    Raises:
        AnnotationError, InvalidInputError: If one can't be understood.
    """
    said: CompileArguments = {**DEFAULTS, **arguments}
    mesh = _mesh(said["mesh"], said["devices"], spelled)
    strategy, cluster, memory = said["strategy"], said["cluster"], said["memory"]
    hardware = Cluster.load(cluster) if isinstance(cluster, str) else cluster
    options = CompileOptions(
        mesh=mesh,
        cluster=hardware,
        device=type_of(said["device"] or hardware.device_type),
        strategy=None if strategy == NO_PRESETS else strategy,
        pins=pins,
        placement=_placed(said["placement"], mesh),
        memory_bytes=None if memory is None else parse_limit(memory),
        time_limit=_seconds(said["time_limit"], spelled),
        effort=_effort(said["effort"], spelled),
        activations=tuple(
            ActivationPin.from_choice(*each) for each in (said["activations"] or {}).items()
        ),
        any_shape=said["devices"] is not None,
    )
    if not options.any_shape:
        _check_strategy(options.strategy, mesh)
    return options


def _finished(
    options: CompileOptions, plan: str | Path | None, spelled: Spelling
) -> CompileOptions:
    """Returns options with what a plan says besides, if there is one.

    Raises:
        AnnotationError, InvalidInputError: If the file can't be used, or something is for a
            certain mesh while the shape of the mesh is searched.
    """
    if options.any_shape:
        options = _on_any_mesh(options, plan, spelled)
    elif plan is not None:
        options = options.with_file(Path(plan), spelled)
    return replace(options, strategy=AUTO) if options.strategy == "" else options


def _on_any_mesh(
    options: CompileOptions, plan: str | Path | None, spelled: Spelling
) -> CompileOptions:
    """Returns options for a mesh whose shape is searched, with a file's if there is one.

    Raises:
        AnnotationError, InvalidInputError: If the file can't be read, or something is for a
            certain mesh.
    """
    found = options
    if plan is not None:
        # What it says of a mesh is told apart from what it says on any.
        mesh = load_annotations(Path(plan)).mesh
        if mesh is not None:
            raise AnnotationError(
                f"{plan} is for {mesh}, so the shape of the mesh isn't searched; give this mesh as"
                f" {spelled('mesh')} in the place of {spelled('devices')}"
            )
        found = options.with_file(Path(plan), spelled)
    place = "" if found.strategy == options.strategy else f"{plan}: "
    problem = _for_a_mesh(found, place)
    if problem:
        raise InvalidInputError(
            f"{problem}, so the shape of the mesh isn't searched; give {spelled('mesh')} in the"
            f" place of {spelled('devices')}"
        )
    return found


def _for_a_mesh(options: CompileOptions, place: str) -> str:
    """Returns what was given that is for a certain mesh, "" if nothing is.

    Args:
        options: The options.
        place: Where the strategy stands, to begin with.
    """
    if options.strategy not in ("", AUTO):
        return f"{place}strategy {options.strategy or NO_PRESETS!r} is for a certain mesh"
    places = [*(pin.place for pin in options.pins), *(pin.place for pin in options.op_pins)]
    return f"{places[0]}: a pin names axes of a certain mesh" if places else ""


def _mesh(mesh: MeshLike | None, devices: int | None, spelled: Spelling) -> ProcessMesh:
    """Returns the mesh, or one axis of so many devices to begin the search of a shape with.

    Raises:
        AnnotationError: If the mesh can't be understood.
        InvalidInputError: If there is neither or both, or there are no devices.
    """
    if mesh is not None:
        if devices is not None:
            raise InvalidInputError(
                f"{spelled('mesh')} says how many processes; leave out {spelled('devices')}"
            )
        return as_mesh(mesh)
    if devices is None:
        raise InvalidInputError(
            f"give {spelled('mesh')}, or {spelled('devices')} to search the shape of a mesh"
        )
    if devices < 1:
        raise InvalidInputError(f"{spelled('devices', devices)}: a mesh needs at least one")
    return as_mesh(str(devices))


def _check_strategy(strategy: str | None, mesh: ProcessMesh, place: str = "") -> None:
    """Refuses presets that there are none of, or that don't suit a mesh.

    Raises:
        AnnotationError: If there are such.
    """
    if strategy is None or strategy in ("", AUTO):
        return
    try:
        parse_strategy(strategy, mesh)
    except AnnotationError as error:
        raise AnnotationError(f"{place}{error}") from error


def _placed(placement: Placement, mesh: ProcessMesh) -> Placement:
    """Returns a placement, of which ids are checked.

    Raises:
        InvalidInputError: If it can't be read, or doesn't fit the mesh.
    """
    placed = parse_placement(placement) if isinstance(placement, str) else placement
    return placed if isinstance(placed, str) else given(mesh, placed)


def _effort(effort: float, spelled: Spelling) -> float:
    """Returns how many times the usual work a search may do.

    Raises:
        InvalidInputError: If it isn't above 0, or no number.
    """
    if not 0 < effort < math.inf:
        raise InvalidInputError(
            f"{spelled('effort', effort)}: give how many times the usual work a search may do, as"
            " 10, or 0.5"
        )
    return effort


def _seconds(limit: float | None, spelled: Spelling) -> float | None:
    """Returns a limit of time.

    Raises:
        InvalidInputError: If it is below 0, or no number.
    """
    if limit is not None and not limit >= 0:
        raise InvalidInputError(
            f"{spelled('time_limit', limit)}: a search takes no less than 0 seconds"
        )
    return limit
