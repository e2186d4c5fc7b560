"""Batches of inference in microbatches: the same results, of any size, in pipelines too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar.annotate import shard
from autopar.base.errors import InvalidInputError
from autopar.runtime.api import run
from tests.given.models import model_inputs, model_path
from tests.zoo.models import ZOO

WIDTH = 8

Code = Callable[[Tensor, Tensor], Any]


class Layers(nn.Module):
    """Three layers around a function of rows [batch, 4, 8] and weights [batch]."""

    def __init__(self, code: Code) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.code = code
        self.first = nn.Linear(WIDTH, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, weight: Tensor) -> Any:
        """Returns what the function makes of what the layers make."""
        y = torch.relu(self.first(x))
        return self.code(self.norm(self.attention(y, y, y)[0]), weight)


CODES: dict[str, Code] = {
    "rows": lambda x, _: x + 1,
    "sums": lambda x, weight: (x.sum(), (x * weight[:, None, None]).mean((0, 2)), weight.sum()),
    "extremes": lambda x, weight: (x.amax(0), x.sum(-1).amin(), (weight > 0).any()),
    "along the batch": lambda x, weight: torch.cumsum(F.softmax(x, 0), 0) + weight.sort()[0].sum(),
    "centred": lambda x, weight: {"x": x - x.mean(0, keepdim=True), "weight": weight},
    "every pair": lambda x, weight: torch.einsum("isc,jsc->ij", x, x) * weight,
}


def compiled(code: str, batch: int, *, train: bool = False, **options: Any) -> Any:
    model = Layers(CODES[code]).double().train(train)
    return model, autopar.compile(model, example(batch), **options)


def example(batch: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    x = torch.randn(batch, 4, WIDTH, dtype=torch.float64, generator=generator)
    return x, torch.randn(batch, dtype=torch.float64, generator=generator)


def check(model: nn.Module, build: Path, batch: int) -> None:
    x, weight = example(batch)
    with torch.no_grad():
        wanted = torch.utils._pytree.tree_leaves(model(x, weight))
    found = run(build, {"x": x, "weight": weight}, virtual=True)
    torch.testing.assert_close([*found.values()], wanted, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(("mesh", "microbatches"), [("1", 3), ("pp=2", 4)])
def test_results_are_those_of_the_whole_batch(
    tmp_path: Path, code: str, mesh: str, microbatches: int
) -> None:
    pipeline = "pp" if "pp" in mesh else ""
    model, made = compiled(code, 7, mesh=mesh, microbatches=microbatches, pipeline=pipeline)
    assert max(op.microbatch for op in made.serial.main.ops) == microbatches - 1
    made.save(tmp_path / "build")
    check(model, tmp_path / "build", 7)


@pytest.mark.parametrize("code", ["rows", "sums", "centred"])
def test_one_build_takes_batches_of_any_size(tmp_path: Path, code: str) -> None:
    dynamic = {"x": {0: "rows=1:64"}, "weight": {0: "rows=1:64"}}
    options = {"mesh": "pp=2,dp=2", "pipeline": "pp", "microbatches": 3, "strategy": "data:dp"}
    model, made = compiled(code, 6, dynamic=dynamic, **options)
    made.save(tmp_path / "build")
    for batch in (6, 1, 2, 5, 13):
        check(model, tmp_path / "build", batch)


def test_statistics_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    model, made = compiled("rows", 6, train=True, mesh="2", microbatches=3)
    made.save(tmp_path / "build")
    x, weight = example(6)
    found = run(tmp_path / "build", {"x": x, "weight": weight}, virtual=True)
    torch.testing.assert_close(found["output"], model(x, weight).detach())
    said = [entry for entry in made.report if entry.subject == "3 microbatches"]
    assert not said, "the products are behind and before the statistics, each in microbatches"


def test_a_microbatch_of_nothing_is_left_out() -> None:
    _, made = compiled("rows", 5, mesh="1", microbatches=4)
    assert max(op.microbatch for op in made.serial.main.ops) == 2


def test_what_is_computed_at_once_is_reported() -> None:
    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = (nn.Parameter(torch.randn(64, 64)) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            both = self.up @ self.down
            return x @ both

    made = autopar.compile(Factors(), (torch.randn(64, 64),), mesh="1", microbatches=2)
    (said,) = (entry for entry in made.report if entry.subject == "2 microbatches")
    assert said.category == "undivided"
    assert said.detail == "50% of the flops are computed for all at once (aten.mm.default 50%)"


def test_marks_hold_for_every_microbatch(tmp_path: Path) -> None:
    class Marked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return shard(torch.relu(self.up(x)), "dp=2,tp=2", ["dp", None, "tp"]) * 2

    model, (x, _) = Marked().double(), example(6)
    made = autopar.compile(model, (x,), mesh="dp=2,tp=2", microbatches=3)
    pinned = [
        v for v in made.serial.main.values.values() if v.origin and v.origin.kind == "annotated"
    ]
    assert [v.dist.dims_mapping for v in pinned if v.dist] == [(0, -1, 1)] * 3
    made.save(tmp_path / "build")
    found = run(tmp_path / "build", {"x": x}, virtual=True)
    torch.testing.assert_close(found["output"], model(x).detach())


def test_experts_sorted_over_all_microbatches_are_split_further(tmp_path: Path) -> None:
    mixtral = ZOO["mixtral"]()
    model, batch = mixtral.model.eval(), mixtral.batch(0)
    made = autopar.compile(model, batch, mesh="2", microbatches=3, strategy="data")
    made.save(tmp_path / "build")
    found = run(tmp_path / "build", batch, virtual=True)
    with torch.no_grad():
        torch.testing.assert_close(found["logits"], model(**batch).logits)


@pytest.mark.parametrize(("mesh", "stages"), [("pp=2", None), ("pp=4", "1,3"), ("pp=3", "auto")])
def test_onnx_files_are_pipelined_with_any_batch(
    mesh: str, stages: str | None, tmp_path: Path
) -> None:
    ort = pytest.importorskip("onnxruntime")
    path, build = model_path("magika"), tmp_path / "build"
    autopar.compile_onnx(path, build, mesh=mesh, pipeline="pp", microbatches=3, stages=stages)
    oracle = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch in (4, 7, 1):
        arrays = dict(model_inputs("magika", batch=batch).arrays)
        found = run(tmp_path / "build", arrays, virtual=True)
        for wanted, result in zip(oracle.run(None, arrays), found.values(), strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)


def test_training_is_refused() -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(InvalidInputError, match="accumulate= says"):
        autopar.compile(
            model,
            (torch.randn(4, 4), torch.randn(4, 4)),
            mesh="1",
            loss=nn.MSELoss(),
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
            microbatches=2,
        )


def test_without_a_batch_it_is_refused() -> None:
    class Table(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.cumsum(0)[0] * 2

    with pytest.raises(InvalidInputError, match="x: a first dimension of 1 isn't split"):
        autopar.compile(Table(), (torch.randn(1, 4),), mesh="1", microbatches=2)
    with pytest.raises(InvalidInputError, match="no input has a first dimension that is kept"):
        autopar.compile(Table(), (torch.randn(6, 4),), mesh="1", microbatches=2)


def test_more_microbatches_than_an_open_batch_is_planned_for_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="x is planned for 6 rows, which are fewer"):
        compiled("rows", 6, dynamic={"x": {0: "b"}, "weight": {0: "b"}}, mesh="1", microbatches=99)


class Drawn(nn.Module):
    """Draws for rows, for rows merged with another dimension, and by probabilities."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Returns what was drawn for rows [batch, 4, 8]."""
        rows = F.dropout(x, 0.5) + torch.rand_like(x)
        merged = F.dropout(x.reshape(-1, WIDTH), 0.5).view_as(x) + torch.bernoulli(x.sigmoid())
        return rows, merged, torch.multinomial(x[:, 0].sigmoid(), 3)


@pytest.mark.parametrize(("rows", "microbatches"), [(6, 2), (6, 3), (7, 3), (4, 4)])
@pytest.mark.parametrize(
    "options",
    [
        {"mesh": "1"},
        {"mesh": "dp=2", "strategy": "data:dp"},
        {"mesh": "dp=3,tp=2", "strategy": None, "shard": {"x": ["dp", "tp", None]}},
        {"mesh": "dp=2", "strategy": None, "shard": {"x": [None, None, "dp"]}},
    ],
)
def test_random_numbers_are_those_of_the_whole_batch(
    tmp_path: Path, rows: int, microbatches: int, options: dict[str, Any]
) -> None:
    x, _ = example(rows)
    whole = autopar.compile(Drawn(), x, mesh="1")
    parts = autopar.compile(Drawn(), x, microbatches=microbatches, **options)
    found = []
    for name, each in (("whole", whole), ("parts", parts)):
        each.save(tmp_path / name)
        found.append([*run(tmp_path / name, {"x": x, "seed": 3}, virtual=True).values()])
    torch.testing.assert_close(*found, rtol=0, atol=0)
