"""Makers of odd ONNX models: tiny files that ask for more than there is, or that make no sense."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.frontend.onnx.graphs import FLOAT, INT64, graph, model, node

Make = Callable[[], ModelProto]
X = {"x": (FLOAT, [4, 4])}


def one(
    op_type: str, inputs: str, stored: Mapping[str, Any] | None = None, **attributes: Any
) -> Make:
    """A model of one node over `x`, a 4 x 4 float, and stored arrays."""
    arrays = {name: np.asarray(value) for name, value in (stored or {}).items()}
    return lambda: model(graph([node(op_type, inputs, "y", **attributes)], X, ["y"], arrays))


def nodes(listed: Sequence[NodeProto], stored: Mapping[str, Any] | None = None) -> ModelProto:
    """A model over `x` whose output is `y`."""
    arrays = {name: np.asarray(value) for name, value in (stored or {}).items()}
    return model(graph(listed, X, ["y"], arrays))


def changed(change: Callable[[ModelProto], object]) -> Make:
    """A sound model, changed."""

    def make() -> ModelProto:
        proto = nodes([node("Add", "x c", "y", name="add")], {"c": np.ones((4, 4), np.float32)})
        change(proto)
        return proto

    return make


def initializer(**fields: Any) -> Make:
    """A model whose only initializer has other fields."""

    def change(proto: ModelProto) -> None:
        stored = proto.graph.initializer[0]
        for name, value in fields.items():
            if isinstance(value, list):
                del getattr(stored, name)[:]
                getattr(stored, name).extend(value)
            else:
                setattr(stored, name, value)

    return changed(change)


def sparse(dims: Sequence[int]) -> Make:
    def make() -> ModelProto:
        values = numpy_helper.from_array(np.ones(1, np.float32), "c")
        where = numpy_helper.from_array(np.zeros(1, np.int64), "at")
        proto = nodes([node("ReduceSum", "c", "s", keepdims=0), node("Add", "x s", "y")])
        proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, where, list(dims)))
        return proto

    return make


def nested_functions(count: int, calls: int) -> Make:
    """Functions that each call the next one, so many times."""

    def make() -> ModelProto:
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        functions = [
            helper.make_function(
                "own", f"f{at}", ["x"], [f"v{calls}"], _calls(f"f{at + 1}", calls), opsets
            )
            for at in range(count)
        ]
        last = helper.make_function(
            "own", f"f{count}", ["x"], ["y"], [node("Relu", "x", "y")], opsets
        )
        body = graph([node("f0", "x", "y", domain="own")], X, ["y"])
        return model(body, opset_imports=opsets, functions=[*functions, last])

    return make


def _calls(name: str, count: int) -> list[NodeProto]:
    inputs = ["x", *(f"v{at + 1}" for at in range(count))]
    return [node(name, inputs[at], inputs[at + 1], domain="own") for at in range(count)]


def nested_graphs(depth: int) -> Make:
    """Branches within branches, all of them."""

    def make() -> ModelProto:
        body = _branch([node("Relu", "x", "r")], "r")
        for at in range(depth):
            inner = node("If", "c", f"r{at}", then_branch=body, else_branch=body)
            body = _branch([inner], f"r{at}")
        last = node("If", "c", "y", then_branch=body, else_branch=body)
        return nodes([last], {"c": np.array(True)})

    return make


def _branch(listed: Sequence[NodeProto], output: str) -> GraphProto:
    return helper.make_graph(listed, output, [], [onnx.ValueInfoProto(name=output)])


def deep_graphs(depth: int) -> Make:
    """Branches within branches, of which one is deep."""

    def make() -> ModelProto:
        body = leaf = _branch([node("Neg", "x", "o")], "o")
        for at in range(depth):
            inner = node("If", "c", f"r{at}", then_branch=body, else_branch=leaf)
            body = _branch([inner], f"r{at}")
        last = node("If", "c", "y", then_branch=body, else_branch=leaf)
        return nodes([last], {"c": np.array(True)})

    return make


def loop(trips: int, going: Sequence[NodeProto] = (), limited: bool = True) -> Make:
    """A loop whose body adds to a number that is known."""

    def make() -> ModelProto:
        listed = [*going, node("Add", "v v", "w")]
        cond = "again" if going else "c"
        body = helper.make_graph(
            listed,
            "body",
            [
                helper.make_tensor_value_info("i", INT64, []),
                helper.make_tensor_value_info("c", TensorProto.BOOL, []),
                helper.make_tensor_value_info("v", FLOAT, []),
            ],
            [onnx.ValueInfoProto(name=cond), onnx.ValueInfoProto(name="w")],
        )
        stored = {"n": np.array(trips), "t": np.array(True), "v0": np.array(1, np.float32)}
        first = "n" if limited else "_"
        return nodes(
            [node("Loop", f"{first} t v0", "z", body=body), node("Add", "x z", "y")], stored
        )

    return make


def empty_loops(depth: int) -> Make:
    """Loops within loops of no nodes but loops."""

    def make() -> ModelProto:
        body: GraphProto | None = None
        for at in range(depth):
            inputs = [
                helper.make_tensor_value_info(f"i{at}", INT64, []),
                helper.make_tensor_value_info(f"c{at}", TensorProto.BOOL, []),
                helper.make_tensor_value_info(f"v{at}", FLOAT, []),
            ]
            listed = [] if body is None else [node("Loop", f"n c{at} v{at}", f"w{at}", body=body)]
            result = f"v{at}" if body is None else f"w{at}"
            outputs = [onnx.ValueInfoProto(name=name) for name in (f"c{at}", result)]
            body = helper.make_graph(listed, f"b{at}", inputs, outputs)
        stored = {"n": np.array(4000), "t": np.array(True), "v": np.array(1, np.float32)}
        return nodes([node("Loop", "n t v", "z", body=body), node("Add", "x z", "y")], stored)

    return make


def chain_of_constants(count: int, size: int) -> ModelProto:
    """A constant that follows from itself twice, again and again, and whose content is needed."""
    listed = [node("ConstantOfShape", "n", "v0")]
    listed += [node("Add", f"v{at} v{at}", f"v{at + 1}") for at in range(count)]
    listed += [
        node("ReduceMax", f"v{count}", "m", keepdims=0),
        node("Cast", "m", "k", to=INT64),
        node("Unsqueeze", "k zero", "kk"),
        node("Add", "kk sixteen", "shape"),
        node("Reshape", "x shape", "y", allowzero=1),
    ]
    stored = {"n": np.array([size]), "zero": np.array([0]), "sixteen": np.array([16])}
    return nodes(listed, stored)


def unfolding(count: int) -> ModelProto:
    """A constant that doubles again and again."""
    listed = [node("Concat", f"v{at} v{at}", f"v{at + 1}", axis=0) for at in range(count)]
    listed += [node("ReduceSum", f"v{count}", "s", keepdims=0), node("Add", "x s", "y")]
    return nodes(listed, {"v0": np.ones(1024, np.float32)})


def unfolding_to_output(count: int) -> ModelProto:
    """The same as an output."""
    proto = unfolding(count)
    proto.graph.output.append(onnx.ValueInfoProto(name=f"v{count}"))
    return proto


def renamed(node_name: str) -> Make:
    def change(proto: ModelProto) -> None:
        proto.graph.node[0].name = node_name

    return changed(change)


def opset(version: int) -> Make:
    def change(proto: ModelProto) -> None:
        proto.opset_import[0].version = version

    return changed(change)


def many_outputs() -> ModelProto:
    """A split into 200,000 parts, of which all are outputs."""
    count = 200_000
    names = [f"y{at}" for at in range(count)]
    split = helper.make_node("Split", ["x"], names, axis=0, num_outputs=count)
    return model(graph([split], {"x": (FLOAT, [count])}, names), opset=18)


def many_inputs(count: int) -> ModelProto:
    return model(graph([helper.make_node("Concat", ["x"] * count, ["y"], axis=0)], X, ["y"]))


def summed(listed: Sequence[NodeProto], name: str, stored: Mapping[str, Any]) -> Make:
    """A model that adds the sum of a value to `x`."""
    last = [
        node("Cast", name, "cast", to=FLOAT),
        node("ReduceSum", "cast", "sum", keepdims=0),
        node("Add", "x sum", "y"),
    ]
    return lambda: nodes([*listed, *last], stored)


def of_shape(op_type: str, inputs: str, shapes: Mapping[str, Sequence[int]], **more: Any) -> Make:
    """A model of one node over inputs of these shapes; `stored` are arrays, the rest attributes."""
    stored = more.pop("stored", {})
    opset = more.pop("opset", 17)
    given = {name: (FLOAT, list(shape)) for name, shape in shapes.items()}
    return lambda: model(graph([node(op_type, inputs, "y", **more)], given, ["y"], stored), opset)


def huge(*sizes: int) -> Any:
    return np.array(sizes, np.int64)
