"""The variants of a module, each compiled when it is first needed, over the same parameters.

The first variant decides how parameters are laid out; later ones, for other modes and shapes of
batches, take that as given.
"""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from autopar.annotate import apply_pins_of
from autopar.base.arguments import FLAG, expect
from autopar.base.errors import AnnotationError, InvalidInputError, near_misses
from autopar.completion.presets.strategy import AUTO
from autopar.frontend.torch import Differentiable, capture_differentiable
from autopar.frontend.torch.step.batch import Path, Structure, flatten, input_label, is_among
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.expr.expression import planned
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program, Value
from autopar.ir.serde import program_to_bytes
from autopar.parallel.job import Job
from autopar.parallel.parts import peers_of, whole_layout
from autopar.parallel.sharing import Plan
from autopar.parallel.variant import Variant, wire
from autopar.pipeline import Compiled, CompileOptions, compile_program, fastest_mesh, inherit
from autopar.runtime.agree.agreement import Offer
from autopar.runtime.agree.disagreement import CALL, LOCAL, MODULE
from autopar.runtime.files.digest import digest_bytes
from autopar.runtime.ports.dense import odd_kind
from autopar.runtime.state.placements import check_ascending, is_split, placeable

RETURNED = Origin("preset", "returned whole")

MANY = 16
"""Programs of one module from which on a warning says so."""


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


class Modes(NamedTuple):
    """What of a module's state decides what it computes.

    Attributes:
        training: Of each of its modules, whether it is in training mode.
        trained: Of each of its parameters, whether it requires gradients.
    """

    training: tuple[bool, ...]
    trained: tuple[bool, ...]


