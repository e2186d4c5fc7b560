"""Models of any number of nodes, in the shapes in which something could take quadratic time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.frontend.onnx.graphs import FLOAT, Array, graph, model, node

X = {"x0": (FLOAT, [4, 4])}
WEIGHT = np.ones((4, 4), np.float32)


def chain(count: int) -> ModelProto:
    """Each node reads the one before."""
    listed = [node("Add", f"x{at} c", f"x{at + 1}", name=f"n{at}") for at in range(count)]
    return model(graph(listed, X, [f"x{count}"], {"c": WEIGHT}))


def layers(count: int) -> ModelProto:
    """Products, biases and activations."""
    listed: list[NodeProto] = []
    stored: dict[str, Array] = {}
    for at in range(count // 3):
        stored |= {f"l{at}.weight": WEIGHT, f"l{at}.bias": WEIGHT[0]}
        listed += [
            node("MatMul", f"x{at} l{at}.weight", f"m{at}", name=f"l{at}/mm"),
            node("Add", f"m{at} l{at}.bias", f"b{at}", name=f"l{at}/add"),
            node("Relu", f"b{at}", f"x{at + 1}", name=f"l{at}/relu"),
        ]
    return model(graph(listed, X, [f"x{count // 3}"], stored))


def fan(count: int) -> ModelProto:
    """One value is read by all nodes but the last, which reads them all."""
    names = [f"v{at}" for at in range(count - 1)]
    listed = [node("Relu", "x0", name) for name in names]
    return model(graph([*listed, helper.make_node("Sum", names, ["y"])], X, ["y"]))


def weights(count: int) -> ModelProto:
    """Each node has a weight."""
    listed = [node("Add", f"x{at} c{at}", f"x{at + 1}", name=f"n{at}") for at in range(count)]
    return model(graph(listed, X, [f"x{count}"], {f"c{at}": WEIGHT for at in range(count)}))


def outputs(count: int) -> ModelProto:
    """Each node's result is an output."""
    listed = [node("Neg", f"x{at}", f"x{at + 1}") for at in range(count)]
    return model(graph(listed, X, [f"x{at + 1}" for at in range(count)]))


def constants(count: int) -> ModelProto:
    """Every other node is a Constant that the next one reads."""
    listed: list[NodeProto] = []
    for at in range(count // 2):
        value = numpy_helper.from_array(WEIGHT[0] * at)
        listed += [
            node("Constant", "", f"c{at}", value=value),
            node("Add", f"x{at} c{at}", f"x{at + 1}"),
        ]
    return model(graph(listed, X, [f"x{count // 2}"]))


def views(count: int) -> ModelProto:
    """Reshapes, each of which has a shape of its own, and transpositions."""
    listed: list[NodeProto] = []
    stored: dict[str, Array] = {}
    for at in range(count // 2):
        stored[f"s{at}"] = np.array([8, 2])
        listed += [
            node("Reshape", f"x{at} s{at}", f"r{at}"),
            node("Transpose", f"r{at}", f"x{at + 1}", perm=[1, 0]),
        ]
    return model(graph(listed, X, [f"x{count // 2}"], stored))


def functions(count: int) -> ModelProto:
    """Each node calls a function of its own, of one node."""
    version = helper.make_opsetid("", 17)
    bodies = [
        helper.make_function("own", f"F{at}", ["a"], ["b"], [node("Relu", "a", "b")], [version])
        for at in range(count // 2)
    ]
    listed = [node(f"F{at}", f"x{at}", f"x{at + 1}", domain="own") for at in range(count // 2)]
    body = graph(listed, X, [f"x{count // 2}"])
    return model(body, opset_imports=[version, helper.make_opsetid("own", 1)], functions=bodies)


def branches(count: int) -> ModelProto:
    """Choices between two branches of a node each, every other of which is made at run time."""
    listed = [
        node("ReduceMax", "x0", "most", keepdims=0),
        node("Cast", "most", "positive", to=TensorProto.BOOL),
    ]
    for at in range(count // 4):
        then, other = (
            graph([node(kind, f"x{at}", f"{kind}{at}")], {}, [f"{kind}{at}"])
            for kind in ("Relu", "Neg")
        )
        condition = "positive" if at % 2 else "yes"
        choice = node("If", condition, f"x{at + 1}", then_branch=then, else_branch=other)
        listed.append(choice)
    return model(graph(listed, X, [f"x{count // 4}"], {"yes": np.array(True)}))


MAKERS: Mapping[str, Callable[[int], ModelProto]] = {
    "chain": chain,
    "layers": layers,
    "fan": fan,
    "weights": weights,
    "outputs": outputs,
    "constants": constants,
    "views": views,
    "functions": functions,
    "branches": branches,
}
