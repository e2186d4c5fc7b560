"""Operator families against ONNX Runtime, through whole programs.

The backend suite covers the operators one by one; these are the combinations that exporters write
and the suite lacks: constants in odd places, older opsets, states, quantization, odd windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import NodeProto

from tests.frontend.onnx.graphs import Array, imported, node, run, simple

_RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> Array:
    return _RANDOM.normal(size=shape).astype(np.float32)


def bytes_(*shape: int, dtype: type = np.uint8) -> Array:
    info = np.iinfo(dtype)
    return _RANDOM.integers(info.min, info.max + 1, shape).astype(dtype)


def number(value: float, dtype: type = np.float32) -> Array:
    return np.array(value, dtype)


@dataclass(frozen=True)
class Graph:
    """Nodes, the arrays that they are given, and the ones that are stored in the model."""

    nodes: Sequence[NodeProto]
    inputs: Mapping[str, Array]
    stored: Mapping[str, Array] = field(default_factory=dict)
    outputs: str = "y"
    opset: int = 17


X = floats(2, 3, 4)
IMAGE = floats(2, 4, 9, 7)
STEPS = floats(5, 2, 3)


def recurrent(op_type: str, gates: int, direction: str, **attributes: object) -> Graph:
    ways = 2 if direction == "bidirectional" else 1
    names = "x w r b lengths h c" if op_type == "LSTM" else "x w r b lengths h"
    inputs = {"x": STEPS, "h": floats(ways, 2, 4)}
    if op_type == "LSTM":
        inputs["c"] = floats(ways, 2, 4)
    stored = {
        "w": floats(ways, 4 * gates, 3),
        "r": floats(ways, 4 * gates, 4),
        "b": floats(ways, 8 * gates),
        "lengths": np.array([5, 3], np.int32),
    }
    outputs = "y h1 c1" if op_type == "LSTM" else "y h1"
    layer = node(op_type, names, outputs, hidden_size=4, direction=direction, **attributes)
    return Graph([layer], inputs, stored, outputs)


def normalized() -> Graph:
    """A layer norm as exporters before opset 17 write it, and GELU through erf."""
    nodes = [
        node("ReduceMean", "x", "mean", axes=[-1]),
        node("Sub", "x mean", "d"),
        node("Pow", "d two", "d2"),
        node("ReduceMean", "d2", "variance", axes=[-1]),
        node("Add", "variance eps", "v"),
        node("Sqrt", "v", "s"),
        node("Div", "d s", "n"),
        node("Mul", "n w", "scaled"),
        node("Div", "scaled root", "e"),
        node("Erf", "e", "erf"),
        node("Add", "one erf", "g"),
        node("Mul", "scaled g", "h"),
        node("Mul", "half h", "y"),
    ]
    numbers = {"two": 2.0, "eps": 1e-5, "root": 2**0.5, "one": 1.0, "half": 0.5}
    stored = {name: number(value) for name, value in numbers.items()}
    return Graph(nodes, {"x": X}, {**stored, "w": floats(4)}, opset=12)


def quantized_matmul() -> Graph:
    """What onnxruntime's dynamic quantization makes of a matrix product."""
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("MatMulInteger", "q w z wz", "i"),
        node("Cast", "i", "f", to=1),
        node("Mul", "s ws", "scale"),
        node("Mul", "f scale", "y"),
    ]
    stored = {"w": bytes_(4, 6), "wz": number(120, np.uint8), "ws": number(0.02)}
    return Graph(nodes, {"x": X}, stored)


def quantize_dequantize() -> Graph:
    """A convolution between pairs of QuantizeLinear and DequantizeLinear, as in QDQ models."""
    nodes = [
        node("QuantizeLinear", "x xs xz", "q"),
        node("DequantizeLinear", "q xs xz", "d"),
        node("DequantizeLinear", "w ws wz", "wd", axis=0),
        node("Conv", "d wd", "c", pads=[1, 1, 1, 1]),
        node("QuantizeLinear", "c ys yz", "yq"),
        node("DequantizeLinear", "yq ys yz", "y"),
    ]
    stored = {
        "xs": number(0.02),
        "xz": number(127, np.uint8),
        "w": bytes_(5, 4, 3, 3, dtype=np.int8),
        "ws": np.abs(floats(5)) / 100,
        "wz": np.zeros(5, np.int8),
        "ys": number(0.05),
        "yz": number(100, np.uint8),
    }
    return Graph(nodes, {"x": IMAGE}, stored)


