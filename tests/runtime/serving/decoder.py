"""A small decoder with open sizes: takes past keys and values, and returns those of the present."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from tests.frontend.onnx.graphs import FLOAT, INT64, graph, model, node

ENTRIES = 13
STATE = {"past_key_values.*": "present.*"}

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Sizes:
    """How large a decoder is."""

    layers: int = 2
    heads: int = 3
    width: int = 4
    entries: int = ENTRIES
    places: int = 64


SMALL = Sizes()


def write_decoder(folder: Path, sizes: Sizes = SMALL) -> Path:
    """Writes the model; returns its path.

    It adds the rows of its tokens and of their places, and in each layer what attention makes of
    all keys and values that the mask leaves. Queries come behind the past.
    """
    chance = np.random.default_rng(0)
    size = sizes.heads * sizes.width

    def drawn(*shape: int) -> Array:
        return chance.normal(size=shape, scale=shape[0] ** -0.5).astype(np.float32)

    stored = {
        "tokens": drawn(sizes.entries, size),
        "places": drawn(sizes.places, size),
        "heads": np.array([0, 0, sizes.heads, sizes.width]),
        "joined": np.array([0, 0, size]),
        "scale": np.array(sizes.width**-0.5, np.float32),
        "least": np.array(-1e9, np.float32),
        "one": np.array(1.0, np.float32),
        "axes": np.array([1, 2]),
        "out": drawn(size, sizes.entries),
    }
    nodes = [
        node("Gather", "tokens input_ids", "token"),
        node("Gather", "places position_ids", "place"),
        node("Add", "token place", "x0"),
        node("Cast", "attention_mask", "kept", to=FLOAT),
        node("Unsqueeze", "kept axes", "wide"),
        node("Sub", "one wide", "left_out"),
        node("Mul", "left_out least", "masked"),
    ]
    inputs: dict[str, Any] = {
        "input_ids": (INT64, ["batch", "length"]),
        "attention_mask": (INT64, ["batch", "total"]),
        "position_ids": (INT64, ["batch", "length"]),
    }
    outputs = ["logits"]
    for at in range(sizes.layers):
        stored |= {f"{each}{at}": drawn(size, size) for each in ("q", "k", "v", "o")}
        for each, kind in (("k", "key"), ("v", "value")):
            inputs[f"past_key_values.{at}.{kind}"] = (
                FLOAT,
                ["batch", sizes.heads, "past", sizes.width],
            )
            outputs.append(f"present.{at}.{kind}")
            nodes += [
                *_heads(f"x{at}", f"{each}{at}", f"new_{each}{at}"),
                node(
                    "Concat",
                    f"past_key_values.{at}.{kind} new_{each}{at}",
                    f"present.{at}.{kind}",
                    axis=2,
                ),
            ]
        nodes += [
            *_heads(f"x{at}", f"q{at}", f"new_q{at}"),
            node("Transpose", f"present.{at}.key", f"turned{at}", perm=[0, 1, 3, 2]),
            node("MatMul", f"new_q{at} turned{at}", f"products{at}"),
            node("Mul", f"products{at} scale", f"scaled{at}"),
            node("Add", f"scaled{at} masked", f"scores{at}"),
            node("Softmax", f"scores{at}", f"weights{at}", axis=-1),
            node("MatMul", f"weights{at} present.{at}.value", f"mixed{at}"),
            node("Transpose", f"mixed{at}", f"back{at}", perm=[0, 2, 1, 3]),
            node("Reshape", f"back{at} joined", f"flat{at}"),
            node("MatMul", f"flat{at} o{at}", f"made{at}"),
            node("Add", f"x{at} made{at}", f"x{at + 1}"),
        ]
    nodes.append(node("MatMul", f"x{sizes.layers} out", "logits"))
    path = folder / "decoder.onnx"
    onnx.save(model(graph(nodes, inputs, outputs, initializers=stored)), path)
    return path


def _heads(x: str, weight: str, result: str) -> list[onnx.NodeProto]:
    return [
        node("MatMul", f"{x} {weight}", f"{result}_all"),
        node("Reshape", f"{result}_all heads", f"{result}_heads"),
        node("Transpose", f"{result}_heads", result, perm=[0, 2, 1, 3]),
    ]


class OneDevice:
    """The model on ONNX Runtime, whose caller hands the past on.

    Args:
        path: The model.
        sizes: How large it is.
    """

    def __init__(self, path: Path, sizes: Sizes = SMALL) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(path, options)
        self._sizes = sizes
        self._past: dict[str, Array] = {}

    def run(self, feeds: Mapping[str, Array]) -> Array:
        """Returns the logits."""
        batch = len(feeds["input_ids"])
        names = [each.name for each in self._session.get_inputs() if "past" in each.name]
        empty = np.zeros((batch, self._sizes.heads, 0, self._sizes.width), np.float32)
        past = self._past or dict.fromkeys(names, empty)
        logits, *present = self._session.run(None, {**feeds, **past})
        self._past = dict(zip(names, present, strict=True))
        return np.asarray(logits)

    def reset(self) -> None:
        """Forgets the past."""
        self._past = {}
