"""Models of any number of nodes, in the shapes in which something could take quadratic time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from onnx import ModelProto, NodeProto, helper

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


MAKERS: Mapping[str, Callable[[int], ModelProto]] = {
    "chain": chain,
    "layers": layers,
    "fan": fan,
    "weights": weights,
    "outputs": outputs,
}