class Runner:
    """Compiles variants of a module.

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
        takes_local: Whether the model itself has an argument `local`.
        gathered: Names of the first variant's outputs that are split before they are returned.
        mesh: The mesh of DTensors; None in a job of one process.
        variants: By what they were compiled for.
        first: The first variant.
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
        self.variants: dict[Any, Variant] = {}
        self.first: Variant | None = None
        self.mesh: DeviceMesh | None = None
        self.takes_local = "local" in inspect.signature(skeleton.forward).parameters
        self._label = input_label(skeleton)
        self._labels: tuple[str, ...] = ()
        self._calls: dict[Any, dict[str, str]] = {}
        self._ignored: list[ReportEntry] = []

    @property
    def has_loss(self) -> bool:
        """Whether the first variant returns a number that has gradients."""
        if self.first is None:
            return False
        captured = self.first.captured
        values = captured.program.main.values
        return any(not values[captured.outputs[at]].global_shape for at in captured.tangents)

    def variant(
        self,
        modes: Modes,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        drawn: Mapping[str, str] = MappingProxyType({}),
        local: bool = False,
    ) -> tuple[Variant, list[Tensor]]:
        """Returns the variant for a call, and the tensors of the call.

        Args:
            modes: Those that the module is in.
            args, kwargs: The arguments of the call.
            drawn: What random numbers depend on, by name.
            local: Whether the tensors are this rank's parts of those of the call.

        Raises:
            AutoparError: If the model doesn't take them, or has no static program for them, or
                another rank makes another call.
        """
        try:
            expect(FLAG, local=local)
            call, tensors = flatten((args, dict(kwargs)), self._named)
            _check_plain(call)
            _check_tensors(call, tensors, absent=self.first is None)
            layouts = self._layouts_of(call, tensors) if local else []
            key = self._key(modes, call, tensors)
            if not local and key in self.variants:
                self.variants[key].check(tensors)
        except InvalidInputError as error:
            self.job.agree(Offer(error))
            raise
        self._compare(key, modes, call, tensors, drawn, layouts)
        wholes: Sequence[Tensor] = tensors
        if local:
            layouts = self._whole_layouts(call, tensors, layouts)
            wholes = list(map(_whole, tensors, layouts))
            key = self._local_key(self._key(modes, call, wholes), layouts)
        if key not in self.variants:
            self._check_call(args, kwargs)
            if len(self.variants) == MANY:
                warnings.warn(
                    f"{MANY} programs are compiled for {type(self.skeleton).__name__}: each shape"
                    " of a batch and each plain argument needs its own; pad batches to few shapes",
                    stacklevel=4,
                )
            # An example may have no values, and isn't computed with.
            known = () if local or self.first is None else tensors
            self.variants[key] = self._compile(modes, call, wholes, layouts)
            for entry in self._ignored:
                warnings.warn(_ignored_text(entry), stacklevel=3)
            self._agree_on_first(self.variants[key], drawn, known)
        return self.variants[key], tensors

    def _agree_on_first(
        self, variant: Variant, drawn: Mapping[str, str], tensors: Sequence[Tensor]
    ) -> None:
        """Makes sure, of a variant's first call, of what it takes the variant to know.

        Args:
            variant: The variant.
            drawn: What random numbers depend on, by name.
            tensors: The global tensors of the call; with none, they aren't looked at.

        Raises:
            InvalidInputError: On all ranks, if one of them can't make the call.
        """
        values = {} if variant.wiring.seed is None else drawn
        try:
            variant.check(tensors)
        except InvalidInputError as error:
            self.job.agree(Offer(error, values))
            raise
        self.job.agree(Offer(values=values))

    def _named(self, path: Path) -> str:
        return self._label(path[1:])

    def _key(self, modes: Modes, call: Structure, tensors: Sequence[Tensor]) -> Any:
        differentiate = torch.is_grad_enabled()
        return (
            call.spec,
            call.plain,
            tuple((t.shape, t.dtype, differentiate and t.requires_grad) for t in tensors),
            modes.training,
            differentiate and modes.trained,
            self._autocast(),
        )

    def _compare(
        self,
        key: Any,
        modes: Modes,
        call: Structure,
        tensors: Sequence[Tensor],
        drawn: Mapping[str, str],
        layouts: Sequence[Layout],
    ) -> None:
        """Makes sure that the other ranks make this call too."""
        local = bool(layouts)
        if (key, local) not in self._calls:
            trained = [each[2] for each in key[2]]
            self._calls[key, local] = {
                LOCAL: str(local),
                CALL: _described(modes, call, tensors, local),
                MODULE: f"{digest_bytes(str((trained, key[3:])).encode()):x}",
            }
        known = self.variants.get(key)
        draws = known is not None and known.wiring.seed is not None
        values = {**self._calls[key, local], **(drawn if draws else {})}
        plain = {
            label: each
            for label, each in zip(call.labels, tensors, strict=True)
            if not isinstance(each, DTensor)
        }
        peers = self._peers(layouts) if local else ()
        self.job.agree(Offer(values=values, tensors=plain, peers=peers))

    def _peers(self, layouts: Sequence[Layout]) -> tuple[int, ...]:
        assert self.first is not None
        return peers_of(layouts, self.first.deployment, self.job.rank)

    def _layouts_of(self, call: Structure, tensors: Sequence[Tensor]) -> list[Layout]:
        """Returns how the ranks share tensors like those of a call, from the first variant.

        Raises:
            InvalidInputError: If that isn't known of one.
        """
        assert self.first is not None
        known = dict(zip(self._labels, self.first.layouts, strict=True))
        for label, each in zip(call.labels, tensors, strict=True):
            if isinstance(each, DTensor):
                raise InvalidInputError(
                    f"{label!r} is a DTensor, which says itself what part of a tensor it is; leave"
                    " local= out, or hand over to_local() of all of them"
                )
            if label not in known or len(known[label].dims) != each.ndim:
                raise InvalidInputError(
                    f"how ranks share {label!r} isn't known: the example inputs have none of"
                    f" {each.ndim} dimensions; hand over the global tensor"
                )
        return [known[label] for label in call.labels]

    def _whole_layouts(
        self, call: Structure, tensors: Sequence[Tensor], layouts: Sequence[Layout]
    ) -> list[Layout]:
        """Returns how the ranks hold the tensors of which they bring parts."""
        assert self.first is not None
        deployment = self.first.deployment
        shapes = self.job.shapes_of_all([tuple(each.shape) for each in tensors])
        return [
            whole_layout(label, layout, found, deployment)
            for label, layout, found in zip(call.labels, layouts, shapes, strict=True)
        ]

    def _local_key(self, key: Any, layouts: Sequence[Layout]) -> Any:
        """Returns the key of a variant that reads these parts: that of the global call if it does.

        Args:
            key: Of the call with global tensors.
            layouts: How the ranks hold them.
        """
        known = self.variants.get(key)
        parts = [each.normalized() for each in layouts]
        if known is not None and [each.normalized() for each in known.layouts] == parts:
            return key
        return key, tuple(parts)

    def _autocast(self) -> torch.dtype | None:
        kind = self.job.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None

    def _check_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        signature = inspect.signature(self.skeleton.forward)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            name = type(self.skeleton).__name__
            raise InvalidInputError(
                f"{name} can't be called like this: {error}; it takes {signature}"
            ) from error

    def _check_outputs(self, labels: Sequence[str]) -> None:
        """Refuses names of outputs that the first call doesn't return."""
        for name in self.outputs:
            if not any(is_among(label, (name,)) for label in labels):
                raise InvalidInputError(
                    f"outputs={list(self.outputs)}: the model returns no tensor {name!r}, only"
                    f" {', '.join(labels)}{near_misses(name, labels)}"
                )

    def _compile(
        self,
        modes: Modes,
        call: Structure,
        tensors: Sequence[Tensor],
        layouts: Sequence[Layout] = (),
    ) -> Variant:
        captured = self._captured(modes, call, tensors)
        self._ignored.clear()
        plan = self.job.planned(lambda: self._plan(captured, layouts))
        if self.first is None:
            self.options = replace(self.options, mesh=mesh_of(plan.serial), any_shape=False)
            self._note_layouts(plan.completed, captured)
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
            self._values = None  # They are the rank's pieces from now on.
            self._labels = call.labels
            placement = tuple(entry.process_id for entry in plan.deployment.ranks)
            self.options = replace(self.options, placement=placement)
        return variant

    def _plan(self, captured: Differentiable, layouts: Sequence[Layout]) -> Plan:
        """Returns the plan of a captured module, and notes what it leaves out of the strategy."""
        compiled = self._compiled(captured, layouts)
        self._ignored.extend(each for each in compiled.report if each.category == "ignored")
        return Plan.of(compiled)

    def _captured(self, modes: Modes, call: Structure, tensors: Sequence[Tensor]) -> Differentiable:
        """Returns the module captured; all ranks have captured the same, or all raise an error."""
        try:
            captured = self._capture(modes, call, tensors)
            if self.first is None:
                self._check_outputs(captured.structure.labels)
            _check_meshes(captured.program)
        except Exception as error:
            self.job.compare_programs("", f"{type(error).__name__}: {error}")
            raise
        digest = hashlib.sha256(program_to_bytes(captured.program))
        options = (self.options, self.placed, self.whole, self.outputs, self.torch_compile)
        digest.update(repr(options).encode())
        self.job.compare_programs(digest.hexdigest())
        return captured

    def _capture(self, modes: Modes, call: Structure, tensors: Sequence[Tensor]) -> Differentiable:
        for module, training in zip(self.skeleton.modules(), modes.training, strict=True):
            module.training = training
        for parameter, trained in zip(self.skeleton.parameters(), modes.trained, strict=True):
            parameter.requires_grad_(trained)
        return capture_differentiable(
            self.skeleton,
            call,
            tensors,
            mesh=None if self.options.any_shape else self.options.mesh,
            differentiate=torch.is_grad_enabled(),
            autocast=self._autocast(),
            outputs=self.outputs,
            values=self._values,
            known=() if self.first is None else self.first.captured.asked,
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
            batch = dict(zip(wire(captured).batch, layouts, strict=False))
            program = inherit(program, {**self._wanted(program), **batch})
            wishes = options.activations if captured.tangents else ()
            options = replace(options, pins=(), op_pins=(), activations=wishes)
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
                changed[name] = placeable(found)
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


def _check_plain(call: Structure) -> None:
    """Refuses arguments by which programs can't be told apart."""
    for leaf in call.rest():
        try:
            hash(leaf)
        except TypeError as error:
            raise InvalidInputError(
                f"the call brings a {type(leaf).__name__}; hand over tensors, as"
                " torch.from_numpy(array), and plain numbers, texts and flags beside them"
            ) from error


def _check_tensors(call: Structure, tensors: Sequence[Tensor], absent: bool) -> None:
    """Refuses tensors that aren't dense.

    Args:
        call: Has their names.
        tensors: The tensors.
        absent: Whether they may be without values, as an example is.
    """
    for label, each in zip(call.labels, tensors, strict=True):
        kind = odd_kind(each, absent)
        if kind:
            raise InvalidInputError(f"{label!r} is {kind}")


def _described(modes: Modes, call: Structure, tensors: Sequence[Tensor], local: bool) -> str:
    """Returns what a call is, in words; without the sizes of parts."""
    parts = [
        f"{label} {str(each.dtype).removeprefix('torch.')}"
        + (f" of {each.ndim} dimensions" if local else str(list(each.shape)))
        for label, each in zip(call.labels, tensors, strict=True)
    ]
    plain = (bool, int, float, str)
    parts.extend(repr(leaf) for leaf in call.rest() if isinstance(leaf, plain))
    mode = "train" if modes.training[0] else "eval"
    gradients = "with" if torch.is_grad_enabled() else "without"
    return f"{', '.join(parts)}, in {mode} mode, {gradients} gradients"


def _ignored_text(entry: ReportEntry) -> str:
    place = f" ({entry.loc})" if entry.loc.file else ""
    return f"the strategy's {entry.subject} isn't split: {entry.detail}{place}"


def _whole(part: Tensor, layout: Layout) -> Tensor:
    """Returns a tensor that is like the one of which this is a part, without its values."""
    like = part.detach().new_zeros(()).expand(tuple(map(planned, layout.shape)))
    return like.requires_grad_(part.requires_grad)


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


def _check_meshes(program: Program) -> None:
    """Refuses marks on slices of the mesh: a DTensor lies on all of its mesh."""
    for value in program.main.values.values():
        if value.dist is not None and value.dist.mesh.fixed:
            place = value.origin.detail if value.origin else value.loc
            raise AnnotationError(
                f"{place}: the mark is on a part of the mesh, but a parallel module's parameters"
                " are DTensors on all of it; compile the training step with autopar.compile, or"
                " mark the tensor on the whole mesh"
            )
