"""Odd ONNX models, and how compiling them must end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.frontend.onnx.graphs import FLOAT, INT64, graph, model, node
from tests.odd_models.makers import (
    Make,
    X,
    chain_of_constants,
    changed,
    deep_graphs,
    empty_loops,
    huge,
    initializer,
    loop,
    many_inputs,
    many_outputs,
    nested_functions,
    nested_graphs,
    nodes,
    of_shape,
    one,
    opset,
    renamed,
    sparse,
    summed,
    unfolding,
    unfolding_to_output,
)


@dataclass(frozen=True)
class Odd:
    """A model and how it ends.

    Attributes:
        make: Returns it.
        says: A part of the message with which it is refused; "" if it compiles.
    """

    make: Make
    says: str = ""


TERA = 10**12
LARGE = "bytes"
ZERO, ONE = np.array(0), np.array(1)
F0, F1 = np.float32(0), np.float32(1)
RANGE = [node("Range", "a n d", "r")]
ROW = (1, 1, 4)
KERNEL = {"x": ROW, "w": (1, 1, 3)}
IMAGE = {"x": (1, 1, 4, 4)}
LETTERS = "abcdefghijklmnopqrstuvwx"
OUTER = f"{','.join(LETTERS[at : at + 2] for at in range(0, 24, 2))}->{LETTERS}"
NOT_THERE = node(
    "If",
    "c",
    "y",
    then_branch=graph([node("Add", "x nobody", "r")], {}, ["r"]),
    else_branch=graph([node("Relu", "x", "q")], {}, ["q"]),
)


def scales(factor: float) -> dict[str, Any]:
    """Scales of an image."""
    return {"s": np.array([1, 1, factor, factor], np.float32)}


TABLE: Mapping[str, Odd] = {
    "a sparse initializer of 2^47 bytes": Odd(sparse([2**45]), "sparse initializer 'c'"),
    "a sparse initializer of 2^90 bytes": Odd(sparse([2**45, 2**45]), "sparse initializer 'c'"),
    "3,000 nested functions": Odd(nested_functions(3000, 1), "nested more than"),
    "20 functions of 10 calls": Odd(nested_functions(20, 10), "more than 50000 nodes"),
    "10^9 calls": Odd(nested_functions(9, 10), "more than 50000 nodes"),
    "nested branches": Odd(nested_graphs(12)),
    "deep branches": Odd(deep_graphs(28), "nested more than 24 deep"),
    "a loop of 10^9": Odd(loop(10**9), "more than 4096 iterations"),
    "a loop that never ends": Odd(loop(0, [node("Not", "no", "again")], False), "reads 'no'"),
    "a loop without an end": Odd(
        loop(0, [node("Equal", "i i", "again")], False), "more than 4096 iterations"
    ),
    "empty loops": Odd(empty_loops(8), "more than 50000 nodes"),
    "a chain of constants": Odd(lambda: chain_of_constants(60, 10**6)),
    "a long chain of constants": Odd(lambda: chain_of_constants(2000, 2 * 10**4)),
    "a chain of large constants": Odd(lambda: chain_of_constants(60, 10**8), "at import time"),
    "a constant of 4.4 GB": Odd(lambda: unfolding(20), "bytes; at most 2147483648"),
    "a constant of 10^15 bytes": Odd(lambda: unfolding(38), "bytes; at most 2147483648"),
    "an output of 4.4 GB": Odd(lambda: unfolding_to_output(20), "bytes; at most 2147483648"),
    "Expand": Odd(one("Expand", "x n", {"n": huge(TERA // 16, 4, 4)}), LARGE),
    "Expand, used": Odd(
        lambda: nodes(
            [node("Expand", "x n", "e"), node("Relu", "e", "f"), node("ReduceSum", "f", "y")],
            {"n": huge(TERA // 16, 4, 4)},
        ),
        "Relu",
    ),
    "Expand, summed": Odd(
        lambda: nodes(
            [node("Expand", "x n", "e"), node("ReduceSum", "e", "y")], {"n": huge(TERA // 16, 4, 4)}
        ),
        "takes 4000000000000 bytes (3.6 TiB)",
    ),
    "Expand, sliced": Odd(
        lambda: nodes(
            [node("Expand", "x n", "e"), node("Slice", "e a b", "y")],
            {"n": huge(TERA // 16, 4, 4), "a": np.array([0]), "b": np.array([2])},
        ),
    ),
    "Expand too far": Odd(one("Expand", "x n", {"n": huge(2**40, 2**40, 4, 4)}), "Expand"),
    "Expand below zero": Odd(one("Expand", "x n", {"n": huge(-5, 4, 4)}), "Expand"),
    "Tile": Odd(one("Tile", "x n", {"n": huge(10**6, 10**6)}), LARGE),
    "Tile too far": Odd(one("Tile", "x n", {"n": huge(2**62, 2**62)}), "Tile"),
    "ConstantOfShape": Odd(
        summed([node("ConstantOfShape", "n", "c")], "c", {"n": huge(TERA)}), LARGE
    ),
    "Range": Odd(summed(RANGE, "r", {"a": ZERO, "n": np.array(TERA), "d": ONE}), LARGE),
    "Range of nan": Odd(summed(RANGE, "r", {"a": F0, "n": np.float32("nan"), "d": F1}), "Range"),
    "Range of infinity": Odd(
        summed(RANGE, "r", {"a": F0, "n": np.float32("inf"), "d": F1}), "Range"
    ),
    "Pad": Odd(one("Pad", "x n", {"n": huge(0, 0, TERA, 0)}), LARGE),
    "Pad too far": Odd(one("Pad", "x n", {"n": huge(2**62, 0, 2**62, 0)}), "Pad"),
    "Pad below zero": Odd(one("Pad", "x n", {"n": huge(-(2**62), 0, 0, 0)}), "Pad"),
    "OneHot": Odd(
        lambda: nodes(
            [node("Cast", "x", "i", to=INT64), node("OneHot", "i d v", "y")],
            {"d": np.array([TERA]), "v": np.array([0, 1], np.float32)},
        ),
        LARGE,
    ),
    "OneHot too deep": Odd(
        lambda: nodes(
            [node("Cast", "x", "i", to=INT64), node("OneHot", "i d v", "y")],
            {"d": np.array([2**62]), "v": np.array([0, 1], np.float32)},
        ),
        "OneHot",
    ),
    "EyeLike": Odd(
        lambda: nodes(
            [
                node("ConstantOfShape", "n", "c"),
                node("EyeLike", "c", "e"),
                node("MatMul", "x e", "y"),
            ],
            {"n": huge(4, TERA // 4)},
        ),
        LARGE,
    ),
    "Reshape to 10^12": Odd(one("Reshape", "x n", {"n": huge(TERA, -1)}), "Reshape"),
    "Reshape to -1 twice": Odd(one("Reshape", "x n", {"n": huge(-1, -1)}), "Reshape"),
    "Reshape to -7": Odd(one("Reshape", "x n", {"n": huge(-7)}), "Reshape"),
    "Reshape to overflow": Odd(one("Reshape", "x n", {"n": huge(2**62, 2**62)}), "Reshape"),
    "Resize": Odd(of_shape("Resize", "x _ s", IMAGE, stored=scales(1e9)), "Resize"),
    "Resize by nan": Odd(of_shape("Resize", "x _ s", IMAGE, stored=scales(np.nan)), "Resize"),
    "Conv": Odd(
        of_shape("Conv", "x w", {"x": ROW, "w": (1, 1, 10**9)}, pads=[10**9, 10**9]),
    ),
    "Conv by dilation": Odd(
        of_shape("Conv", "x w", KERNEL, dilations=[2**62], pads=[2**62, 2**62]), "Conv"
    ),
    "ConvTranspose": Odd(of_shape("ConvTranspose", "x w", KERNEL, strides=[TERA]), LARGE),
    "MaxPool": Odd(
        of_shape("MaxPool", "x", {"x": ROW}, kernel_shape=[10**9], pads=[10**9, 10**9]),
    ),
    "Split into 200,000": Odd(many_outputs, "more than 50000 nodes"),
    "Concat of 10^5": Odd(lambda: many_inputs(10**5)),
    "Gather of nothing": Odd(one("Gather", "x i", {"i": huge(9)})),
    "Gather of a shape": Odd(
        lambda: nodes(
            [
                node("Shape", "x", "s"),
                node("Gather", "s i", "k", axis=0),
                node("ConstantOfShape", "k", "c"),
                node("ReduceSum", "c", "t", keepdims=0),
                node("Add", "x t", "y"),
            ],
            {"i": np.zeros(30, np.int64)},
        ),
        "ConstantOfShape",
    ),
    "dims that overflow": Odd(initializer(dims=[2**40, 2**40]), "initializer 'c'"),
    "dims of nothing": Odd(initializer(dims=[0, 2**62, 2**62], raw_data=b""), "initializer 'c'"),
    "negative dims": Odd(initializer(dims=[-4, -4]), "negative dims"),
    "a million dims": Odd(initializer(dims=[1] * 10**6), "initializer 'c'"),
    "raw data of another size": Odd(initializer(raw_data=b"123"), "it has 3"),
    "a string tensor": Odd(initializer(data_type=TensorProto.STRING), "element type STRING"),
    "an unknown type": Odd(initializer(data_type=999), "element type"),
    "a type of none": Odd(initializer(data_type=0), "element type"),
    "opset 0": Odd(opset(0), "opset 0; 1 to"),
    "opset -1": Odd(opset(-1), "opset -1; 1 to"),
    "opset 999": Odd(opset(999), "opset 999; 1 to"),
    "IR version 99": Odd(changed(lambda proto: setattr(proto, "ir_version", 99)), "IR version 99"),
    "IR version 0": Odd(changed(lambda proto: setattr(proto, "ir_version", 0)), "IR version 0"),
    "a name of a million": Odd(renamed("n" * 10**6)),
    "a name of odd characters": Odd(renamed("\0\n\x1b[31m/../" + "\u202e")),
    "no nodes": Odd(
        lambda: model(graph([], X, ["x"])),
    ),
    "no nodes, a weight": Odd(lambda: model(graph([], X, ["c"], {"c": np.ones(3, np.float32)}))),
    "no inputs": Odd(
        lambda: model(graph([node("Add", "c c", "y")], {}, ["y"], {"c": np.ones(3, np.float32)}))
    ),
    "an input of 10^12": Odd(
        lambda: model(graph([node("Relu", "x", "y")], {"x": (FLOAT, [TERA])}, ["y"])), LARGE
    ),
    "an input of nothing": Odd(
        lambda: model(graph([node("Relu", "x", "y")], {"x": (FLOAT, [0])}, ["y"]))
    ),
    "a capture that nobody defines": Odd(
        lambda: nodes([NOT_THERE], {"c": np.array(True)}), "reads 'nobody'"
    ),
    "MatMul of large ones": Odd(
        lambda: nodes(
            [
                node("Expand", "x n", "a"),
                node("Expand", "x m", "b"),
                node("MatMul", "a b", "c"),
                node("ReduceSum", "c", "y"),
            ],
            {"n": huge(1, 4, 4), "m": huge(2**33, 4, 4)},
        ),
        "MatMul",
    ),
    "Einsum": Odd(one("Einsum", "x x x x x x", equation="ab,cd,ef,gh,ij,kl->abcdefghijkl")),
    "Einsum of large": Odd(one("Einsum", " ".join(["x"] * 12), equation=OUTER), "Einsum"),
    "CumSum of an axis": Odd(one("CumSum", "x a", {"a": np.array(2**40)}), "CumSum"),
    "TopK": Odd(
        lambda: model(graph([node("TopK", "x k", "y i")], X, ["y"], {"k": huge(TERA)})), "TopK"
    ),
    "Upsample": Odd(of_shape("Upsample", "x s", IMAGE, stored=scales(1e6), opset=9), "Upsample"),
}
