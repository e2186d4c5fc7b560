"""`capture`: from a module and an example batch to a serial program and its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.optim import Optimizer

from autopar.base.collector import paused_collector
from autopar.base.errors import InvalidInputError, near_misses
from autopar.frontend.lower.exported import GraphInput, GraphOutput, Lowering
from autopar.frontend.lower.fx import lower
from autopar.frontend.lower.misplaced import misplaced
from autopar.frontend.torch.capture.fake import FakeModel, fake_batch, fake_model, is_absent
from autopar.frontend.torch.capture.joint import Joint
from autopar.frontend.torch.capture.several import check_alike, in_mode
from autopar.frontend.torch.capture.ways import Start, Traced, trace
from autopar.frontend.torch.conditions.narrowing import ExampleSizes
from autopar.frontend.torch.conditions.unread import unread
from autopar.frontend.torch.rows.presence import Absent
from autopar.frontend.torch.rows.report import computed_rows
from autopar.frontend.torch.step.batch import Structure, flatten
from autopar.frontend.torch.step.dynamic import Dynamic, open_shapes
from autopar.frontend.torch.step.example import example_of, without
from autopar.frontend.torch.step.graph import START, Step
from autopar.frontend.torch.step.inputs import Inputs, storable
from autopar.frontend.torch.step.loss.averaging import averaged
from autopar.frontend.torch.step.loss.totals import totals_of
from autopar.frontend.torch.step.microbatches import Rows, cut_batch
from autopar.frontend.torch.step.passes import passes_of
from autopar.frontend.torch.step.recipe import LOSS, Recipe
from autopar.frontend.torch.step.scaling import Scaling
from autopar.frontend.torch.step.state import StateTensor, initial_state
from autopar.frontend.torch.step.stitch import Computed, compute, kept_without, update
from autopar.frontend.torch.step.update import (
    RATE_DTYPE,
    UpdateRequest,
    capture_update,
    plain_options,
)
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program

GRADIENT = "grad/"
"""Prefix of the names of gradients; the parameter's name follows."""

GRAD_NORM = "grad_norm"
"""Name of the norm of all gradients together, before they are clipped."""

Trained = tuple[Computed, Sequence[StateTensor]]
"""What was computed, and the optimizer's state."""


@dataclass(frozen=True)
class Captured:
    """A captured model.

    Attributes:
        program: The serial program.
        weights: The values of its stored inputs by name, of those that have any.
        structure: The structure of a batch.
        report: What the user should know.
    """

    program: Program
    weights: Mapping[str, Tensor]
    structure: Structure
    report: tuple[ReportEntry, ...] = ()


@paused_collector()
def capture(
    model: nn.Module,
    example_inputs: Any,
    recipe: Recipe | None = None,
    mesh: ProcessMesh | None = None,
    dynamic: Dynamic | None = None,
) -> Captured:
    """Captures a forward pass, or a training step if the recipe has an optimizer.

    Args:
        model: The model, in the mode (`train()` or `eval()`) in which it is to be run. It may be
            on the meta device: then its weights are given later.
        example_inputs: A batch. Its shapes and dtypes count, and its values where code asks for
            some.
        recipe: What a step consists of.
        mesh: The mesh to compile for, which marks in the model that name none are on. If it isn't
            known, it is the marks'.
        dynamic: Which dimensions of the batch stay open; see `autopar.compile`.

    Raises:
        AnnotationError: If a mark in the model doesn't fit its tensor or the mesh.
        InvalidInputError: If the model, its loss or its optimizer has no static program. Names
            the user's line.
    """
    recipe = recipe or Recipe()

    def program_of(batch: Any) -> Program:
        return _Capture(model, batch, recipe, mesh, dynamic).run().program

    try:
        captured = _Capture(model, example_inputs, recipe, mesh, dynamic).run()
        noted = example_of(model, example_inputs, recipe.trains)
        labels = [label for label, _ in noted.given]
        free = unread(example_inputs, labels, captured.program, program_of)
        program = replace(captured.program, example=without(noted, free))
        return replace(captured, program=program)
    except RecursionError as error:
        raise InvalidInputError(
            f"{type(model).__name__}: its modules, or its inputs, are nested more deeply than"
            " Python's stack, which torch walks them on; put them into a list that forward goes"
            " through one by one"
        ) from error


