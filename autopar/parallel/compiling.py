"""Compiles a module for a call: captured on all ranks, planned on rank 0, emitted on each.

The first variant decides how parameters are laid out, and how the job's mesh is shaped; later ones
take that as given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from autopar.annotate import apply_pins_of
from autopar.base.errors import InvalidInputError, near_misses
from autopar.completion.presets.strategy import AUTO
from autopar.frontend.torch import Differentiable, capture_differentiable
from autopar.frontend.torch.step.batch import is_among
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program, Value
from autopar.ir.serde import program_to_bytes
from autopar.parallel.calls import Wanted
from autopar.parallel.cut import Cut
from autopar.parallel.job import Job
from autopar.parallel.parts import of_shape
from autopar.parallel.sharing import Plan
from autopar.parallel.variant import Variant
from autopar.parallel.wiring import wire
from autopar.pipeline import (
    Compiled,
    CompileOptions,
    compile_program,
    fastest_mesh,
    has_batch,
    inherit,
)
from autopar.pipeline.widths import widths_of
from autopar.runtime.state.placements import check_ascending, is_split, placeable

RETURNED = Origin("preset", "returned whole")


@dataclass
class Layouts:
    """How parameters are laid out.

    Attributes:
        wanted: As the ops of the first variant want them, by name.
        stored: As the ranks store them.
    """

    wanted: dict[str, Layout] = field(default_factory=dict)
    stored: dict[str, Layout] = field(default_factory=dict)

    @property
    def moved(self) -> list[str]:
        """The parameters that are stored in other pieces than their readers want."""
        return [
            name
            for name, layout in self.stored.items()
            if layout.normalized() != self.wanted[name].normalized()
        ]


class Compiler:
    """Compiles variants of a module, over one layout of its parameters.

    Args:
        skeleton: The module on the meta device, whole.
        options: How to compile.
        job: The ranks.
        placed: Whether parameters have to have placements.
        whole: Whether outputs are whole on every rank; otherwise they are left split.
        outputs: Names of the outputs that are asked for; with none, all of them.
        torch_compile: Whether the programs run through `torch.compile`.
        values: What the module's tensors hold when the first variant is captured, by name.

    Attributes:
        layouts: How parameters are laid out.
        gathered: Names of the first variant's outputs that are split before they are returned.
        mesh: The mesh of DTensors; None in a job of one process.
        first: The first variant.
        labels: Names of the tensors of its call.
        remarks: What the user should know of the last variant, on the rank that planned it.
    """

    def __init__(
        self,
        skeleton: nn.Module,
        options: CompileOptions,
        job: Job,
        *,
        placed: bool,
        whole: bool,
        outputs: Sequence[str] = (),
        torch_compile: bool = False,
        values: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.skeleton = skeleton
        self.options = options
        self.job = job
        self.placed = placed
        self.whole = whole
        self.outputs = tuple(outputs)
        self.torch_compile = torch_compile
        self._values = values
        self.layouts = Layouts()
        self.gathered: tuple[str, ...] = ()
        self.first: Variant | None = None
        self.labels: tuple[str, ...] = ()
        self.mesh: DeviceMesh | None = None
        self._cut = Cut()
        self.remarks: list[str] = []

    @property
    def has_loss(self) -> bool:
        """Whether the first variant returns a number that has gradients."""
        if self.first is None:
            return False
        captured = self.first.captured
        values = captured.program.main.values
        return any(not values[captured.outputs[at]].global_shape for at in captured.tangents)

    def autocast(self) -> torch.dtype | None:
        """Returns the dtype of autocast where the rank computes; None if it is off."""
        kind = self.job.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None

    def _check_outputs(self, labels: Sequence[str]) -> None:
        """Refuses names of outputs that the first call doesn't return."""
        for name in self.outputs:
            if not any(is_among(label, (name,)) for label in labels):
                raise InvalidInputError(
                    f"outputs={list(self.outputs)}: the model returns no tensor {name!r}, only"
                    f" {', '.join(labels)}{near_misses(name, labels)}"
                )

    def compile(self, wanted: Wanted) -> Variant:
        """Returns the variant that is wanted for a call; all ranks call alike.

        Raises:
            AutoparError: On all ranks, if there is no program for the call, or they have captured
                different ones.
        """
        captured = self._captured(wanted)
        self.remarks.clear()
        plan = self.job.planned(lambda: self._plan(captured, wanted.layouts))
        if self.first is None:
            self.options = _settled(self.options, plan)
            self._note_layouts(plan.completed, captured)
            self._cut = Cut.of(plan.completed)
            self.mesh = self.job.device_mesh(plan.deployment, self.options.mesh)
            if self.mesh is not None and (self.placed or not self.whole):
                check_ascending(self.mesh.mesh)
        variant = Variant(
            captured,
            plan,
            self.job,
            self.mesh,
            torch_compile=self.torch_compile,
        )
        if self.first is None:
            self.first = variant
            self.labels = wanted.call.labels
            self._values = None  # They are the rank's pieces from now on.
            placement = tuple(entry.process_id for entry in plan.deployment.ranks)
            self.options = replace(self.options, placement=placement)
        return variant

    def mesh_of(self, layout: Layout) -> DeviceMesh | None:
        """Returns the mesh of the DTensors that lie so; None if they are plain tensors.

        All ranks call alike.
        """
        if not self.placed or self.first is None:
            return None
        return self.job.device_mesh(self.first.deployment, layout.mesh)

    def _plan(self, captured: Differentiable, layouts: Sequence[Layout]) -> Plan:
        """Returns the plan of a captured module, and notes what the user should know of it."""
        compiled = self._compiled(captured, layouts)
        self.remarks.extend(map(frozen_text, captured.frozen))
        self.remarks.extend(map(misplaced_text, captured.misplaced))
        ignored = (each for each in compiled.report if each.category == "ignored")
        self.remarks.extend(map(ignored_text, ignored))
        return Plan.of(compiled)

    def _captured(self, wanted: Wanted) -> Differentiable:
        """Returns the module captured; all ranks have captured the same, or all raise an error."""
        try:
            captured = self._capture(wanted)
            if self.first is None:
                self._check_outputs(captured.structure.labels)
        except Exception as error:
            self.job.compare_programs("", f"{type(error).__name__}: {error}")
            raise
        digest = hashlib.sha256(program_to_bytes(captured.program))
        options = (self.options, self.placed, self.whole, self.outputs, self.torch_compile)
        digest.update(repr(options).encode())
        self.job.compare_programs(digest.hexdigest())
        return captured

    def _capture(self, wanted: Wanted) -> Differentiable:
        modes = wanted.modes
        for module, training in zip(self.skeleton.modules(), modes.training, strict=True):
            module.training = training
        for parameter, trained in zip(self.skeleton.parameters(), modes.trained, strict=True):
            parameter.requires_grad_(trained)
        return capture_differentiable(
            self.skeleton,
            wanted.call,
            wanted.tensors,
            mesh=None if self.options.any_shape else self.options.mesh,
            differentiate=torch.is_grad_enabled(),
            autocast=self.autocast(),
            outputs=self.outputs,
            values=self._values,
            known=() if self.first is None else self.first.captured.asked,
            opened=wanted.opened,
        )

    def _compiled(self, captured: Differentiable, layouts: Sequence[Layout]) -> Compiled:
        """Compiles a captured module; later ones with the layouts of the first.

        Args:
            captured: The module.
            layouts: Of the tensors of the call, if they are given in parts.
        """
        program, options = captured.program, self.options

        def store(completed: Program) -> Program:
            return self._stored(completed, captured)

        if self.first is not None:
            first = self.first.captured.program
            program = apply_pins_of(first, program, options.mesh, options.pins, partly=True)
            values = program.main.values
            batch = {
                name: of_shape(layout, values[name].global_shape)
                for name, layout in zip(wire(captured).batch, layouts, strict=False)
            }
            program = inherit(self._cut.applied(program), {**self._wanted(program), **batch})
            wishes = options.activations if captured.tangents else ()
            options = replace(options, pins=(), op_pins=(), activations=wishes)
            if options.microbatches > 1 and not has_batch(program):
                options = replace(options, microbatches=1)
        if options.any_shape:
            # Each of two searches has half the time.
            limit = None if options.time_limit is None else options.time_limit / 2
            options = replace(options, time_limit=limit)
            found = fastest_mesh(program, options, store=store)
            options = replace(options, mesh=found.mesh, any_shape=False)
        if options.strategy == AUTO and self.whole:
            program = _returned_whole(program, captured, options.mesh)
        return compile_program(program, options, store=store)

    def _wanted(self, program: Program) -> dict[str, Layout]:
        """Returns how the first program's ops want parameters; what it didn't read is whole."""
        return {
            name: self.layouts.wanted.get(
                name, Layout.replicated(self.options.mesh, value.global_shape)
            )
            for name, value in program.main.values.items()
            if value.role == "parameter"
        }

    def _note_layouts(self, completed: Program, captured: Differentiable) -> None:
        """Notes how the first variant wants parameters, and which outputs it gathers."""
        values = completed.main.values
        for name, value in values.items():
            if value.role == "parameter" and value.dist is not None:
                self.layouts.wanted[name] = value.dist
                self.layouts.stored[name] = placeable(value.dist) if self.placed else value.dist
        if self.whole:
            self.gathered = tuple(
                label
                for label, name in zip(captured.structure.labels, captured.returned, strict=True)
                if (dist := values[name].dist) is not None and is_split(dist)
            )

    def _stored(self, completed: Program, captured: Differentiable) -> Program:
        """Returns the program with outputs and buffers whole, and parameters as they are kept."""
        values, mesh = completed.main.values, mesh_of(completed)
        changed: dict[str, Layout] = {}
        if self.first is None:
            self._note_layouts(completed, captured)
        for at, name in enumerate(captured.returned):
            found = values[name].dist
            if not self.whole and found is not None:
                # Where a stage has it, others would have nothing to make a loss of.
                changed[name] = replace(placeable(found), mesh=mesh)
                if at in captured.tangents:
                    changed[captured.tangents[at]] = changed[name]
        kept = () if self.whole else captured.returned
        buffers = (*wire(captured).buffers, *captured.updates, *captured.updates.values())
        for name in (*captured.outputs, *captured.batch_gradients.values(), *buffers):
            if name not in kept:
                changed[name] = Layout.replicated(mesh, values[name].global_shape)
        for name, value in values.items():
            if value.role == "parameter":
                shape = value.global_shape
                changed[name] = self.layouts.stored.get(name, Layout.replicated(mesh, shape))
                for new in (captured.gradients, captured.updates):
                    if name in new:
                        changed[new[name]] = changed[name]
        return _changed(
            completed, {name: replace(values[name], dist=dist) for name, dist in changed.items()}
        )


