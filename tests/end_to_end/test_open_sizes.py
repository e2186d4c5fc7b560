"""A model that is compiled once for any batch and length gives what ONNX Runtime gives."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from autopar import InferenceSession
from autopar.base.errors import InvalidInputError
from autopar.onnx_models import compile_onnx
from autopar.runtime.api import run, verify
from tests.given.models import model_path

Feeds = dict[str, npt.NDArray[np.int64]]

SIZES = ((0, 16), (1, 0), (1, 1), (64, 1), (1, 512), (3, 7), (5, 33), (13, 5))
"""Batches and lengths: corners, and sizes that nothing divides."""

CORNERS = SIZES[:5]
MOST_ROWS, MOST_TOKENS, MOST = 64, 512, 4096
"""Of random requests: rows, tokens of a row, and tokens."""


@pytest.fixture(scope="module")
def minilm() -> Path:
    return model_path("minilm")


def feeds_of(batch: int, length: int) -> Feeds:
    random = np.random.default_rng([batch, length])
    mask = random.random((batch, length)) < 0.8
    return {
        "input_ids": random.integers(0, 1000, (batch, length)),
        "attention_mask": mask.astype(np.int64),
    }


@pytest.mark.models
@pytest.mark.parametrize(
    ("mesh", "strategy"),
    [
        ("1", "none"),
        ("2x4", "data:0,tensor:1"),
        ("3x2", "fsdp"),
        ("2x2x2", "data:0,context:1,tensor:2"),
        # What a session is asked for below.
        pytest.param("3x2", "auto", marks=pytest.mark.slow),
    ],
)
def test_any_size_on_any_mesh(minilm: Path, tmp_path: Path, mesh: str, strategy: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    build = tmp_path / "build"
    compile_onnx(minilm, build, mesh=mesh, strategy=strategy)
    session = onnxruntime.InferenceSession(minilm)
    for sizes in SIZES:
        feeds = feeds_of(*sizes)
        names = [output.name for output in session.get_outputs()]
        found = run(build, {key: torch.from_numpy(x) for key, x in feeds.items()}, virtual=True)
        for name, wanted in zip(names, session.run(None, feeds), strict=True):
            np.testing.assert_allclose(found[name].numpy(), wanted, atol=2e-5, rtol=1e-4)
            assert found[name].shape == wanted.shape


def random_sizes(count: int) -> list[tuple[int, int]]:
    """Returns the corners and random sizes behind them, log-uniform; one in seven batches is 0."""
    drawn, found = random.Random(0), [*CORNERS]
    while len(found) < count:
        batch, length = (
            int(math.exp(drawn.uniform(math.log(least), math.log(most + 1))))
            for least, most in ((0.5, MOST_ROWS), (1, MOST_TOKENS))
        )
        found += [(batch, length)] if batch * length <= MOST else []
    return found


@pytest.mark.models
@pytest.mark.parametrize(
    ("mesh", "virtual", "count"),
    [
        ("3x2", True, 12),
        *(
            pytest.param(mesh, virtual, 300, marks=pytest.mark.slow)
            for mesh, virtual in (
                ("1", False),
                ("2", True),
                ("2x4", True),
                ("3x2", True),
                ("4", False),
            )
        ),
    ],
)
def test_random_requests_to_one_session(minilm: Path, mesh: str, virtual: bool, count: int) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    judge = onnxruntime.InferenceSession(minilm)
    with InferenceSession(minilm, mesh=mesh, virtual=virtual) as session:
        for sizes in random_sizes(count):
            feeds = feeds_of(*sizes)
            for found, wanted in zip(session.run(None, feeds), judge.run(None, feeds), strict=True):
                np.testing.assert_allclose(found, wanted, atol=2e-5, rtol=1e-4, err_msg=str(sizes))
                assert found.shape == wanted.shape
        too_long = "dimension 1 of input 'input_ids' is 513; sequence_length is at least 0"
        with pytest.raises(InvalidInputError, match=too_long):
            session.run(None, feeds_of(1, 513))


@pytest.mark.models
def test_sizes_that_do_not_fit_are_refused_by_name(minilm: Path, tmp_path: Path) -> None:
    build = tmp_path / "build"
    compile_onnx(minilm, build, mesh="2", strategy="data", dims={"batch_size": "1:8"})
    long = {name: torch.from_numpy(x) for name, x in feeds_of(9, 513).items()}
    with pytest.raises(InvalidInputError) as refused:
        run(build, long, virtual=True)
    text = str(refused.value)
    assert "dimension 0 of input 'input_ids' is 9; batch_size is at least 1 and at most 8" in text
    assert "dimension 1 of input 'input_ids' is 513; sequence_length is at least 0" in text
    unlike = {"input_ids": feeds_of(3, 4)["input_ids"], "attention_mask": np.ones((2, 4), np.int64)}
    with pytest.raises(InvalidInputError, match="but dimension 0 of input 'input_ids' is 3"):
        run(build, unlike, serial=True)


@pytest.mark.models
def test_ops_are_compared_at_the_sizes_of_inputs(minilm: Path, tmp_path: Path) -> None:
    build = tmp_path / "build"
    compile_onnx(minilm, build, mesh="3x2", strategy="data:0,tensor:1")
    inputs = {name: torch.from_numpy(x) for name, x in feeds_of(5, 9).items()}
    assert verify(build, inputs, per_op=True).ok
