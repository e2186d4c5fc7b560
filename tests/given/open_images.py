"""Small models on images whose batch, height and width are open: one of each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

Built = tuple[list[NodeProto], dict[str, np.ndarray]]


class _Layers:
    """Collects nodes with weights of their own."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self._random = np.random.default_rng(0)

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = self._random.normal(0, 0.4, shape).astype(np.float32)
        return name

    def known(self, values: object, dtype: type = np.int64) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(values, dtype)
        return name

    def __call__(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def conv(self, x: str, given: int, made: int, size: int = 3, **attributes: object) -> str:
        around = {"pads": [size // 2] * 4} if "auto_pad" not in attributes else {}
        weight, bias = self.weight(made, given, size, size), self.weight(made)
        return self("Conv", x, weight, bias, **{**around, **attributes})

    def norm(self, x: str, width: int) -> str:
        scale, bias, mean = (self.weight(width) for _ in range(3))
        variance = self.known(np.ones(width), np.float32)
        return self("BatchNormalization", x, scale, bias, mean, variance)


def _residual(n: _Layers) -> str:
    """A residual network: strides, padding that differs, pools, a head of its own size."""
    x = n("Relu", n.norm(n.conv("x", 3, 4, 7, strides=[2, 2]), 4))
    x = n("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = n("Add", x, n.conv(n("Relu", n.conv(x, 4, 4)), 4, 4))
    x = n("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    x = n.conv(x, 4, 6, 3, strides=[2, 2], pads=[0, 1, 1, 0])
    return n("Gemm", n("Flatten", n("GlobalAveragePool", x)), n.weight(6, 5), n.weight(5))


def _mobile(n: _Layers) -> str:
    """Convolutions per channel, padded to the same size, and a gate of all positions."""
    x = n.conv("x", 3, 4, auto_pad="SAME_UPPER", strides=[2, 2])
    x = n("Conv", x, n.weight(4, 1, 3, 3), group=4, pads=[2, 2, 2, 2], dilations=[2, 2])
    pooled = n("ReduceMean", x, axes=[2, 3], keepdims=1)
    x = n("Mul", x, n("HardSigmoid", n.conv(pooled, 4, 4, 1)))
    return n("GlobalMaxPool", n("Clip", x, n.known(0, np.float32), n.known(6, np.float32)))


def _unet(n: _Layers) -> str:
    """Down twice and up again, by a transposed convolution and an interpolation."""
    top = n("Relu", n.conv("x", 3, 4))
    middle = n("Relu", n.conv(n("MaxPool", top, kernel_shape=[2, 2], strides=[2, 2]), 4, 4))
    low = n.conv(n("MaxPool", middle, kernel_shape=[2, 2], strides=[2, 2]), 4, 4)
    up = n("ConvTranspose", low, n.weight(4, 4, 2, 2), n.weight(4), strides=[2, 2])
    joined = n("Relu", n.conv(n("Concat", up, middle, axis=1), 8, 4))
    scales = n.known([1, 1, 2, 2], np.float32)
    up = n("Resize", joined, "", scales, mode="linear")
    return n.conv(n("Concat", up, top, axis=1), 8, 2)


def _pyramid(n: _Layers) -> str:
    """What is small is resized to the size of what is large, whatever that is."""
    fine = n.conv("x", 3, 4, strides=[2, 2])
    coarse = n.conv(fine, 4, 4, strides=[2, 2])
    size = n("Shape", fine, start=2)
    sizes = n("Concat", n("Shape", coarse, end=2), size, axis=0)
    floor = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    up = n("Resize", coarse, "", "", sizes, mode="nearest", **floor)
    x = n("Concat", up, fine, axis=1)
    return n.conv(n("Resize", x, "", n.known([1, 1, 2, 2], np.float32), mode="nearest"), 8, 3)


def _styled(n: _Layers) -> str:
    """Padding that mirrors, normalization of each image, and slices from the ends."""
    x = n("Pad", "x", n.known([0, 0, 2, 1, 0, 0, 1, 2]), mode="reflect")
    x = n("InstanceNormalization", n.conv(x, 3, 4), n.weight(4), n.weight(4))
    x = n("Slice", x, n.known([1, 0]), n.known([2**60, -2]), n.known([2, 3]))
    x = n("Slice", x, n.known([0]), n.known([2**60]), n.known([3]), n.known([2]))
    x = n("Pad", x, n.known([0, 0, 1, 0, 0, 0, 0, 1]), n.known(0.5, np.float32))
    return n("Resize", x, "", n.known([1, 1, 0.5, 1.5], np.float32), mode="linear")


KINDS: Mapping[str, Callable[[_Layers], str]] = {
    "residual": _residual,
    "mobile": _mobile,
    "unet": _unet,
    "pyramid": _pyramid,
    "styled": _styled,
}


def open_images(kind: str) -> ModelProto:
    """Returns a model of a kind; `x` is `[batch, 3, height, width]`."""
    layers = _Layers()
    result = KINDS[kind](layers)
    layers.nodes[-1].output[0] = "y"
    assert result == layers.nodes[-1].name
    given = helper.make_tensor_value_info(
        "x", onnx.TensorProto.FLOAT, ["batch", 3, "height", "width"]
    )
    stored = [numpy_helper.from_array(array, name) for name, array in layers.weights.items()]
    body = helper.make_graph(layers.nodes, kind, [given], [onnx.ValueInfoProto(name="y")], stored)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
