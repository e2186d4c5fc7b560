"""Captures a forward pass, or a forward and backward pass, as one graph of ATen ops.

The graph is traced on fake tensors and composite where autograd has formulas of its own (norms,
softmax, attention): completion takes an op apart only where a split needs it.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._export.utils import _compiling_state_context
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.traceback import preserve_node_meta
from torch.utils import _pytree as pytree

from autopar.base.errors import AnnotationError, InvalidInputError
from autopar.frontend.quiet import quiet
from autopar.frontend.torch.capture.fake import FakeModel
from autopar.frontend.torch.capture.origin import (
    UserLines,
    named_modules,
    spread_origins,
)
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
from autopar.frontend.torch.refusals import DEPENDENT, DEPENDS, Untraceable, user_line
from autopar.frontend.torch.rows.picked import PickedRows
from autopar.frontend.torch.rows.presence import Absent, Presence
from autopar.frontend.torch.step.batch import Structure, output_labels, structure_of
from autopar.frontend.torch.stored.assigned import registered_buffers, write_assigned
from autopar.frontend.torch.stored.leftovers import Leftovers
from autopar.frontend.torch.stored.outside_numbers import (
    changed_numbers,
    functions_of,
    outside_numbers,
)
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


class _Step(nn.Module):
    """A module whose `forward` is a function of a model and the tensors of a batch."""

    def __init__(self, fake: FakeModel, compute: Compute, *, absent: Absent) -> None:
        super().__init__()
        self.model = model = fake.module
        self.answering = answering = fake.answering
        self.presence = Presence(fake, absent=absent)
        self.compute = compute
        self.structure: Structure | None = None
        self.seen = [plain_attributes(model)]
        self.functions = functions_of(model)
        self.seen_outside = [outside_numbers(self.functions)]
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
        self.seen_outside.append(outside_numbers(self.functions))
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

    Raises:
        Untraceable: If the code depends on values of tensors, or can't be traced. Names the user's
            line.
        InvalidInputError: If a program can't do what it does.
    """
    make_batch_norms_static(fake.module)
    step = _Step(fake, compute, absent=absent)
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
        module = traced.graph_module
        take_sizes(module.graph)
        _correct_statistics(module.graph)
        _correct_gradients(module.graph)
        _correct_attention(module.graph)
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
    joint = _described(module, fake, step, assumed)
    refuse_overlaps(fake.stored, joint.updates)
    step.leftovers.refuse_written(joint.updates)
    return joint


def _drop_tangents(graph: fx.Graph) -> None:
    """Takes gradients of what `forward` writes to parameters out, as nobody gives any.

    Raises:
        InvalidInputError: If a write is differentiated, or is one to a buffer.
    """
    for node in graph.find_nodes(op="placeholder"):
        described: Any = node.meta.get("desc")
        if not _is(described, "TangentAOTInput"):
            continue
        written: Any = getattr(described.output, "mutated_input", None)
        refused = _is(written, "ParamAOTInput") and not drop_tangent(node)
        if refused or _is(written, "BufferAOTInput"):
            raise InvalidInputError(
                f"forward writes to {written.target.removeprefix('model.')!r} what has a gradient,"
                " and a program keeps none from step to step; write a detached tensor"
            )


_STATISTICS = frozenset(
    (
        torch.ops.aten._native_batch_norm_legit_functional.default,
        torch.ops.aten.native_layer_norm.default,
        torch.ops.aten.native_group_norm.default,
    )
)
"""Normalizations that return a mean and the inverse of a deviation behind their output."""


def _correct_statistics(graph: fx.Graph) -> None:
    """Corrects the dtype of what normalizations of halves save: their kernels keep it in float32.

    That is so where running statistics or weights are float32; fake tensors say otherwise.
    """
    for node in graph.nodes:
        if node.target not in _STATISTICS:
            continue
        given = [each.meta["val"].dtype for each in node.args if isinstance(each, fx.Node)]
        if given[0] not in (torch.float16, torch.bfloat16) or torch.float32 not in given[1:]:
            continue
        output, *saved = node.meta["val"]
        saved[:2] = [each.float() for each in saved[:2]]
        _retype(node, (output, *saved))


