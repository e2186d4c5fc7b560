"""From an ONNX file to a program: load, bind, walk, export, lower."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import fx
from torch.export.graph_signature import InputKind

from autopar.frontend.fx import GraphInput, GraphOutput, Lowering, lower
from autopar.frontend.onnx import ImportedModel
from autopar.frontend.onnx.bind import BoundInput, bind_inputs
from autopar.frontend.onnx.export import STEP_KEY, Exported, export
from autopar.frontend.onnx.load import LoadedModel, load
from autopar.frontend.onnx.names import weight_names
from autopar.frontend.onnx.node import Node
from autopar.frontend.onnx.notes import ignored
from autopar.frontend.onnx.problems import Problems
from autopar.frontend.onnx.record import Recorder
from autopar.frontend.onnx.values import Failed, Known, Slot, Stored, StoredTensor, Traced, Value
from autopar.frontend.onnx.walk import Walker
from autopar.ir.errors import UNKNOWN, Loc
from autopar.ir.manifest import ReportEntry


def import_model(
    path: str,
    input_shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int],
    allow_external: Sequence[str],
) -> ImportedModel:
    """Imports a model; see `autopar.frontend.onnx.import_onnx`."""
    model = load(path, allow_external)
    problems = Problems(path)
    bound = bind_inputs(model.proto.graph, input_shapes, dims, problems)
    problems.raise_if_any()
    return _Import(model, bound, problems).run()


class _Import:
    """One run of `import_model`, after the shapes are bound."""

    def __init__(self, model: LoadedModel, bound: Sequence[BoundInput], problems: Problems) -> None:
        self.file = Path(model.path).name
        self.graph = model.proto.graph
        self.proto = model.proto
        self.problems = problems
        self.recorder = Recorder(problems)
        self.walker = Walker(model, self.recorder)
        self.inputs = {item.name: self.recorder.add_input(item.kind, item.shape) for item in bound}

    def run(self) -> ImportedModel:
        with _quiet():
            values = self.walker.run_model(self.inputs)
        labels = [value.name for value in self.graph.output]
        outputs = [self._output(*pair) for pair in zip(labels, values, strict=True)]
        self.problems.raise_if_any()
        wanted = [item for item in outputs if item is not None]
        exported = export(self.recorder, list(self.inputs.values()), wanted)
        return self._lower(exported, labels)

    def _output(self, label: str, value: Value) -> Slot | Stored | None:
        if isinstance(value, Traced):
            return Slot(value.slot)
        if isinstance(value, Known):
            return self.recorder.store(value)
        if not isinstance(value, Failed):
            what = "a sequence" if isinstance(value, list) else "an optional"
            self.problems.add(f"output {label!r}", f"is {what}; only tensors can be outputs")
        return None

    def _lower(self, exported: Exported, labels: Sequence[str]) -> ImportedModel:
        returned = [
            GraphOutput(node, label) for node, label in zip(exported.results, labels, strict=False)
        ]
        weights = {**self._stored(exported), **self._lifted(exported)}
        inputs = {
            **self._user_inputs(exported),
            **{node: given for node, (given, _) in weights.items()},
        }
        names = self._value_names(exported, returned)
        name = self.graph.name or Path(self.file).stem
        program = lower(exported.graph, Lowering(inputs, returned, names, self._locate, name))
        tensors = {given.name: tensor for given, tensor in weights.values()}
        used = {value: tensors[value] for value in program.main.inputs if value in tensors}
        return ImportedModel(program, used, tuple(self._report()))

    def _user_inputs(self, exported: Exported) -> dict[fx.Node, GraphInput]:
        nodes = exported.placeholders(InputKind.USER_INPUT)
        return {
            node: GraphInput(label, "input", label, Loc(self.file, name=label))
            for (node, _), label in zip(nodes, self.inputs, strict=True)
        }

    def _stored(self, exported: Exported) -> dict[fx.Node, tuple[GraphInput, torch.Tensor]]:
        """Returns the weights and constants that the graph reads, named."""
        found = [
            (node, self.recorder.stored[exported.stored[spec.target or ""]])
            for node, spec in exported.placeholders(InputKind.BUFFER)
            if node.users
        ]
        names = weight_names([stored for _, stored in found], taken=self.inputs)
        result = {}
        for (node, stored), name in zip(found, names, strict=True):
            source = stored.value.source
            loc = Loc(self.file, name=source) if source else self._node_loc(stored.node)
            given = GraphInput(name, _role(stored), name, loc, kept=False)
            result[node] = (given, stored.value.tensor)
        return result

    def _lifted(self, exported: Exported) -> dict[fx.Node, tuple[GraphInput, torch.Tensor]]:
        """Returns the constants that translations made up."""
        result = {}
        for number, (node, spec) in enumerate(exported.placeholders(InputKind.CONSTANT_TENSOR)):
            tensor = exported.program.constants[spec.target or ""]
            loc = next((self._locate(user) for user in node.users), UNKNOWN)
            if isinstance(tensor, torch.Tensor):
                name = f"constant.{number}"
                result[node] = (GraphInput(name, "constant", name, loc, kept=False), tensor)
        return result

    def _value_names(
        self, exported: Exported, returned: Sequence[GraphOutput]
    ) -> dict[fx.Node, str]:
        """Returns the ONNX name of each fx value that is one, those of the outputs first."""
        names: dict[fx.Node, str] = {}
        for output in returned:
            names.setdefault(output.node, output.label)
        for node, slot in zip(exported.results, exported.slots, strict=True):
            if slot is not None and slot in self.recorder.names:
                names.setdefault(node, self.recorder.names[slot])
        return names

    def _locate(self, node: fx.Node) -> Loc:
        number = node.meta.get("custom", {}).get(STEP_KEY)
        return UNKNOWN if number is None else self._node_loc(self.recorder.steps[number].node)

    def _node_loc(self, node: Node | None) -> Loc:
        return Loc(self.file, name=f"{node.name} ({node.op_type})") if node else Loc(self.file)

    def _report(self) -> list[ReportEntry]:
        return [*ignored(self.proto, self.file), *self.walker.notes]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps torch from logging a traceback of each node that it can't run: we report those."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _role(stored: StoredTensor) -> str:
    """Returns "parameter" for what was trained, and "constant" for indices, masks and numbers."""
    tensor = stored.value.tensor
    trained = tensor.is_floating_point() or tensor.dtype in (torch.int8, torch.uint8)
    return "parameter" if stored.value.source and trained and tensor.numel() > 1 else "constant"