def _settled(options: CompileOptions, plan: Plan) -> CompileOptions:
    """Returns options in which nothing is open that the first plan has decided for later ones."""
    mesh = mesh_of(plan.serial)
    if options.any_widths:
        widths = widths_of(plan.completed.main, mesh, options.pipeline)
        options = replace(options, widths=widths, any_widths=False)
    return replace(options, mesh=mesh, any_shape=False)


def frozen_text(entry: ReportEntry) -> str:
    """Returns a warning of a number that a program doesn't change."""
    return f"{entry.subject}: {entry.detail}"


def misplaced_text(entry: ReportEntry) -> str:
    """Returns a warning of what runs in a later stage than it is marked with."""
    return f"{entry.subject}: {entry.detail} ({entry.loc})"


def ignored_text(entry: ReportEntry) -> str:
    """Returns a warning of what a strategy doesn't split."""
    place = f" ({entry.loc})" if entry.loc.file else ""
    return f"the strategy's {entry.subject} isn't split: {entry.detail}{place}"


def _returned_whole(program: Program, captured: Differentiable, mesh: ProcessMesh) -> Program:
    """Returns the program with its outputs whole, so that a search counts what that takes."""
    values = program.main.values
    names = (*captured.outputs, *captured.batch_gradients.values())
    return _changed(
        program,
        {
            name: replace(
                values[name],
                dist=Layout.replicated(mesh, values[name].global_shape),
                origin=RETURNED,
            )
            for name in names
            if values[name].dist is None
        },
    )


def mesh_of(program: Program) -> ProcessMesh:
    """Returns the processes that a program was compiled for."""
    assert program.mesh is not None
    return program.mesh


def _changed(program: Program, values: Mapping[str, Value]) -> Program:
    main = program.main
    return program.with_main(replace(main, values={**main.values, **values}))
