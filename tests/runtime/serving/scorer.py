"""A small model with open sizes: looks rows up, and scores them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from tests.frontend.onnx.graphs import INT64, graph, model, node

ENTRIES, WIDTH, CLASSES = 11, 6, 5
TABLE = np.linspace(-1, 1, ENTRIES * WIDTH, dtype=np.float32).reshape(ENTRIES, WIDTH)
WEIGHT = np.linspace(1, -2, WIDTH * CLASSES, dtype=np.float32).reshape(WIDTH, CLASSES)


def write_scorer(folder: Path) -> Path:
    """Writes the model; returns its path."""
    nodes = (
        node("Gather", "table ids", "rows"),
        node("MatMul", "rows weight", "products"),
        node("Tanh", "products", "scores"),
    )
    body = graph(
        list(nodes),
        {"ids": (INT64, ["batch", "length"])},
        ["scores"],
        initializers={"table": TABLE, "weight": WEIGHT},
    )
    path = folder / "scorer.onnx"
    onnx.save(model(body), path)
    return path


def ids_of(batch: int, length: int) -> npt.NDArray[np.int64]:
    """Returns inputs."""
    return np.random.default_rng([batch, length]).integers(0, ENTRIES, (batch, length))


def scores_of(ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Returns what the model computes."""
    return np.tanh(TABLE[ids] @ WEIGHT)