def _correct_gradients(graph: fx.Graph) -> None:
    """Corrects the dtype of the gradient of a group norm's input: it is the input's."""
    for node in graph.nodes:
        if node.target is torch.ops.aten.native_group_norm_backward.default:
            gradient, *others = node.meta["val"]
            source = node.args[1]
            if gradient is not None and isinstance(source, fx.Node):
                _retype(node, (gradient.to(source.meta["val"].dtype), *others))


def _correct_attention(graph: fx.Graph) -> None:
    """Corrects the dtype of what attention in float64 saves: torch before 2.13 says float32."""
    for node in graph.nodes:
        if node.target is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
            output, saved, *others = node.meta["val"]
            if output.dtype == torch.float64:
                _retype(node, (output, saved.double(), *others))


def _retype(node: fx.Node, results: tuple[Any, ...]) -> None:
    node.meta["val"] = results
    for pick in node.users:
        if pick.target is operator.getitem:
            pick.meta["val"] = results[pick.args[1]]  # type: ignore[index]


def _described(
    module: fx.GraphModule, fake: FakeModel, step: _Step, assumed: tuple[Assumed, ...]
) -> Joint:
    assert step.structure is not None
    owner = {alias: each.name for each in fake.stored.values() for alias in each.aliases}
    stored: dict[fx.Node, str] = {}
    batch: dict[fx.Node, int] = {}
    constants: dict[fx.Node, Tensor] = {}
    tangents: dict[int, fx.Node] = {}
    written_tangents: dict[int, fx.Node] = {}
    for node in module.graph.nodes:
        described = node.meta.get("desc")
        if node.op == "get_attr":
            constants[node] = _attribute(module, node)
        elif node.op != "placeholder":
            continue
        elif _is(described, "TangentAOTInput"):
            if not _is(described.output, "InputMutationAOTOutput"):
                tangents[described.output.idx] = node
            else:
                written_tangents[described.output.mutated_input.idx] = node
        elif _is(described, "PlainAOTInput"):
            batch[node] = described.idx
        elif _is(described, "ParamAOTInput", "BufferAOTInput"):
            stored[node] = owner[described.target.removeprefix("model.")]
    outputs: list[fx.Node] = []
    gradients: dict[str, tuple[fx.Node, ...]] = {}
    batch_gradients: dict[int, fx.Node] = {}
    written: dict[int, fx.Node] = {}
    updates: dict[str, fx.Node] = {}
    for node, described in _outputs(module.graph):
        if _is(described, "PlainAOTOutput"):
            outputs.append(node)
        elif _is(described, "GradAOTOutput") and _is(described.grad_of, "ParamAOTInput"):
            name = owner[described.grad_of.target.removeprefix("model.")]
            if node.meta["val"].is_sparse:
                raise InvalidInputError(
                    f"the gradient of {name!r} is sparse, and programs have dense tensors only;"
                    " use sparse=False in its nn.Embedding"
                )
            gradients[name] = (*gradients.get(name, ()), node)
        elif _is(described, "GradAOTOutput") and _is(described.grad_of, "PlainAOTInput"):
            batch_gradients[described.grad_of.idx] = node
        elif not _is(described, "InputMutationAOTOutput"):
            continue
        elif _is(described.mutated_input, "PlainAOTInput"):
            written[described.mutated_input.idx] = node
        else:
            updates[owner[described.mutated_input.target.removeprefix("model.")]] = node
    count = len(step.structure.labels)
    return Joint(
        module.graph,
        stored,
        batch,
        constants,
        tangents,
        tuple(outputs[:count]),
        step.structure,
        gradients,
        batch_gradients,
        written,
        written_tangents,
        updates,
        assumed,
        {name: outputs[count + at] for name, at in step.presence.told.items()},
        dict(fake.answering.selected.found),
        tuple(fake.answering.sizes.narrowed()),
        tuple(changed_numbers(step.seen_outside)),
    )


def _outputs(graph: fx.Graph) -> Iterator[tuple[fx.Node, Any]]:
    output = graph.output_node()
    nodes, described = output.args[0], output.meta["desc"]
    assert isinstance(nodes, (list, tuple))
    for node, each in zip(nodes, described, strict=True):
        if isinstance(node, fx.Node):
            yield node, each


def _is(described: object, *names: str) -> bool:
    return type(described).__name__ in names


def _attribute(module: fx.GraphModule, node: fx.Node) -> Tensor:
    found: Any = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    if not isinstance(found, Tensor):
        raise InvalidInputError(f"{node.name}: the code holds a {type(found).__name__}")
    return found


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