class _Capture:
    """One run of `capture`."""

    def __init__(
        self,
        model: nn.Module,
        example_inputs: Any,
        recipe: Recipe,
        mesh: ProcessMesh | None,
        dynamic: Dynamic | None,
    ) -> None:
        self.model = model
        self.mesh = mesh
        self.recipe = recipe
        recipe.check(model, example_inputs)
        self.structure, self.tensors = flatten(example_inputs, recipe.label_of(model))
        self.opened = open_shapes(dynamic, self.structure.labels, self.tensors)
        if recipe.accumulate > 1 and self.opened.batch:
            raise InvalidInputError(
                f"accumulate={recipe.accumulate} cuts a batch into parts of known sizes, and"
                " dynamic= leaves its first dimension open; give one of both"
            )
        self.microbatches = cut_batch(self.structure.labels, self.tensors, recipe.accumulate)
        if self.microbatches.ragged and self.opened.names:
            raise InvalidInputError(
                f"accumulate={recipe.accumulate} cuts a batch into parts of different sizes, and"
                f" dynamic= leaves {min(self.opened.names)!r} open; give a batch whose rows divide"
            )

    def run(self) -> Captured:
        self.fake, joints = self._traced()
        self.mode = self.fake.mode
        averaging = averaged(
            joints, self.microbatches, self.recipe.loss_denominator, self._one_row_more
        )
        joints, self.microbatches = averaging.joints, averaging.microbatches
        self.joints = [joints[rows] for rows in self.microbatches.rows]
        joint = self.joints[0]
        whole = self._batch(self.fake)
        step = Step(self.mode)
        trained = self._trained(joint)
        types = self._master_types(trained)
        inputs = Inputs(
            step,
            [*joints.values()],
            self.fake.stored,
            self.structure.labels,
            whole,
            types,
            self.recipe.trains,
        )
        done, states = self._computed(step, inputs, trained)
        for name, node in done.buffers.items():
            if name not in trained:
                step.update(node, inputs.stored[name], name)
        for position, node in done.written.items():
            step.write(node, inputs.batch[position], self.structure.labels[position])
        step.assume(done.assumed)
        step.close()
        lowering = self._lowering(step)
        program = _with_roles(lower(step.graph, lowering))
        weights = self._weights(inputs, states, program)
        selected = computed_rows(joint.selected)
        early = misplaced(step.graph, lowering)
        report = (*joint.narrowed, *joint.frozen, *selected, *averaging.report, *early)
        return Captured(program, weights, self.structure, report)

    def _traced(self) -> tuple[FakeModel, Mapping[Rows, Joint]]:
        """Returns the captured graph of microbatches of each size, and what they are fake with."""
        first, *others = dict.fromkeys(self.microbatches.rows)
        traced = self._trace(first)
        joints = {first: traced.joint}
        for rows in others:
            try:
                joints[rows] = in_mode(self._trace(rows).joint, traced.fake.mode)
            except InvalidInputError as error:
                count, size = self.recipe.accumulate, len(self.tensors[0])
                raise InvalidInputError(
                    f"accumulate={count} cuts a batch of {size} rows into microbatches of"
                    f" {first[0]} and {rows[0]}; of the latter: {error}"
                ) from error
            check_alike(joints, rows)
        return traced.fake, joints

    def _one_row_more(self) -> Joint:
        """Captures the first microbatch with the row behind it."""
        return self._trace(tuple(size + 1 for size in self.microbatches.rows[0])).joint

    def _trace(self, rows: Rows) -> Traced:
        """Captures a microbatch of so many rows."""
        absent: Absent = "any" if self.recipe.optimizer is None else "kept"
        return trace(partial(self._start, rows), self._compute, absent=absent)

    def _batch(self, fake: FakeModel) -> list[Tensor]:
        pairs = zip(self.tensors, self.opened.shapes, strict=True)
        return [fake_batch(tensor, fake.answering, shape) for tensor, shape in pairs]

    def _start(self, rows: Rows) -> Start:
        sizes = ExampleSizes(self.opened.said) if self.opened.names else None
        fake = fake_model(self.model, sizes=sizes)
        called = (self.recipe.loss, self.recipe.training_step)
        beside = [each for each in called if each is not None]
        return Start(fake, self._microbatch(fake, rows), beside)

    def _microbatch(self, fake: FakeModel, rows: Rows) -> Sequence[Tensor]:
        """Returns the first microbatch of a size, or so many rows from the first one on."""
        whole = self._batch(fake)
        if not rows:
            return whole
        known = self.microbatches.rows
        ranges = self.microbatches.ranges(known.index(rows) if rows in known else 0)
        with fake.mode:
            return [
                tensor[begin : begin + size].clone()
                for tensor, size, (begin, _) in zip(whole, rows, ranges, strict=True)
            ]

    def _compute(self, model: nn.Module, tensors: Sequence[Tensor]) -> Any:
        return self.recipe.compute(model, self.structure.rebuild(tensors))

    def _computed(self, step: Step, inputs: Inputs, trained: Mapping[str, nn.Parameter]) -> Trained:
        if self.recipe.optimizer is not None:
            return self._train(step, inputs, self.recipe.optimizer, trained)
        inputs.add_batch(step)
        done = self._passes(step, inputs)
        step.outputs.extend(GraphOutput(node, label) for label, node in done.outputs.items())
        return done, []

    def _passes(self, step: Step, inputs: Inputs, scale: fx.Node | None = None) -> Computed:
        """Adds the forward and backward passes of all microbatches."""
        totals = totals_of(step, self.joints, inputs, self.microbatches)
        passes = passes_of(self.joints, self.microbatches)
        return compute(step, passes, inputs, self.microbatches, totals, scale)

    def _master_types(self, trained: Mapping[str, nn.Parameter]) -> dict[str, torch.dtype]:
        """Returns what trained parameters are stored as, where that isn't their own dtype."""
        master = self.recipe.master_dtype
        if master is None:
            return {}
        return {
            name: master
            for name, parameter in trained.items()
            if parameter.is_floating_point() and parameter.dtype.itemsize < master.itemsize
        }

    def _trained(self, joint: Joint) -> dict[str, nn.Parameter]:
        """Returns the parameters that the optimizer updates, by name; none without one."""
        optimizer = self.recipe.optimizer
        if optimizer is None:
            return {}
        given = {id(p) for group in optimizer.param_groups for p in group["params"]}
        sources = {name: each.source for name, each in self.fake.stored.items()}
        if foreign := given - set(map(id, sources.values())):
            raise InvalidInputError(
                f"the optimizer has {len(foreign)} parameters that aren't the model's; make it"
                " from model.parameters(), after the model has its final parameters"
            )
        trained = {
            name: source
            for name, source in sources.items()
            if isinstance(source, nn.Parameter) and name in joint.gradients and id(source) in given
        }
        if not trained:
            raise InvalidInputError("the loss depends on no parameter that the optimizer updates")
        return trained

    def _train(
        self,
        step: Step,
        inputs: Inputs,
        optimizer: Optimizer,
        trained: Mapping[str, nn.Parameter],
    ) -> Trained:
        """Adds all that a training step computes."""
        types = {name: inputs.stored[name].meta["val"].dtype for name in trained}
        states = initial_state(optimizer, trained, types, self.mode)
        scaling = None if self.recipe.scaler is None else Scaling.of(self.recipe.scaler)
        if scaling is not None:
            states.extend(scaling.states(self.mode))
        sources = [
            step.input(
                GraphInput(each.label, "optimizer_state", each.label, fill=each.fill), each.fake
            )
            for each in states
        ]
        inputs.add_batch(step)
        rates = self._rates(step, optimizer)
        scale = None if scaling is None else sources[-2]
        done = self._passes(step, inputs, scale)
        assert done.loss is not None
        for name, node in done.gradients.items():
            step.names[node] = f"{GRADIENT}{name}"
        step.names[done.loss] = LOSS
        step.outputs.append(GraphOutput(done.loss, LOSS))
        request = UpdateRequest(
            optimizer, trained, states, types, self.recipe.clip_grad_norm, scaling
        )
        captured = capture_update(request, self.mode)
        stored = [inputs.stored[name] for name in trained]
        # What forward overwrites is updated as it left it.
        left = [done.buffers.get(name, inputs.stored[name]) for name in trained]
        self._check_written(done, types)
        norm, updates = update(
            step,
            captured,
            rates,
            left,
            [done.gradients[name] for name in trained],
            sources,
        )
        step.outputs.extend(self._fetched(done, norm))
        labels = (*trained, *(each.label for each in states))
        owners = (*trained, *(each.parameter for each in states))
        places = zip((*left, *sources), (*stored, *sources), strict=True)
        for label, owner, new, (was, old) in zip(labels, owners, updates, places, strict=True):
            step.update(kept_without(step, done.present.get(owner), new, was), old, label)
        return done, states

    def _check_written(self, done: Computed, types: Mapping[str, torch.dtype]) -> None:
        """Refuses parameters that forward overwrites in another dtype than they are stored in."""
        for name, node in done.buffers.items():
            if types.get(name, node.meta["val"].dtype) != node.meta["val"].dtype:
                raise InvalidInputError(
                    f"forward writes to {name!r}, which is stored in {_word(types[name])}; without"
                    " master_dtype= it is what forward writes"
                )

    def _rates(self, step: Step, optimizer: Optimizer) -> list[fx.Node]:
        """Adds the learning rate of each group of parameters."""
        groups = optimizer.param_groups
        rates = []
        for at, group in enumerate(groups):
            name = "lr" if len(groups) == 1 else f"lr.{at}"
            with self.mode:
                fake = torch.empty((), dtype=RATE_DTYPE)
            given = GraphInput(
                name, "input", name, fill=float(group["lr"]), options=plain_options(group)
            )
            rates.append(step.input(given, fake))
        return rates

    def _fetched(self, done: Computed, norm: fx.Node | None) -> list[GraphOutput]:
        found = []
        for name in self.recipe.fetch:
            if name == GRAD_NORM and norm is not None:
                found.append(GraphOutput(norm, GRAD_NORM))
            elif name in done.outputs and name != LOSS:
                found.append(GraphOutput(done.outputs[name], name))
            elif (parameter := self._owner(name.removeprefix(GRADIENT))) in done.gradients:
                found.append(GraphOutput(done.gradients[parameter], f"{GRADIENT}{parameter}"))
            else:
                raise InvalidInputError(self._cannot_fetch(name, done))
        return found

    def _owner(self, name: str) -> str:
        """Returns the name that the program has for a tied parameter."""
        stored = self.fake.stored.values()
        return next((each.name for each in stored if name in each.aliases), name)

    def _cannot_fetch(self, name: str, done: Computed) -> str:
        if name == GRAD_NORM:
            return "fetch='grad_norm': only clipping computes it; give clip_grad_norm= too"
        outputs = [label for label in done.outputs if label != LOSS]
        hint = near_misses(name, (*outputs, *done.gradients, GRAD_NORM))
        known = f"; the model returns {', '.join(outputs)}" if outputs else ""
        why = "no output, and no parameter with a gradient, is called so"
        return f"fetch={name!r}: {why}{hint}{known}"

    def _lowering(self, step: Step) -> Lowering:
        return Lowering(
            step.inputs,
            step.outputs,
            step.names,
            name=type(self.model).__name__,
            when=lambda node: step.places.get(node, START),
            mesh=self.mesh,
            sizes=self.fake.answering.sizes,
        )

    def _weights(
        self, inputs: Inputs, states: Sequence[StateTensor], program: Program
    ) -> dict[str, Tensor]:
        needed = {port.name for port in program.signature.inputs}
        found = {name: each.source for name, each in self.fake.stored.items()}
        found.update(inputs.constant_values)
        found.update({each.label: each.source for each in states if each.source is not None})
        return {
            name: _stored(tensor.detach(), inputs.stored.get(name))
            for name, tensor in found.items()
            if name in needed and not is_absent(tensor)
        }


def _stored(tensor: Tensor, node: fx.Node | None) -> Tensor:
    """Returns a tensor as the program's input stores it, which is a constant if there is none."""
    if node is None:
        return storable(tensor)
    kept: Tensor = node.meta["val"]
    return (tensor if kept.is_complex() else storable(tensor)).to(kept.dtype)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _with_roles(program: Program) -> Program:
    """Returns the program with gradients marked as such."""
    values = {
        name: replace(value, role="gradient") if name.startswith(GRADIENT) else value
        for name, value in program.main.values.items()
    }
    return program.with_main(replace(program.main, values=values))
