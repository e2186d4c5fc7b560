"""Walks an ONNX graph node by node: names, functions and control flow; `record` does the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from onnx import FunctionProto, GraphProto, NodeProto

from autopar.base.errors import Loc
from autopar.frontend.lower.spelling import TORCH_HALVES
from autopar.frontend.onnx.model.check import node_label
from autopar.frontend.onnx.model.dtypes import element_type
from autopar.frontend.onnx.model.expansion import MOST_NESTED, NODE_BUDGET
from autopar.frontend.onnx.model.load import LoadedModel
from autopar.frontend.onnx.model.schema import (
    function_key,
    has_body,
    normal_domain,
    schema_defaults,
    schema_function,
)
from autopar.frontend.onnx.model.tensors import read_sparse, read_tensor
from autopar.frontend.onnx.ops import find_translation
from autopar.frontend.onnx.trace.control import CONTROL
from autopar.frontend.onnx.trace.node import Node, Refused, as_array, read_tensors, to_fix
from autopar.frontend.onnx.trace.record import Recorder
from autopar.frontend.onnx.trace.scope import Scope
from autopar.frontend.onnx.trace.values import Failed, Known, Traced, Translation, Value
from autopar.ir.builds.manifest import ReportEntry

WIDENED = frozenset(("Attention",))
"""Operators whose definition runs in float32 on halves, as fused kernels keep what is inside."""


class _Exhausted(Exception):
    """A model unfolds to more than an import runs. Its arguments are those of a problem."""


class Walker:
    """Runs the graphs of one model through a recorder.

    Attributes:
        recorder: Where nodes are run or recorded.
        notes: What the user should know about the result, though it is no error.
    """

    def __init__(self, model: LoadedModel, recorder: Recorder) -> None:
        """Prepares to walk `model`."""
        self.recorder = recorder
        self.notes: list[ReportEntry] = []
        self._model = model
        self._functions = {function_key(f): f for f in model.proto.functions}
        self._left = NODE_BUDGET
        self._depth = 0

    def run_model(self, inputs: Mapping[str, Traced]) -> list[Value]:
        """Walks the main graph with these inputs and returns the values of its outputs."""
        opsets = {normal_domain(o.domain): o.version for o in self._model.proto.opset_import}
        scope = Scope(opsets)
        for name, value in inputs.items():
            self.define(scope, name, value)
        try:
            return self.run_graph(self._model.proto.graph, scope)
        except _Exhausted as error:
            self.recorder.problems.add(*error.args)
            return [Failed()] * len(self._model.proto.graph.output)

    def run_graph(self, graph: GraphProto, scope: Scope) -> list[Value]:
        """Walks a graph whose inputs are defined in `scope`; returns the values of its outputs."""
        scope.initializers.update((tensor.name, tensor) for tensor in graph.initializer)
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            try:
                dense = read_sparse(sparse, self._model.files)
            except IndexError as error:
                self.recorder.problems.add(f"sparse initializer {name!r}", str(error))
                scope.values[name] = Failed()
                continue
            kind = element_type(sparse.values.data_type)
            if kind is not None:
                scope.values[name] = Known(dense, kind, name)
        self._run_nodes(graph.node, scope)
        return [self.lookup(scope, value.name) for value in graph.output]

    def call(
        self, function: FunctionProto, caller: Scope, node: Node, inputs: Sequence[Value]
    ) -> list[Value]:
        """Inlines a function: walks its body with the node's inputs and attributes."""
        opsets = {normal_domain(o.domain): o.version for o in function.opset_import}
        bound = {attribute.name: attribute for attribute in function.attribute_proto}
        bound.update(node.attributes)
        scope = Scope({**caller.opsets, **opsets}, f"{node.name}/", attributes=bound)
        for name, value in zip(function.input, inputs, strict=False):
            scope.values[name] = value
        for name in function.input[len(inputs) :]:
            scope.values[name] = None
        with self._nested(node.label):
            self._run_nodes(function.node, scope)
        return [self.lookup(scope, name) for name in function.output]

    def run_subgraph(
        self, graph: GraphProto, parent: Scope, inputs: Sequence[Value], label: str = ""
    ) -> list[Value]:
        """Walks the graph of a control-flow node, which sees the names around the node.

        Args:
            graph: The branch or loop body.
            parent: The scope of the node.
            inputs: The values of the graph's inputs.
            label: Goes before the names of its values, to tell iterations apart; by default, what
                goes before those of the node's scope.

        Raises:
            Refused: If the graph takes another number of inputs.
        """
        if len(graph.input) != len(inputs):
            raise Refused(f"its graph takes {len(graph.input)} inputs and is given {len(inputs)}")
        prefix = f"{label}/" if label else parent.prefix
        scope = Scope(parent.opsets, prefix, parent, parent.attributes)
        for formal, value in zip(graph.input, inputs, strict=True):
            scope.values[formal.name] = value
        self._spend(1, graph.name)
        with self._nested(graph.name):
            return self.run_graph(graph, scope)

    @contextmanager
    def _nested(self, where: str) -> Iterator[None]:
        """Guards what lies within a node: Python's stack is no deeper than a thousand calls."""
        self._depth += 1
        if self._depth > MOST_NESTED:
            what = f"functions, branches and loops are nested more than {MOST_NESTED} deep"
            raise _Exhausted(where, what, "inline some")
        yield
        self._depth -= 1

    def _spend(self, count: int, where: str) -> None:
        """Counts what is run."""
        self._left -= count
        if self._left < 0:
            what = f"the model runs more than {NODE_BUDGET} nodes once its loops are unrolled"
            raise _Exhausted(where, what)

    def lookup(self, scope: Scope, name: str) -> Value:
        """Returns what a name stands for; None for the empty name of an input left out."""
        at: Scope | None = scope
        while name and at is not None:
            if name in at.values:
                return at.values[name]
            if name in at.initializers:
                return self._read_initializer(at, name)
            at = at.parent
        return Failed() if name else None

    def define(self, scope: Scope, name: str, value: Value) -> None:
        """Gives a value a name."""
        scope.values[name] = value
        if isinstance(value, Traced):
            self.recorder.names.setdefault(value.place, scope.prefix + name)
        elif isinstance(value, list):
            for at, item in enumerate(value):
                if isinstance(item, Traced):
                    self.recorder.names.setdefault(item.place, f"{scope.prefix}{name}.{at}")

    def _read_initializer(self, scope: Scope, name: str) -> Value:
        tensor = scope.initializers.pop(name)
        kind = element_type(tensor.data_type)
        if kind is None:
            scope.values[name] = Failed()
        else:
            content = read_tensor(tensor, self._model.files)
            scope.values[name] = Known(content, kind, scope.prefix + name)
        return scope.values[name]

    def _run_nodes(self, nodes: Sequence[NodeProto], scope: Scope) -> None:
        for index, proto in enumerate(nodes):
            node = self._node(proto, index, scope)
            values = self._run_node(node, scope)
            for name, value in zip(proto.output, values, strict=False):
                if name:
                    self.define(scope, name, value)
            for name in proto.output[len(values) :]:
                scope.values[name] = None

    def _node(self, proto: NodeProto, index: int, scope: Scope) -> Node:
        domain = normal_domain(proto.domain)
        attributes = {}
        for attribute in proto.attribute:
            if not attribute.ref_attr_name:
                attributes[attribute.name] = attribute
            elif attribute.ref_attr_name in scope.attributes:
                attributes[attribute.name] = scope.attributes[attribute.ref_attr_name]
        name = scope.prefix + node_label(proto, index)
        opset = scope.opsets.get(domain, 0)
        tensors = read_tensors(attributes, self._model.files)
        arrays = {key: as_array(value) for key, value in tensors.items() if value.numel() == 1}
        return Node(proto, name, domain, opset, attributes, tensors, arrays)

    def _run_node(self, node: Node, scope: Scope) -> list[Value]:
        inputs = [self.lookup(scope, name) for name in node.proto.input]
        failed: list[Value] = [Failed()] * len(node.proto.output)
        self._spend(max(1, len(node.proto.output)), node.label)
        key = (node.domain, node.op_type, node.proto.overload)
        if key in self._functions:
            return self.call(self._functions[key], scope, node, inputs)
        control = CONTROL.get(node.op_type) if not node.domain else None
        if control is not None:
            try:
                return control(self, scope, node, inputs)
            except Refused as refusal:
                self.recorder.refuse(node, refusal)
                return failed
        translation = find_translation(node.domain, node.op_type, node.opset)
        if translation is not None:
            results = self.recorder.run(node, translation, inputs, len(node.proto.output))
            if translation.caveat is not None and (detail := translation.caveat(node, inputs)):
                self.note(node, detail, "ambiguous")
            return results
        defined = self._run_definition(node, scope, inputs)
        if defined is not None:
            return defined
        # What defines it may depend on types, which failed inputs lack.
        if not any(isinstance(value, Failed) for value in inputs):
            self.recorder.problems.add(node.label, *self._why_unknown(node, inputs))
        return failed

    def _why_unknown(self, node: Node, inputs: Sequence[Value]) -> tuple[str, str]:
        """Returns why a node can't be expressed, and what to do."""
        fakes = (value.fake for value in inputs if isinstance(value, Traced))
        names = self.recorder.trace.sizes.names(size for fake in fakes for size in fake.shape)
        if names and has_body(node):
            what = "onnx says what it computes only where sizes are known"
            return f"{what}, and {', '.join(names)} are open", to_fix(", ".join(names))
        advice = "define it as a function in the model, or export with other operators"
        return f"the operator {node.op_type} isn't supported", advice

    def _run_definition(
        self, node: Node, scope: Scope, inputs: Sequence[Value]
    ) -> list[Value] | None:
        """Inlines what onnx defines an operator by, if it is defined in terms of others."""
        narrow = {v.kind.carrier for v in inputs if isinstance(v, (Known, Traced))} & TORCH_HALVES
        wide = node.op_type in WIDENED and len(narrow) == 1
        if wide:
            inputs = [self._cast(node, value, narrow, torch.float32) for value in inputs]
        function = schema_function(node, inputs)
        if function is None:
            return None
        node = replace(node, attributes={**schema_defaults(node), **node.attributes})
        results = self.call(function, scope, node, inputs)
        if wide:
            return [self._cast(node, value, {torch.float32}, *narrow) for value in results]
        return results

    def _cast(
        self, node: Node, value: Value, dtypes: Collection[torch.dtype], dtype: torch.dtype
    ) -> Value:
        """Casts a value if its dtype is one of `dtypes`."""

        def cast(_: Node, x: torch.Tensor) -> torch.Tensor:
            return x.to(dtype)

        if not isinstance(value, (Known, Traced)) or value.kind.carrier not in dtypes:
            return value
        return self.recorder.run(node, Translation(cast), [value], 1)[0]

    def note(self, node: Node, detail: str, category: str = "rewritten") -> None:
        """Notes that a node is done in another way than the model says, or than others do it."""
        loc = Loc(Path(self._model.path).name, name=node.name)
        self.notes.append(ReportEntry(category, f"node {node.name!r}", detail, loc))