def resize(mode: str, how: str, scale: float, opset: int = 13, **attributes: object) -> Graph:
    scales = np.array([1, 1, scale, scale], np.float32)
    resized = node(
        *("Resize", "x _ scales", "y"), mode=mode, coordinate_transformation_mode=how, **attributes
    )
    return Graph([resized], {"x": IMAGE}, {"scales": scales}, opset=opset)


GRAPHS: Mapping[str, Graph] = {
    "layer norm and gelu": normalized(),
    "dynamic quantization": quantized_matmul(),
    "qdq convolution": quantize_dequantize(),
    "lstm": recurrent("LSTM", 4, "forward"),
    "lstm backward, clipped": recurrent("LSTM", 4, "reverse", clip=0.5),
    "lstm bidirectional": recurrent("LSTM", 4, "bidirectional"),
    "gru": recurrent("GRU", 3, "bidirectional", linear_before_reset=1),
    "gru, reset first": recurrent("GRU", 3, "forward"),
    "rnn": recurrent("RNN", 1, "reverse", activations=["Relu"]),
    "gemm": Graph(
        [node("Gemm", "a b c", "y", alpha=0.5, beta=2.0, transA=1, transB=1)],
        {"a": floats(3, 2)},
        {"b": floats(4, 3), "c": floats(4)},
    ),
    "einsum": Graph([node("Einsum", "x x", "y", equation="b i j, b k j -> b i k")], {"x": X}),
    "convolution, lower padding": Graph(
        [node("Conv", "x w b", "y", auto_pad="SAME_LOWER", strides=[2, 2], group=2)],
        {"x": IMAGE},
        {"w": floats(6, 2, 3, 4), "b": floats(6)},
    ),
    "convolution, uneven padding": Graph(
        [node("Conv", "x w", "y", pads=[0, 2, 1, 0], dilations=[2, 1])],
        {"x": IMAGE},
        {"w": floats(5, 4, 3, 2)},
    ),
    "transposed convolution": Graph(
        [
            node(
                *("ConvTranspose", "x w b", "y"),
                strides=[2, 3],
                pads=[1, 0, 0, 2],
                output_padding=[1, 0],
            )
        ],
        {"x": IMAGE},
        {"w": floats(4, 3, 3, 4), "b": floats(3)},
    ),
    "pools": Graph(
        [
            node("MaxPool", "x", "m", kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1),
            node("AveragePool", "x", "a", kernel_shape=[3, 3], pads=[1, 0, 2, 1], strides=[2, 1]),
            node("GlobalAveragePool", "x", "g"),
            node("MaxPool", "x", "p at", kernel_shape=[2, 2], pads=[1, 0, 0, 1]),
        ],
        {"x": IMAGE},
        outputs="m a g p at",
    ),
    "batch norm": Graph(
        [node("BatchNormalization", "x s b m v", "y", epsilon=1e-3)],
        {"x": IMAGE},
        {"s": floats(4), "b": floats(4), "m": floats(4), "v": np.abs(floats(4))},
    ),
    "slices": Graph(
        [
            node("Slice", "x first last axes steps", "a"),
            node("Slice", "x ends begins axes back", "b"),
        ],
        {"x": floats(2, 7, 5)},
        {
            "first": np.array([1, -4]),
            "last": np.array([1000, 4]),
            "axes": np.array([1, -1]),
            "steps": np.array([2, 1]),
            "ends": np.array([-1, 3]),
            "begins": np.array([-(2**63), 0]),
            "back": np.array([-2, -1]),
        },
        "a b",
    ),
    "gather by computed indices": Graph(
        [node("Gather", "w i", "a"), node("Gather", "w i", "b", axis=1)],
        {"i": np.array([[0, -1], [2, -3]])},
        {"w": floats(4, 3)},
        "a b",
    ),
    "scatter": Graph(
        [node("ScatterND", "x i u", "y"), node("GatherND", "y i", "z")],
        {"x": X, "i": np.array([[0, -1], [1, 0]]), "u": floats(2, 4)},
        outputs="y z",
    ),
    "top k": Graph(
        [node("TopK", "x k", "v i", axis=1, largest=0)],
        {"x": np.array([[3, 1, 1, 2], [0, 0, 5, 0]], np.float32)},
        {"k": np.array([3])},
        "v i",
    ),
    "softmax of opset 12": Graph([node("Softmax", "x", "y", axis=1)], {"x": X}, opset=12),
    "squeeze of opset 11": Graph(
        [node("Unsqueeze", "x", "u", axes=[0, -1]), node("Squeeze", "u", "y", axes=[0])],
        {"x": X},
        opset=11,
    ),
    "integers": Graph(
        [
            node("Div", "a three", "d"),
            node("Mod", "a three", "m"),
            node("Pow", "a two", "p"),
            node("Clip", "a _ three", "c"),
            node("Sub", "three a", "s"),
        ],
        {"a": np.array([-7, -1, 0, 5, 8])},
        {"three": number(3, np.int64), "two": number(2, np.int64)},
        "d m p c s",
    ),
    "reductions": Graph(
        [
            node("ReduceSum", "x axes", "s", keepdims=0),
            node("ReduceMax", "x", "m", axes=[0, 2]),
            node("ReduceLogSumExp", "x", "l", axes=[1]),
            node("ArgMax", "x", "a", axis=-1, keepdims=0, select_last_index=1),
            node("CumSum", "x one", "c", reverse=1, exclusive=1),
        ],
        {"x": X},
        {"axes": np.array([1]), "one": np.array(1)},
        "s m l a c",
    ),
    "nearest, asymmetric": resize("nearest", "asymmetric", 2.0, nearest_mode="floor"),
    "nearest, half pixel": resize("nearest", "half_pixel", 1.5, nearest_mode="round_prefer_floor"),
    "linear, half pixel": resize("linear", "half_pixel", 0.6),
    "linear, align corners": resize("linear", "align_corners", 2.0),
    "cubic": resize("cubic", "half_pixel", 2.0, cubic_coeff_a=-0.5),
    "pads": Graph(
        [
            node("Pad", "x some v", "a"),
            node("Pad", "x some", "b", mode="reflect"),
            node("Pad", "x some", "c", mode="edge"),
        ],
        {"x": X},
        {"some": np.array([0, 1, 2, 0, 0, 1]), "v": number(-1.5)},
        "a b c",
    ),
    "opset 10": Graph(
        [
            node("Clip", "x", "c", min=-0.5, max=0.25),
            node("Pad", "x", "p", pads=[0, 1, 0, 2], value=1.5),
            node("Resize", "x scales", "r", mode="linear"),
            node("Resize", "x scales", "n"),
        ],
        {"x": floats(3, 4)},
        {"scales": np.array([1.5, 2.0], np.float32)},
        "c p r n",
        opset=10,
    ),
    "opset 9": Graph(
        [
            node("Slice", "x", "s", starts=[1, -3], ends=[9, -1], axes=[2, 0]),
            node("TopK", "x", "v i", k=2, axis=1),
            node("Upsample", "x scales", "u"),
            node("Dropout", "x", "d"),
        ],
        {"x": X},
        {"scales": np.array([1.0, 2.0, 1.5], np.float32)},
        "s v i u d",
        opset=9,
    ),
    "opset 8": Graph(
        [
            node("Upsample", "x", "u", scales=[1.0, 1.0, 2.0, 2.0], mode="linear"),
            node("BatchNormalization", "u one zero zero one", "y"),
        ],
        {"x": IMAGE},
        {"one": floats(4) ** 2, "zero": floats(4)},
        opset=8,
    ),
    "one hot and where": Graph(
        [
            node("OneHot", "i depth values", "h", axis=1),
            node("Greater", "h half", "g"),
            node("Where", "g h other", "y"),
        ],
        {"i": np.array([0, 2, -1])},
        {
            "depth": np.array(4),
            "values": np.array([0.25, 4.0], np.float32),
            "half": number(0.5),
            "other": number(-3),
        },
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_against_onnxruntime(tmp_path: Path, name: str) -> None:
    case = GRAPHS[name]
    proto = simple(case.nodes, case.inputs, case.outputs, case.stored, case.opset)
    expected = oracle(proto.SerializeToString(), case.inputs)
    results = run(imported(tmp_path, proto), case.inputs)
    for output, array in zip(case.outputs.split(), expected, strict=True):
        assert results[output].dtype == array.dtype
        np.testing.assert_allclose(results[output], array, rtol=1e-4, atol=1e-5, err_msg=output)


def oracle(content: bytes, inputs: Mapping[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # Otherwise pairs of QuantizeLinear and DequantizeLinear are fused, and rounded elsewhere.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    result: list[Array] = session.run(None, dict(inputs))
    return result
