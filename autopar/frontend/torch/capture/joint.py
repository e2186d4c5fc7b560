"""Captures a forward pass, or a forward and backward pass, as one graph of ATen ops.

The graph is traced on fake tensors and composite where autograd has formulas of its own (norms,
softmax, attention): completion takes an op apart only where a split needs it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn
from torch._export.utils import _compiling_state_context
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.traceback import preserve_node_meta
from torch.utils import _pytree as pytree

from autopar.base.errors import AnnotationError, InvalidInputError
from autopar.frontend.quiet import quiet
from autopar.frontend.torch.capture.described import Denominator, inputs_of, is_any, outputs_of
from autopar.frontend.torch.capture.fake import FakeModel
from autopar.frontend.torch.capture.kernel_dtypes import correct_dtypes
from autopar.frontend.torch.capture.outside import FromOutside
from autopar.frontend.torch.capture.rewrites import Rewritten
from autopar.frontend.torch.capture.simplify import simplify
from autopar.frontend.torch.capture.sized import take_sizes
from autopar.frontend.torch.conditions.assumptions import Assumed, take_assumptions
from autopar.frontend.torch.conditions.conditions import questions_kept
from autopar.frontend.torch.conditions.kept_results import computed_anew
from autopar.frontend.torch.conditions.lots import no_lots
from autopar.frontend.torch.conditions.narrowing import ExampleSizes, SizeDecides
from autopar.frontend.torch.conditions.own_generators import undrawn
from autopar.frontend.torch.ops.batch_norms import make_batch_norms_static
from autopar.frontend.torch.ops.checkpoints import noted_checkpoints
from autopar.frontend.torch.ops.flags import decided_flags
from autopar.frontend.torch.ops.own_backward import checked_functions
from autopar.frontend.torch.ops.strided import name_strided_views
from autopar.frontend.torch.origin import (
    UserLines,
    named_modules,
    spread_origins,
)
from autopar.frontend.torch.refusals import DEPENDENT, DEPENDS, Untraceable, user_line
from autopar.frontend.torch.rows.picked import PickedRows
from autopar.frontend.torch.rows.presence import Absent, Presence
from autopar.frontend.torch.step.batch import Structure, output_labels, structure_of
from autopar.frontend.torch.stored.assigned import registered_buffers, write_assigned
from autopar.frontend.torch.stored.leftovers import Leftovers
from autopar.frontend.torch.stored.outside_numbers import OwnCode, changed_numbers
from autopar.frontend.torch.stored.overlaps import refuse_overlaps
from autopar.frontend.torch.stored.overwritten import drop_tangent
from autopar.frontend.torch.stored.python_state import plain_attributes, refuse_changes
from autopar.frontend.torch.stored.tables import Tables
from autopar.frontend.torch.stored.written_once import WrittenOnce
from autopar.ir.builds.manifest import ReportEntry

Compute = Callable[[nn.Module, Sequence[Tensor]], Any]
"""(model, tensors of the batch) -> a pytree of tensors; the loss first, where there is one."""


@dataclass(frozen=True)
class Joint:
    """A captured graph and what its placeholders and outputs are.

    Attributes:
        graph: The graph, without side effects.
        stored: Names of the model's tensors, by placeholder.
        batch: Positions in the batch, by placeholder.
        constants: Tensors that the code holds, by the node that gets them.
        tangents: The placeholders of the gradients of outputs, by position of the output; empty
            without a backward pass.
        outputs: What the model returns, in order.
        structure: How the outputs are put together, and their names.
        gradients: The gradients by name of the parameter, several for a tied one.
        batch_gradients: The gradients of the batch, by position.
        written: New contents of tensors of the batch, by position.
        written_tangents: The placeholders of the gradients of those that have some.
        updates: New contents of buffers and parameters, by name.
        assumed: What must be as in the example.
        present: Whether parameters have a gradient, by name, of those where data decides.
        selected: Lines that compute all rows that data may select, each with how often.
        narrowed: What open sizes can't be.
        frozen: What code changes in each run, and a program doesn't.
        denominators: Placeholders for what terms of the loss are divided by.
    """

    graph: fx.Graph
    stored: Mapping[fx.Node, str]
    batch: Mapping[fx.Node, int]
    constants: Mapping[fx.Node, Tensor]
    tangents: Mapping[int, fx.Node]
    outputs: tuple[fx.Node, ...]
    structure: Structure
    gradients: Mapping[str, tuple[fx.Node, ...]]
    batch_gradients: Mapping[int, fx.Node]
    written: Mapping[int, fx.Node]
    written_tangents: Mapping[int, fx.Node]
    updates: Mapping[str, fx.Node]
    assumed: tuple[Assumed, ...]
    present: Mapping[str, fx.Node]
    selected: Mapping[str, int]
    narrowed: tuple[ReportEntry, ...] = ()
    frozen: tuple[ReportEntry, ...] = ()
    denominators: tuple[Denominator, ...] = ()


class _Step(nn.Module):
    """A module whose `forward` is a function of a model and the tensors of a batch."""

    def __init__(
        self, fake: FakeModel, compute: Compute, *, absent: Absent, beside: Sequence[Any]
    ) -> None:
        super().__init__()
        self.model = model = fake.module
        self.answering = answering = fake.answering
        self.presence = Presence(fake, absent=absent)
        self.compute = compute
        self.structure: Structure | None = None
        self.seen = [plain_attributes(model)]
        self.code = OwnCode.of(model, beside)
        self.seen_outside = [self.code.numbers()]
        self.leftovers = Leftovers(fake)
        self.tables = Tables(model, answering.fixed)
        self.written = WrittenOnce(model, answering.is_written)
        self.outside = FromOutside(fake)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        self.answering.begin()
        self.written.begin(tensors)
        buffers = registered_buffers(self.model)
        self.tables.lay_out()
        self.leftovers.lay_out()
        self.outside.begin()
        outputs = self.compute(self.model, tensors)
        self.seen.append(plain_attributes(self.model))
        self.seen_outside.append(self.code.numbers())
        self.leftovers.settle()
        self.tables.put_back(buffers)
        write_assigned(self.model, buffers)
        self.written.end()
        paths, spec = pytree.tree_flatten_with_path(outputs)
        found = [(path, leaf) for path, leaf in paths if isinstance(leaf, Tensor)]
        self.structure = structure_of(paths, spec, output_labels([path for path, _ in found]))
        leaves = [leaf for _, leaf in found]
        self.answering.selected.check([*leaves, *buffers.values()])
        return (*leaves, *self.presence.tell(leaves))


def capture_joint(
    fake: FakeModel,
    compute: Compute,
    batch: Sequence[Tensor],
    *,
    compiling: bool = True,
    absent: Absent,
    beside: Sequence[Any] = (),
) -> Joint:
    """Captures what a function computes, and the gradients of its results that have some.

    With one result, a loss, these are the gradients of the loss.

    Args:
        fake: The model.
        compute: What is to be computed.
        batch: Fake tensors of the batch.
        compiling: Whether code that asks is told that it is compiled, and goes the way that it has
            for compilers.
        absent: What becomes of parameters that data leave without a gradient.
        beside: What the function calls besides the model.

    Raises:
        Untraceable: If the code depends on values of tensors, or can't be traced. Names the user's
            line.
        InvalidInputError: If a program can't do what it does.
    """
    make_batch_norms_static(fake.module)
    step = _Step(fake, compute, absent=absent, beside=beside)
    module = _traced(step, fake, batch, compiling)
    name_strided_views(module.graph)
    simplify(module.graph)
    _drop_tangents(module.graph)
    with fake.mode, preserve_node_meta(), _explained(fake.answering.sizes):
        # Behind what takes ops out that nothing reads: none reads what is assumed.
        assumed = take_assumptions(module.graph, fake.answering)
    fake.answering.sizes.narrow_all()
    refuse_changes(step.model, step.seen)
    spread_origins(module.graph)
    assert step.structure is not None
    joint = _joint(module, fake, step, assumed)
    refuse_overlaps(fake.stored, joint.updates)
    step.leftovers.refuse_written(joint.updates)
    return joint


def _traced(
    step: _Step, fake: FakeModel, batch: Sequence[Tensor], compiling: bool
) -> fx.GraphModule:
    """Returns the graph of a step, forward and backward, as torch traces it."""
    explained = _explained(fake.answering.sizes)
    with contextlib.ExitStack() as stack, fake.mode, preserve_node_meta(), explained:
        if compiling:
            stack.enter_context(_compiling_state_context())
        stack.enter_context(computed_anew(step.model))
        stack.enter_context(named_modules(step, skip="model"))
        stack.enter_context(Rewritten())
        stack.enter_context(PickedRows(fake.answering.selected, fake.answering.fixed))
        stack.enter_context(checked_functions(fake.answering.selected))
        stack.enter_context(UserLines())
        stack.enter_context(noted_checkpoints())
        stack.enter_context(decided_flags())
        stack.enter_context(questions_kept())
        stack.enter_context(fake.answering.on())
        stack.enter_context(no_lots(lambda: step(*batch)))
        stack.enter_context(undrawn(step.model))
        stack.enter_context(step.outside)
        traced = aot_export_joint_with_descriptors(stack, step, tuple(batch), {}, decompositions={})
        module: fx.GraphModule = traced.graph_module
        take_sizes(module.graph)
        correct_dtypes(module.graph)
    return module


def _drop_tangents(graph: fx.Graph) -> None:
    """Takes gradients of what `forward` writes to parameters out, as nobody gives any.

    Raises:
        InvalidInputError: If a write is differentiated, or is one to a buffer.
    """
    for node in graph.find_nodes(op="placeholder"):
        described: Any = node.meta.get("desc")
        if not is_any(described, "TangentAOTInput"):
            continue
        written: Any = getattr(described.output, "mutated_input", None)
        refused = is_any(written, "ParamAOTInput") and not drop_tangent(node)
        if refused or is_any(written, "BufferAOTInput"):
            raise InvalidInputError(
                f"forward writes to {written.target.removeprefix('model.')!r} what has a gradient,"
                " and a program keeps none from step to step; write a detached tensor"
            )


def _joint(
    module: fx.GraphModule, fake: FakeModel, step: _Step, assumed: tuple[Assumed, ...]
) -> Joint:
    assert step.structure is not None
    owner = {alias: each.name for each in fake.stored.values() for alias in each.aliases}
    inputs, outputs = inputs_of(module, owner), outputs_of(module.graph, owner)
    count = len(step.structure.labels)
    return Joint(
        module.graph,
        inputs.stored,
        inputs.batch,
        inputs.constants,
        inputs.tangents,
        tuple(outputs.plain[:count]),
        step.structure,
        outputs.gradients,
        outputs.batch_gradients,
        outputs.written,
        inputs.written_tangents,
        outputs.updates,
        assumed,
        {name: outputs.plain[count + at] for name, at in step.presence.told.items()},
        dict(fake.answering.selected.found),
        tuple(fake.answering.sizes.narrowed()),
        tuple(changed_numbers(step.seen_outside)),
    )


@contextlib.contextmanager
def _explained(sizes: ExampleSizes) -> Iterator[None]:
    """Turns what tracing raises into an error that names the user's line."""
    try:
        with quiet():
            yield
    except SizeDecides as error:
        raise Untraceable(f"{user_line(error)}: {error}") from error
    except InvalidInputError:
        raise
    except AnnotationError as error:
        raise AnnotationError(f"{user_line(error)}: {error}") from error
    except DEPENDENT as error:
        if isinstance(error, GuardOnDataDependentSymNode) and sizes.sizes:
            raise Untraceable(f"{user_line(error)}: {sizes.refusal(error.cond)}") from error
        raise Untraceable(f"{user_line(error)}: {DEPENDS}") from error
    except Exception as error:
        raise Untraceable(
            f"{user_line(error)}: can't trace the model: {type(error).__name__}: {error}"
        ) from error
