"""The second pass: runs the recorded steps under torch's tracer, which records them as ATen.

Every traced ONNX value is returned from the traced function, so that the tracer itself keeps track
of which ATen result it is. The lowering to a program drops the outputs that nobody asked for.

It is one trace, on fake tensors, with decompositions and without writes. `torch.export` with
`run_decompositions` records the same, but traces five times, and takes time that is quadratic in
the number of weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx

from autopar.frontend.onnx.record import Recorder, stand_in
from autopar.frontend.onnx.values import Operand, Slot, Step, Stored, Traced, flatten
from autopar.ir.errors import InvalidInputError

STEP_KEY = "onnx_step"
"""The key in `node.meta["custom"]` that holds the position of an fx node's step."""

_KEPT = (
    "aten.native_layer_norm",
    "aten.native_group_norm",
    "aten._softmax",
    "aten._log_softmax",
    "aten.gelu",
    "aten.silu",
    "aten.embedding",
    "aten.native_batch_norm",
    "aten._native_batch_norm_legit",
    "aten._native_batch_norm_legit_no_training",
    "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten.elu",
    "aten.hardswish",
    "aten.hardsigmoid",
    "aten.leaky_relu",
    "aten.mish",
    "aten.celu",
    "aten.softplus",
    *(f"aten.upsample_nearest{rank}d" for rank in (1, 2, 3)),
    *(f"aten.upsample_{name}" for name in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")),
)
"""Ops that stay whole: fused kernels are fast, and a split that needs more takes them apart."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was traced.

    Attributes:
        graph: ATen ops over placeholders.
        stored: The placeholders of `Recorder.stored`, in order.
        inputs: Those of the program's inputs.
        constants: Those of tensors that translations made up, with their content.
        results: What the graph returns: the program's outputs, then every traced ONNX value.
        slots: The slot of each result; None for a result that is a weight.
    """

    graph: fx.Graph
    stored: Sequence[fx.Node]
    inputs: Sequence[fx.Node]
    constants: Mapping[fx.Node, torch.Tensor]
    results: Sequence[fx.Node]
    slots: Sequence[int | None]


class StepModule(torch.nn.Module):
    """Runs recorded steps with torch functions.

    Attributes:
        steps: The steps, in order.
        inputs: The slots of the arguments of `forward`.
        results: The slots, or positions of stored tensors, that it returns.
        stored: The stored tensors.
    """

    def __init__(
        self,
        recorder: Recorder,
        inputs: Sequence[Traced],
        results: Sequence[Slot | Stored],
    ) -> None:
        """Builds the module; it reads the stored tensors themselves."""
        super().__init__()
        self.steps: list[Step] = recorder.steps
        self.inputs = [value.slot for value in inputs]
        self.results = list(results)
        self.stored = [stored.value.tensor for stored in recorder.stored]

    def forward(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Runs the steps and returns the tensors in `results`."""
        return self.run(self.stored, arguments)

    def run(
        self, stored: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Runs the steps with other tensors in the place of the stored ones."""
        slots = dict(zip(self.inputs, arguments, strict=True))
        for number, step in enumerate(self.steps):
            with fx_traceback.annotate({STEP_KEY: number}):
                operands = [_resolve(operand, slots, stored) for operand in step.operands]
                results = flatten(step.translation.run(step.node, *operands))
            for slot, tensor in zip(step.slots, results, strict=True):
                if slot is not None:
                    slots[slot] = tensor
        return tuple(
            slots[item.number] if isinstance(item, Slot) else stored[item.position]
            for item in self.results
        )


def _resolve(
    operand: Operand, slots: Mapping[int, torch.Tensor], stored: Sequence[torch.Tensor]
) -> object:
    if isinstance(operand, list):
        return [_resolve(item, slots, stored) for item in operand]
    if isinstance(operand, Slot):
        return slots[operand.number]
    return stored[operand.position] if isinstance(operand, Stored) else operand


def export(
    recorder: Recorder, inputs: Sequence[Traced], outputs: Sequence[Slot | Stored]
) -> Exported:
    """Records the steps as ATen.

    Args:
        recorder: The steps and stored tensors.
        inputs: The program's inputs.
        outputs: What the program returns, in order.

    Raises:
        InvalidInputError: If torch fails to trace them.
    """
    computed = [slot for step in recorder.steps for slot in step.slots if slot is not None]
    results = [*outputs, *(Slot(slot) for slot in computed)]
    module = StepModule(recorder, inputs, results).eval()
    stored = [recorder.stand_in(item.value) for item in recorder.stored]
    traced = _trace(module, stored, [value.fake for value in inputs], recorder.mode)
    constants = _lift_constants(traced, recorder.mode)
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    given = placeholders[: len(recorder.stored) + len(inputs)]
    returned = traced.graph.output_node().args[0]
    assert isinstance(returned, (list, tuple))
    return Exported(
        traced.graph,
        given[: len(recorder.stored)],
        given[len(recorder.stored) :],
        constants,
        [node for node in returned if isinstance(node, fx.Node)],
        [item.number if isinstance(item, Slot) else None for item in results],
    )


def _trace(
    module: StepModule, stored: list[torch.Tensor], inputs: list[torch.Tensor], mode: FakeTensorMode
) -> fx.GraphModule:
    # Torch's tracer counts the arguments of what it wraps: a bound method has one too many.
    def run(stored: list[torch.Tensor], arguments: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return module.run(stored, arguments)

    pure = torch.func.functionalize(run, remove="mutations")
    try:
        with (
            mode,
            enable_python_dispatcher(),  # Else decompositions in C++ write in place.
            _use_lazy_graph_module(True),  # What is traced is never run.
            fx_traceback.preserve_node_meta(),
            torch.no_grad(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            return make_fx(pure, decompositions())(stored, inputs)
    except Exception as error:  # whatever it is: the steps ran before, and torch has bugs
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise InvalidInputError(f"torch can't record the model: {reason}") from error


def _lift_constants(traced: fx.GraphModule, mode: FakeTensorMode) -> dict[fx.Node, torch.Tensor]:
    """Makes placeholders of the tensors that a traced module holds, behind those it has."""
    held = [node for node in traced.graph.nodes if node.op == "get_attr"]
    last = next((node for node in traced.graph.nodes if node.op != "placeholder"), None)
    constants = {}
    for node in held:
        tensor = getattr(traced, str(node.target))
        with traced.graph.inserting_before(last):
            lifted = traced.graph.placeholder(node.name)
        lifted.meta["val"] = stand_in(tensor, mode)
        node.replace_all_uses_with(lifted)
        traced.graph.erase_node(node)
        constants[lifted] = tensor
    return constants


def decompositions() -> dict[Any, Any]:
    """Returns the core ATen decompositions but those of ops that stay whole."""
    table = dict(torch.export.default_decompositions())
    kept = [op for op in table if any(str(op).startswith(f"{name}.") for name in _KEPT)]
    for op in kept:
        del table[op]
    return table
