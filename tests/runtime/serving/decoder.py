"""A small decoder with open sizes: takes past keys and values, and returns those of the present."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from tests.frontend.onnx.graphs import FLOAT, INT64, graph, model, node

LAYERS, HEADS, WIDTH, ENTRIES, PLACES = 2, 3, 4, 13, 64
STATE = {"past_key_values.*": "present.*"}

Array = npt.NDArray[Any]


def write_decoder(folder: Path) -> Path:
    """Writes the model; returns its path.

    It adds the rows of its tokens and of their places, and in each layer what attention makes of
    all keys and values that the mask leaves. Queries come behind the past.
    """
    chance = np.random.default_rng(0)
    size = HEADS * WIDTH

    def drawn(*shape: int) -> Array:
        return chance.normal(size=shape, scale=shape[0] ** -0.5).astype(np.float32)

    stored = {
        "tokens": drawn(ENTRIES, size),
        "places": drawn(PLACES, size),
        "heads": np.array([0, 0, HEADS, WIDTH]),
        "joined": np.array([0, 0, size]),
        "scale": np.array(WIDTH**-0.5, np.float32),
        "least": np.array(-1e9, np.float32),
        "one": np.array(1.0, np.float32),
        "axes": np.array([1, 2]),
        "out": drawn(size, ENTRIES),
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
    for at in range(LAYERS):
        stored |= {f"{each}{at}": drawn(size, size) for each in ("q", "k", "v", "o")}
        for each, kind in (("k", "key"), ("v", "value")):
            inputs[f"past_key_values.{at}.{kind}"] = (FLOAT, ["batch", HEADS, "past", WIDTH])
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
    nodes.append(node("MatMul", f"x{LAYERS} out", "logits"))
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
    """

    def __init__(self, path: Path) -> None:
        import onnxruntime

        self._session = onnxruntime.InferenceSession(path)
        self._past: dict[str, Array] = {}

    def run(self, feeds: Mapping[str, Array]) -> Array:
        """Returns the logits."""
        batch = len(feeds["input_ids"])
        names = [each.name for each in self._session.get_inputs() if "past" in each.name]
        empty = np.zeros((batch, HEADS, 0, WIDTH), np.float32)
        past = self._past or dict.fromkeys(names, empty)
        logits, *present = self._session.run(None, {**feeds, **past})
        self._past = dict(zip(names, present, strict=True))
        return np.asarray(logits)

    def reset(self) -> None:
        """Forgets the past."""
        self._past = {}
