"""Sizes that are limited together: each call is checked, and computes what one device would."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar.base.errors import InvalidInputError
from autopar.runtime.api import run
from tests.frontend.onnx.graphs import FLOAT, graph, model, node

PLACES = 12
SIZES = [pair for pair in product((0, 1, 2, 5, 7), (0, 1, 3, 5)) if sum(pair) <= PLACES]
DYNAMIC = {"past": {1: "past"}, "new": {1: "length"}}


class Limited(nn.Module):
    """Attention whose mask is cut out of a table, from which past and present are read."""

    allowed: Tensor

    def __init__(self) -> None:
        super().__init__()
        allowed = torch.ones(PLACES, PLACES).tril()
        self.register_buffer("allowed", allowed, persistent=False)
        self.places = nn.Parameter(torch.randn(PLACES, 8))
        self.mixing = nn.Linear(8, 8)

    def forward(self, past: Tensor, new: Tensor) -> Tensor:
        """Returns what the new rows make of all of them."""
        both = torch.cat([past, new], dim=1) + self.places[: past.shape[1] + new.shape[1]]
        total = both.shape[1]
        queries = self.mixing(both[:, past.shape[1] :])
        scores = queries @ both.transpose(1, 2)
        allowed = self.allowed[total - queries.shape[1] : total, :total]
        return F.softmax(scores.masked_fill(allowed == 0, -1e9), -1) @ both


def drawn(past: int, length: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(past * 100 + length)
    shapes = {"past": (3, past, 8), "new": (3, length, 8)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("mesh", "strategy"),
    [("2", "data"), ("3", "auto"), ("2x2", "data:0,context:1"), ("3x2", "auto")],
)
def test_a_module_whose_sizes_are_limited_together(
    mesh: str, strategy: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    module = Limited().eval()
    compiled = autopar.compile(module, drawn(3, 4), mesh=mesh, strategy=strategy, dynamic=DYNAMIC)
    (said,) = (each for each in compiled.report if each.category == "checked at each call")
    assert said.detail == f"length + past <= {PLACES}"
    assert said.loc.file == __file__
    assert f"length, past: length + past <= {PLACES} [{said.loc}]" in str(compiled.summary())
    compiled.save(tmp_path / "build")
    for sizes in SIZES:
        inputs = drawn(*sizes)
        (found,) = run(tmp_path / "build", inputs, virtual=True).values()
        torch.testing.assert_close(found, module(**inputs), atol=2e-5, rtol=1e-4)
    with pytest.raises(InvalidInputError) as refused:
        run(tmp_path / "build", drawn(7, 6), virtual=True)
    assert str(refused.value) == (
        "dimension 1 of input 'new' is 6; dimension 1 of input 'past' is 7: length is 6 and past is"
        f" 7, but the model needs length + past <= {PLACES} [{said.loc}]"
    )


def write_limited(folder: Path) -> Path:
    """Writes a model that adds the rows of a table, cut to the length of past and present."""
    nodes = (
        node("Concat", "past new", "both", axis=1),
        node("Shape", "both", "total", start=1, end=2),
        node("Shape", "past", "before", start=1, end=2),
        node("Slice", "table zero total one", "cut"),
        node("Slice", "table before total one", "late"),
        node("Add", "both cut", "sums"),
        node("Add", "new late", "last"),
        node("MatMul", "last weight", "mixed"),
        node("Reshape", "mixed shape", "flat"),
    )
    table = np.random.default_rng(0).normal(size=(1, PLACES, 8)).astype(np.float32)
    stored = {
        "table": table,
        "weight": table[0, :8],
        "zero": np.array([0]),
        "one": np.array([1]),
        "shape": np.array([0, -1, 4]),
    }
    inputs: dict[str, Any] = {
        "past": (FLOAT, ["batch", "past", 8]),
        "new": (FLOAT, ["batch", "length", 8]),
    }
    path = folder / "model.onnx"
    path.write_bytes(
        model(graph(nodes, inputs, ["sums", "flat"], initializers=stored)).SerializeToString()
    )
    return path


@pytest.mark.parametrize("mesh", ["2", "2x2", "3x2"])
def test_a_file_whose_sizes_are_limited_together(mesh: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = write_limited(tmp_path)
    judge = onnxruntime.InferenceSession(path)
    with autopar.InferenceSession(path, mesh=mesh, virtual=True) as session:
        for sizes in SIZES:
            feeds = {name: tensor.numpy() for name, tensor in drawn(*sizes).items()}
            for found, wanted in zip(session.run(None, feeds), judge.run(None, feeds), strict=True):
                np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5)
        long = {name: tensor.numpy() for name, tensor in drawn(7, 6).items()}
        with pytest.raises(InvalidInputError, match=r"needs length \+ past <= 12 \[model.onnx"):
            session.run(None, long)
        assert session.run(None, feeds)[0].shape == (3, sum(sizes), 8)


def test_a_parallel_module_whose_sizes_are_limited_together() -> None:
    module = Limited()
    parallel = autopar.parallelize(module, drawn(3, 4), mesh="1", dynamic=DYNAMIC)
    for sizes in SIZES[4:9]:
        inputs = drawn(*sizes)
        torch.testing.assert_close(parallel(**inputs), module(**inputs))
    with pytest.raises(InvalidInputError, match=r"needs length \+ past <= 12"):
        parallel(**drawn(7, 6))


class Checks(nn.Module):
    """A module that refuses two sizes together, and does something else for odd ones."""

    def forward(self, past: Tensor, new: Tensor) -> Tensor:
        """Returns a sum."""
        if past.shape[1] + new.shape[1] > PLACES:
            raise ValueError("too long")
        if new.shape[1] > past.shape[1]:
            return new.sum(1) - past.sum(1)
        return past.sum(1) + new.sum(1)


def test_what_code_decides_by_several_sizes_is_checked() -> None:
    found = autopar.compile(Checks(), drawn(4, 3), mesh=2, dynamic=DYNAMIC)
    said = {each.detail for each in found.report if each.category == "checked at each call"}
    assert said == {f"length + past <= {PLACES}", "length <= past"}


def test_what_must_differ_is_no_relation() -> None:
    class Differs(nn.Module):
        def forward(self, past: Tensor, new: Tensor) -> Tensor:
            return past.sum(1) if past.shape[1] != new.shape[1] else new.sum(1)

    with pytest.raises(InvalidInputError, match=r"whether (past|length) != (past|length)"):
        autopar.compile(Differs(), drawn(4, 3), mesh=2, dynamic=DYNAMIC)
