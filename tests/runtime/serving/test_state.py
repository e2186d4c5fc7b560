"""State stays on the ranks: calls go on from the last one, as on one device that is handed it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import autopar
from autopar import InferenceSession
from autopar.base.errors import InvalidInputError
from tests.runtime.serving.decoder import ENTRIES, STATE, Array, OneDevice, Sizes, write_decoder

pytest.importorskip("onnxruntime")

LENGTHS = (5, 1, 1, 3, 1, 2, 1, 1, 1)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoder(tmp_path_factory.mktemp("decoder"))


@pytest.fixture(
    scope="module",
    params=[
        {},
        {"mesh": "3x2", "virtual": True, "strategy": "data:1,tensor:0"},
        {"mesh": "2x2", "virtual": True},
        {"mesh": 2, "strategy": "tensor"},
        {"mesh": 2, "strategy": "tensor:d0,sequence:d0"},
        {"mesh": "2x3", "virtual": True, "shard": {"past*": ["d0", -1, "d1", -1]}},
    ],
    ids=str,
)
def session(decoder: Path, request: pytest.FixtureRequest) -> Iterator[InferenceSession]:
    with InferenceSession(decoder, state=STATE, **request.param) as opened:
        yield opened


def feeds_of(batch: int, past: int, length: int) -> dict[str, Array]:
    chance = np.random.default_rng([batch, past, length])
    places = np.broadcast_to(np.arange(past, past + length), (batch, length))
    return {
        "input_ids": chance.integers(0, ENTRIES, (batch, length)),
        "attention_mask": np.ones((batch, past + length), np.int64),
        "position_ids": places,
    }


@pytest.mark.parametrize("batch", [1, 5])
def test_calls_go_on_from_the_last_one(
    session: InferenceSession, decoder: Path, batch: int
) -> None:
    one, past = OneDevice(decoder), 0
    session.reset()
    for length in LENGTHS:
        feeds = feeds_of(batch, past, length)
        (logits,) = session.run(None, feeds)
        np.testing.assert_allclose(logits, one.run(feeds), rtol=1e-4, atol=1e-5)
        past += length


def test_compiled_calls_go_on(tmp_path: Path) -> None:
    sizes = Sizes(layers=1)
    path = write_decoder(tmp_path, sizes)
    one, past = OneDevice(path, sizes), 0
    with InferenceSession(
        path, state=STATE, mesh=2, strategy="tensor", torch_compile=True
    ) as session:
        for length in (5, 1, 3):
            feeds = feeds_of(2, past, length)
            (logits,) = session.run(None, feeds)
            np.testing.assert_allclose(logits, one.run(feeds), rtol=1e-4, atol=1e-5)
            past += length


def test_what_does_not_go_on_is_refused(session: InferenceSession) -> None:
    session.reset()
    (first,) = session.run(None, feeds_of(2, 0, 3))
    with pytest.raises(InvalidInputError, match="batch is 3, but 2 in the state that earlier"):
        session.run(None, feeds_of(3, 3, 1))
    with pytest.raises(InvalidInputError, match="'attention_mask' is i64"):
        session.run(None, feeds_of(2, 2, 1))
    (second,) = session.run(None, feeds_of(2, 3, 1))
    session.reset()
    assert np.array_equal(session.run(None, feeds_of(2, 0, 3))[0], first)
    assert np.array_equal(session.run(None, feeds_of(2, 3, 1))[0], second)


def test_state_is_returned_on_demand(decoder: Path, tmp_path: Path) -> None:
    autopar.compile_onnx(decoder, tmp_path / "build", mesh=1, state=STATE)
    with autopar.load(tmp_path / "build") as one:
        first = one.run(feeds_of(2, 0, 3), updates=True)
        second = one.run(feeds_of(2, 3, 1), updates=True)
    assert second["present.1.key"].shape[2] == 4
    assert torch.equal(second["present.1.key"][:, :, :3], first["present.1.key"])


def test_state_is_no_input(session: InferenceSession) -> None:
    names = ["input_ids", "attention_mask", "position_ids"]
    assert [each.name for each in session.get_inputs()] == names
    assert [each.name for each in session.get_outputs()] == ["logits"]
