"""Captures a module as a differentiable function: outputs, and gradients from their gradients.

What comes after the module, a loss above all, stays the user's. So the gradients of all outputs
are inputs of the program, its *tangents*, and it returns the gradients of parameters and inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from autopar.base.errors import InvalidInputError
from autopar.frontend.lower.exported import GraphInput, GraphOutput, Lowering
from autopar.frontend.lower.fx import lower
from autopar.frontend.lower.misplaced import misplaced
from autopar.frontend.torch.capture.fake import FakeModel, fake_batch, fake_model
from autopar.frontend.torch.capture.joint import Joint
from autopar.frontend.torch.capture.ways import Start, trace
from autopar.frontend.torch.conditions.conditions import Asked
from autopar.frontend.torch.conditions.narrowing import ExampleSizes
from autopar.frontend.torch.ops.mixed import refuse_mixed_products
from autopar.frontend.torch.step.batch import Structure, only
from autopar.frontend.torch.step.dynamic import Opened, open_shapes
from autopar.frontend.torch.step.graph import START, Step
from autopar.frontend.torch.step.inputs import Inputs
from autopar.frontend.torch.step.stitch import assumed_of, summed
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Lifetime, Program

aten = torch.ops.aten

PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.Size)
"""What a module may return besides tensors: it is returned again in every call."""


@dataclass(frozen=True)
class Differentiable:
    """A captured module.

    Attributes:
        program: The serial program. Its gradients share the storage of their parameters, as if
            they were new contents, so that they are laid out alike.
        structure: The structure of the outputs.
        outputs: Names of their values, in order; after them, what the module writes to tensors of
            the call.
        written: The positions of those tensors.
        tangents: Names of the inputs that are the outputs' gradients, by position of the output.
        gradients: Names of the gradients, by name of the parameter.
        batch_gradients: Names of the gradients of the call's tensors, by position.
        updates: Names of the new contents of buffers, and of parameters that the module overwrites,
            by their names.
        constants: Tensors that the code holds, by name.
        asked: What the code asked of values.
        narrowed: What open sizes can't be.
        frozen: What code changes in each run, and a program doesn't.
        misplaced: What runs in a later stage than it is marked with.
    """

    program: Program
    structure: Structure
    outputs: tuple[str, ...]
    written: tuple[int, ...]
    tangents: Mapping[int, str]
    gradients: Mapping[str, str]
    batch_gradients: Mapping[int, str]
    updates: Mapping[str, str]
    constants: Mapping[str, Tensor]
    asked: tuple[Asked, ...] = ()
    narrowed: tuple[ReportEntry, ...] = ()
    frozen: tuple[ReportEntry, ...] = ()
    misplaced: tuple[ReportEntry, ...] = ()

    @property
    def returned(self) -> tuple[str, ...]:
        """Names of the values that the module returns."""
        return self.outputs[: len(self.outputs) - len(self.written)]


def capture_differentiable(
    model: nn.Module,
    call: Structure,
    tensors: Sequence[Tensor],
    *,
    mesh: ProcessMesh | None = None,
    differentiate: bool = True,
    autocast: torch.dtype | None = None,
    outputs: Sequence[str] = (),
    values: Mapping[str, Tensor] | None = None,
    known: Sequence[Asked] = (),
    opened: Opened | None = None,
) -> Differentiable:
    """Captures `model(*args, **kwargs)` and its derivative.

    Args:
        model: The model; it may be on the meta device. Gradients are computed of the parameters
            that require them.
        call: The structure of the pair (args, kwargs).
        tensors: The tensors in it. Gradients are computed of those that require them.
        mesh: The mesh to compile for, which marks in the model that name none are on.
        differentiate: Whether gradients are computed at all.
        autocast: The dtype of matrix products, as `torch.autocast` has it.
        outputs: The outputs that are asked for, by name; the others are None. If the model returns
            none of these, or nothing is named, all of them.
        values: What the model's tensors hold, by name, if it is on the meta device.
        known: What the same code was answered before.
        opened: The shapes of the tensors, of which sizes may be open; by default none is.

    Raises:
        AnnotationError: If a mark in the model doesn't fit its tensor or the mesh.
        InvalidInputError: If the model has no static program, or returns what can't be returned
            again. Names the user's line.
    """

    opened = opened or open_shapes(None, call.labels, tensors)

    def batch_of(fake: FakeModel) -> list[Tensor]:
        pairs = zip(tensors, opened.shapes, strict=True)
        return [fake_batch(tensor, fake.answering, shape) for tensor, shape in pairs]

    def start() -> Start:
        sizes = ExampleSizes(opened.said) if opened.names else None
        fake = fake_model(model, values, known, sizes)
        pairs = zip(batch_of(fake), tensors, strict=True)
        return Start(fake, [each.requires_grad_(like.requires_grad) for each, like in pairs])

    def compute(module: nn.Module, given: Sequence[Tensor]) -> Any:
        context = nullcontext() if autocast is None else torch.autocast("cpu", dtype=autocast)
        args, kwargs = call.rebuild(given)
        with torch.set_grad_enabled(differentiate), context:
            found = only(module(*args, **kwargs), outputs)
            # Of an output that shares memory with an input, torch drops the gradient.
            return pytree.tree_map_only(Tensor, torch.clone, found)

    fake, joint = trace(start, compute, absent="told" if differentiate else "any")
    _check_outputs(joint.structure)
    step = Step(fake.mode)
    inputs = Inputs(step, [joint], fake.stored, call.labels, batch_of(fake), {}, whole=False)
    inputs.add_batch(step)
    given = _given(step, joint, inputs)
    done = step.copy(joint.graph, given, START)
    _add_outputs(step, joint, inputs, done)
    step.assume(assumed_of(joint, done))
    step.close()
    lowering = Lowering(
        step.inputs,
        step.outputs,
        step.names,
        name=type(model).__name__,
        when=lambda node: step.places.get(node, START),
        mesh=mesh,
        sizes=fake.answering.sizes,
    )
    program = lower(step.graph, lowering)
    refuse_mixed_products(program)
    found = _named(program, joint, inputs.constant_values, fake.answering.asked)
    return replace(found, misplaced=misplaced(step.graph, lowering))


def _check_outputs(structure: Structure) -> None:
    for leaf in structure.rest():
        if not isinstance(leaf, PLAIN):
            raise InvalidInputError(
                f"the model returns a {type(leaf).__name__}, of which a compiled program doesn't"
                " know the tensors; return tensors in tuples, lists, dicts or dataclasses known to"
                " torch.utils._pytree, and switch caches off, as use_cache=False does"
            )


def _given(step: Step, joint: Joint, inputs: Inputs) -> dict[fx.Node, fx.Node]:
    """Returns the counterpart of each placeholder; tangents become inputs."""
    given: dict[fx.Node, fx.Node] = dict(inputs.constants)
    given.update((node, inputs.read[name]) for node, name in joint.stored.items())
    given.update((node, inputs.batch[position]) for node, position in joint.batch.items())
    for position, node in _tangents(joint).items():
        name = f"tangent.{position}"
        given[node] = step.input(GraphInput(name, "gradient", name), node.meta["val"])
    return given


def _tangents(joint: Joint) -> dict[int, fx.Node]:
    """Returns the placeholders of gradients by position, outputs before what is written."""
    places = {at: len(joint.outputs) + place for place, at in enumerate(joint.written)}
    behind = {places[at]: node for at, node in joint.written_tangents.items()}
    return {**joint.tangents, **behind}


def _add_outputs(step: Step, joint: Joint, inputs: Inputs, done: Mapping[fx.Node, fx.Node]) -> None:
    """Adds outputs, what is written to inputs, gradients of inputs and of parameters, buffers."""
    own = set(inputs.stored.values())
    for label, node in zip(joint.structure.labels, joint.outputs, strict=True):
        result = done[node]
        step.outputs.append(GraphOutput(_apart(step, result, own, "forward"), label))
    for position, node in joint.written.items():
        taken = {out.node for out in step.outputs} | own | set(inputs.batch)
        new = _apart(step, done[node], taken, "forward")
        step.write(new, inputs.batch[position], inputs.labels[position])
    taken = {out.node for out in step.outputs} | own | set(inputs.batch)
    taken |= {node for node in step.inputs if step.inputs[node].role == "gradient"}
    for position, node in joint.batch_gradients.items():
        result = _apart(step, done[node], taken, "backward")
        taken.add(result)
        step.outputs.append(GraphOutput(result, f"grad/{inputs.labels[position]}"))
    for name, nodes in joint.gradients.items():
        result = _apart(step, summed(step, [done[node] for node in nodes]), taken, "backward")
        taken.add(result)
        step.names[result] = f"grad/{name}"
        step.outputs.append(GraphOutput(result, f"grad/{name}", inputs.stored[name]))
    for name, node in joint.updates.items():
        if name in joint.gradients:  # A parameter shares its storage with that in the program.
            step.outputs.append(GraphOutput(_apart(step, done[node], taken, "forward"), name))
        else:
            step.update(done[node], inputs.stored[name], name)


def _apart(step: Step, node: fx.Node, taken: set[fx.Node], phase: str) -> fx.Node:
    """Returns a node with the value of another one, unlike that if it has a layout of its own.

    What is returned twice, as gradients of several parameters or as an output, may be laid out
    differently each time; a value is laid out once. Copies are seen through, products with 1 not.
    """
    while node.target in (aten.alias.default, aten.detach.default, aten.clone.default):
        node = node.all_input_nodes[0]
    if node not in taken or node.meta["val"].dtype == torch.bool:
        return node
    return step.call(Lifetime(phase), aten.mul.Scalar, node, 1)


def _named(
    program: Program, joint: Joint, constants: Mapping[str, Tensor], asked: Sequence[Asked]
) -> Differentiable:
    names = iter(program.main.outputs)
    outputs = tuple(islice(names, len(joint.outputs) + len(joint.written)))
    batch_gradients = dict(zip(joint.batch_gradients, names))  # noqa: B905
    gradients = dict(zip(joint.gradients, names))  # noqa: B905
    updates = dict(zip(joint.updates, names))  # noqa: B905
    return Differentiable(
        program,
        joint.structure,
        outputs,
        tuple(joint.written),
        {position: f"tangent.{position}" for position in _tangents(joint)},
        gradients,
        batch_gradients,
        updates,
        {name: each for name, each in constants.items() if name in program.main.inputs},
        tuple(asked),
        joint.narrowed,
        joint.frozen,
    )
