"""From an ONNX file to a program: load, bind, walk, lower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import fx

from autopar.base.collector import paused_collector
from autopar.base.errors import UNKNOWN, Loc
from autopar.frontend.lower.exported import GraphInput, GraphOutput, Lowering
from autopar.frontend.lower.fx import lower
from autopar.frontend.lower.state import with_state
from autopar.frontend.onnx.imported import ImportedModel
from autopar.frontend.onnx.model.load import LoadedModel, load
from autopar.frontend.onnx.model.problems import Problems
from autopar.frontend.onnx.notes import ignored
from autopar.frontend.onnx.trace.bind import bind_inputs
from autopar.frontend.onnx.trace.names import weight_names
from autopar.frontend.onnx.trace.node import Node, Refused, to_bind
from autopar.frontend.onnx.trace.record import Recorder
from autopar.frontend.onnx.trace.trace import Trace, origin_of, windows_of_any_size
from autopar.frontend.onnx.trace.values import Failed, Known, Sized, StoredTensor, Traced, Value
from autopar.frontend.onnx.trace.walk import Walker
from autopar.frontend.quiet import quiet
from autopar.ir.builds.manifest import ReportEntry


@dataclass(frozen=True, slots=True)
class Recorded:
    """A model that was walked.

    Attributes:
        model: The model.
        recorder: What was recorded. Its graph returns the outputs.
        inputs: The program's inputs by name, in order.
        outputs: What the program returns, in the order of the ONNX graph's outputs.
        notes: What was done in another way than the model says.
    """

    model: LoadedModel
    recorder: Recorder
    inputs: Mapping[str, Traced]
    outputs: Sequence[fx.Node]
    notes: Sequence[ReportEntry]


def import_model(
    path: str,
    input_shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int | str],
    allow_external: Sequence[str],
    state: Mapping[str, str],
) -> ImportedModel:
    """Imports a model; see `autopar.frontend.onnx.import_onnx`."""
    imported = _Lowering(record_model(load(path, allow_external), input_shapes, dims)).run()
    return replace(imported, program=with_state(imported.program, state))


@paused_collector()
def record_model(
    model: LoadedModel, input_shapes: Mapping[str, Sequence[int]], dims: Mapping[str, int | str]
) -> Recorded:
    """Binds the shapes of a model and walks it.

    Raises:
        ModelError: If a size is unbound or contradicted, or if nodes can't be expressed.
    """
    problems = Problems(model.path)
    bound = bind_inputs(model.proto.graph, input_shapes, dims, problems)
    problems.raise_if_any()
    is_open = any(not isinstance(size, int) for item in bound for size in item.shape)
    recorder = Recorder(problems, trace=Trace(is_open))
    walker = Walker(model, recorder)
    inputs = {item.name: recorder.add_input(item.kind, item.shape) for item in bound}
    with quiet(), windows_of_any_size():
        values = walker.run_model(inputs)
    labels = [value.name for value in model.proto.graph.output]
    outputs = [_output(recorder, label, value) for label, value in zip(labels, values, strict=True)]
    problems.raise_if_any()
    wanted = [item for item in outputs if item is not None]
    sizes = recorder.trace.sizes
    file = Path(model.path).name
    unmet = sorted(sizes.unmet(file), key=lambda each: not sizes.are_known(each[1]))
    for label, part in unmet:
        # What torch makes up of sizes while a node runs follows from what is known of these.
        if not sizes.are_known(part) and label in {problem.where for problem in problems.found}:
            continue
        told, names = sizes.told(part)
        advice = to_bind(names, sizes.ranges_within(part)) if names else ""
        problems.add(label, f"it computes something else unless {told}", advice)
    problems.raise_if_any()
    recorder.trace.finish(wanted)
    limits = (*sizes.narrowed(file), *sizes.checked())
    return Recorded(model, recorder, inputs, wanted, [*walker.notes, *limits])


def _output(recorder: Recorder, label: str, value: Value) -> fx.Node | None:
    if isinstance(value, Sized):
        value = recorder.sizing.computed(value)
    if isinstance(value, Traced):
        return value.place
    if isinstance(value, Known):
        try:
            return recorder.store(value)
        except Refused as refusal:
            recorder.problems.add(f"output {label!r}", str(refusal))
            return None
    if not isinstance(value, Failed):
        what = "a sequence" if isinstance(value, list) else "an optional"
        recorder.problems.add(f"output {label!r}", f"is {what}; only tensors can be outputs")
    return None


class _Lowering:
    """Tells what the recorded graph's nodes are, and lowers it."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded
        self.recorder = recorded.recorder
        self.proto = recorded.model.proto
        self.file = Path(recorded.model.path).name

    def run(self) -> ImportedModel:
        """Returns the imported model."""
        labels = [value.name for value in self.proto.graph.output]
        returned = [
            GraphOutput(node, label)
            for node, label in zip(self.recorded.outputs, labels, strict=True)
        ]
        weights = {**self._stored(), **self._lifted()}
        inputs = {**self._user_inputs(), **{node: given for node, (given, _) in weights.items()}}
        names = self._value_names(returned)
        name = Path(self.file).stem
        lowering = Lowering(
            inputs, returned, names, self._locate, name, sizes=self.recorder.trace.sizes
        )
        program = lower(self.recorder.trace.graph, lowering)
        tensors = {given.name: tensor for given, tensor in weights.values()}
        used = {value: tensors[value] for value in program.main.inputs if value in tensors}
        report = (*ignored(self.proto, self.file), *self.recorded.notes)
        return ImportedModel(program, used, report)

    def _user_inputs(self) -> dict[fx.Node, GraphInput]:
        return {
            value.place: GraphInput(label, "input", label, Loc(self.file, name=label))
            for label, value in self.recorded.inputs.items()
        }

    def _stored(self) -> dict[fx.Node, tuple[GraphInput, torch.Tensor]]:
        """Returns the weights and constants that the graph reads, named."""
        found = [stored for stored in self.recorder.stored if stored.place.users]
        names = weight_names(found, taken=self.recorded.inputs)
        result = {}
        for stored, name in zip(found, names, strict=True):
            source = stored.value.source
            loc = Loc(self.file, name=source) if source else self._node_loc(stored.node)
            given = GraphInput(name, _role(stored), name, loc, kept=False)
            result[stored.place] = (given, stored.value.tensor.contiguous())
        return result

    def _lifted(self) -> dict[fx.Node, tuple[GraphInput, torch.Tensor]]:
        """Returns the constants that translations made up."""
        result = {}
        constants = self.recorder.trace.constants.items()
        used = [(node, tensor) for node, tensor in constants if node.users]
        for number, (node, tensor) in enumerate(used):
            loc = next((self._locate(user) for user in node.users), UNKNOWN)
            name = f"constant.{number}"
            given = GraphInput(name, "constant", name, loc, kept=False)
            result[node] = (given, tensor.contiguous())
        return result

    def _value_names(self, returned: Sequence[GraphOutput]) -> dict[fx.Node, str]:
        """Returns the ONNX name of each fx value that is one; outputs are named for themselves."""
        outputs = {output.node: output.label for output in reversed(returned)}
        return {**self.recorder.names, **outputs}

    def _locate(self, node: fx.Node) -> Loc:
        origin = origin_of(node)
        return UNKNOWN if origin is None else self._node_loc(origin)

    def _node_loc(self, node: Node | None) -> Loc:
        return Loc(self.file, name=f"{node.name} ({node.op_type})") if node else Loc(self.file)


def _role(stored: StoredTensor) -> str:
    """Returns "parameter" for what was trained, and "constant" for indices, masks and numbers."""
    tensor = stored.value.tensor
    trained = tensor.is_floating_point() or tensor.dtype in (torch.int8, torch.uint8)
    return "parameter" if stored.value.source and trained and tensor.numel() > 1 else "constant"
