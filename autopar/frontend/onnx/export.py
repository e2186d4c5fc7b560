"""The second pass: runs the recorded steps under torch.export, which records them as ATen.

Every traced ONNX value is returned from the exported module, so that export itself keeps track of
which ATen result it is. The lowering to a program drops the outputs that nobody asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.fx.traceback as fx_traceback
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec

from autopar.frontend.onnx.record import Recorder
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
    """What torch.export recorded.

    Attributes:
        program: ATen ops over placeholders for weights and inputs.
        stored: The position in `Recorder.stored` of each buffer, by its name.
        slots: The slot of each result of the graph; None for a result that is a weight.
    """

    program: ExportedProgram
    stored: Mapping[str, int]
    slots: Sequence[int | None]

    @property
    def graph(self) -> fx.Graph:
        """The graph of ATen ops."""
        module: fx.GraphModule = self.program.graph_module
        return module.graph

    @property
    def results(self) -> Sequence[fx.Node]:
        """What the graph returns: the program's outputs, then every traced ONNX value."""
        returned = self.graph.output_node().args[0]
        return [node for node in returned if isinstance(node, fx.Node)]  # type: ignore[union-attr]

    def placeholders(self, kind: InputKind) -> list[tuple[fx.Node, InputSpec]]:
        """Returns the placeholders of a kind, in order."""
        nodes = {node.name: node for node in self.graph.nodes if node.op == "placeholder"}
        specs = self.program.graph_signature.input_specs
        return [(nodes[spec.arg.name], spec) for spec in specs if spec.kind == kind]


class StepModule(torch.nn.Module):
    """Runs recorded steps with torch functions.

    Attributes:
        steps: The steps, in order.
        inputs: The slots of the arguments of `forward`.
        results: The slots, or positions of stored tensors, that it returns.
    """

    def __init__(
        self,
        recorder: Recorder,
        inputs: Sequence[Traced],
        results: Sequence[Slot | Stored],
    ) -> None:
        """Builds the module; the stored tensors become its buffers, without a copy."""
        super().__init__()
        self.steps: list[Step] = recorder.steps
        self.inputs = [value.slot for value in inputs]
        self.results = list(results)
        for position, stored in enumerate(recorder.stored):
            self.register_buffer(buffer_name(position), stored.value.tensor)

    def forward(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Runs the steps and returns the tensors in `results`."""
        slots = dict(zip(self.inputs, arguments, strict=True))
        for number, step in enumerate(self.steps):
            with fx_traceback.annotate({STEP_KEY: number}):
                operands = [self._resolve(operand, slots) for operand in step.operands]
                results = flatten(step.translation.run(step.node, *operands))
            for slot, tensor in zip(step.slots, results, strict=True):
                if slot is not None:
                    slots[slot] = tensor
        return tuple(
            slots[item.number] if isinstance(item, Slot) else self._stored(item)
            for item in self.results
        )

    def _resolve(self, operand: Operand, slots: Mapping[int, torch.Tensor]) -> object:
        if isinstance(operand, list):
            return [self._resolve(item, slots) for item in operand]
        if isinstance(operand, Slot):
            return slots[operand.number]
        return self._stored(operand) if isinstance(operand, Stored) else operand

    def _stored(self, operand: Stored) -> torch.Tensor:
        tensor: torch.Tensor = getattr(self, buffer_name(operand.position))
        return tensor


def buffer_name(position: int) -> str:
    """Returns the name of the buffer that holds a stored tensor."""
    return f"stored_{position}"


def export(
    recorder: Recorder, inputs: Sequence[Traced], outputs: Sequence[Slot | Stored]
) -> Exported:
    """Records the steps as ATen.

    Args:
        recorder: The steps and stored tensors.
        inputs: The program's inputs.
        outputs: What the program returns, in order.

    Raises:
        InvalidInputError: If torch.export fails.
    """
    computed = [slot for step in recorder.steps for slot in step.slots if slot is not None]
    results = [*outputs, *(Slot(slot) for slot in computed)]
    module = StepModule(recorder, inputs, results).eval()
    # Not touched, so no memory is used for them.
    arguments = tuple(torch.empty(v.fake.shape, dtype=v.fake.dtype) for v in inputs)
    with fx_traceback.preserve_node_meta(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = _export(module, arguments)
    stored = {buffer_name(position): position for position in range(len(recorder.stored))}
    slots = [item.number if isinstance(item, Slot) else None for item in results]
    return Exported(program, stored, slots)


def _export(module: StepModule, arguments: tuple[torch.Tensor, ...]) -> ExportedProgram:
    try:
        program = torch.export.export(module, arguments, strict=False)
        decomposed: ExportedProgram = program.run_decompositions(decompositions())
        return decomposed
    except Exception as error:  # whatever it is: the steps ran before, and export has bugs
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise InvalidInputError(f"torch.export can't record the model: {reason}") from error


def decompositions() -> dict[torch._ops.OperatorBase, object]:
    """Returns the core ATen decompositions but those of ops that stay whole."""
    table = dict(torch.export.default_decompositions())
    kept = [op for op in table if any(str(op).startswith(f"{name}.") for name in _KEPT)]
    for op in kept:
        del table[op]
    return table
