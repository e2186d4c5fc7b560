"""Tokens are those that one device generates, greedily and drawn, whatever the mesh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import autopar
from autopar import InferenceSession
from autopar.base.errors import InvalidInputError
from tests.runtime.serving.decoder import ENTRIES, STATE, Array, OneDevice, write_decoder
from tests.runtime.serving.scorer import write_scorer

pytest.importorskip("onnxruntime")

PROMPTS = np.array([[1, 4, 2, 7], [0, 0, 3, 5], [0, 9, 9, 1]])
MASK = np.array([[1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1]])


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoder(tmp_path_factory.mktemp("decoder"))


@pytest.fixture(scope="module")
def one(decoder: Path) -> Any:
    with InferenceSession(decoder, state=STATE) as opened:
        yield opened


@pytest.fixture(
    scope="module",
    params=[{"mesh": "3x2", "virtual": True}, {"mesh": 2, "strategy": "tensor"}],
    ids=str,
)
def session(decoder: Path, request: pytest.FixtureRequest) -> Any:
    with InferenceSession(decoder, state=STATE, **request.param) as opened:
        yield opened


def by_hand(decoder: Path, count: int) -> Array:
    """Returns what one device generates greedily, the past handed on by its caller."""
    device, ids, mask, new = OneDevice(decoder), PROMPTS, MASK, PROMPTS
    for _ in range(count):
        positions = np.maximum(mask.cumsum(1) - 1, 0)[:, -new.shape[1] :]
        feeds = {"input_ids": new, "attention_mask": mask, "position_ids": positions}
        new = device.run(feeds)[:, -1].argmax(-1)[:, None]
        ids, mask = np.concatenate([ids, new], 1), np.concatenate([mask, np.ones_like(new)], 1)
    return ids


def test_greedy_tokens(session: InferenceSession, decoder: Path) -> None:
    found = autopar.generate(session, PROMPTS, attention_mask=MASK, max_new_tokens=12)
    assert np.array_equal(found, by_hand(decoder, 12))


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.5, "temperature": 0.7}])
def test_tokens_that_are_drawn(
    session: InferenceSession, one: InferenceSession, options: dict[str, Any]
) -> None:
    given = {"max_new_tokens": 6, "do_sample": True, **options}
    found = [autopar.generate(session, PROMPTS, seed=seed, **given) for seed in (1, 1, 2)]
    assert np.array_equal(found[0], autopar.generate(one, PROMPTS, seed=1, **given))
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_a_sequence_ends(one: InferenceSession) -> None:
    whole = autopar.generate(one, PROMPTS, max_new_tokens=12)
    last = int(whole[0, 7])
    ends = {"eos_token_id": [ENTRIES + 1, last], "pad_token_id": 0}
    found = autopar.generate(one, PROMPTS, max_new_tokens=12, **ends)
    for row, all_of_it in zip(found, whole, strict=True):
        made = list(all_of_it[4:])
        end = made.index(last) + 1 if last in made else len(made)
        assert list(row[4 : 4 + end]) == made[:end]
        assert not row[4 + end :].any()


def test_logits_are_changed_first(one: InferenceSession) -> None:
    def only_fives(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        assert ids.shape[0] == logits.shape[0] == len(PROMPTS)
        return logits.index_fill(1, torch.tensor([5]), 1e9)

    options = {"max_new_tokens": 3, "logits_processor": only_fives}
    assert np.all(autopar.generate(one, PROMPTS, **options)[:, 4:] == 5)


def test_tokens_come_one_by_one(one: InferenceSession) -> None:
    steps = list(autopar.stream(one, PROMPTS, max_new_tokens=5))
    assert np.array_equal(
        np.stack(steps, 1), autopar.generate(one, PROMPTS, max_new_tokens=5)[:, 4:]
    )


class Attention(nn.Module):
    """Keys and values of the past come before those of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.projected = nn.Linear(12, 36)

    def forward(
        self, x: torch.Tensor, past: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        batch, length, _ = x.shape
        parts = self.projected(x).chunk(3, -1)
        query, *new = (part.view(batch, length, 3, 4).transpose(1, 2) for part in parts)
        key, value = (torch.cat(each, 2) for each in zip(past, new, strict=True))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        return x + mixed.transpose(1, 2).reshape(batch, length, 12), (key, value)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.out = nn.Embedding(ENTRIES, 12), nn.Linear(12, ENTRIES)
        self.layers = nn.ModuleList([Attention(), Attention()])

    def forward(self, input_ids: torch.Tensor, past: Any) -> dict[str, Any]:
        x, present = self.tokens(input_ids), []
        for layer, before in zip(self.layers, past, strict=True):
            x, after = layer(x, before)
            present.append(after)
        return {"logits": self.out(x), "present": present}


def past_of(batch: int, length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    shape = (batch, 3, length, 4)
    return [(torch.zeros(shape), torch.zeros(shape)) for _ in range(2)]


def test_modules_generate() -> None:
    torch.manual_seed(0)
    model, ids = Decoder().eval(), torch.from_numpy(PROMPTS)
    names = [f"past.{layer}.{at}" for layer in range(2) for at in range(2)]
    compiled = autopar.compile(
        model,
        {"input_ids": ids, "past": past_of(3, 5)},
        mesh="2x2",
        strategy="data:0,tensor:1",
        dynamic={
            "input_ids": {0: "batch", 1: "length=1:"},
            **{name: {0: "batch", 2: "past"} for name in names},
        },
        state={"past.*": "present.*"},
    )
    with InferenceSession(compiled, virtual=True) as session:
        found = autopar.generate(session, ids, max_new_tokens=6)
    with torch.no_grad():
        for _ in range(6):
            ids = greedy(model, ids)
    assert np.array_equal(found, ids.numpy())


def greedy(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Returns ids with the next ones, of which the past is computed call by call, as generated."""
    past, logits = past_of(3, 0), torch.empty(0)
    for part in (ids[:, :4], *(ids[:, at : at + 1] for at in range(4, ids.shape[1]))):
        found = model(part, past)
        past, logits = found["present"], found["logits"]
    return torch.cat([ids, logits[:, -1].argmax(-1, keepdim=True)], 1)


def forbid(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Leaves no token for the second row."""
    return logits.index_fill(0, torch.tensor([1]), -torch.inf)


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        (np.zeros((2, 0), int), {}, r"input_ids: give integers, \[batch, length\]"),
        ([[1, 2], [3]], {}, "input_ids: rows differ in length; pad shorter prompts on the left"),
        (PROMPTS, {"attention_mask": MASK[:2]}, r"attention_mask is \[2, 4\]"),
        (
            PROMPTS,
            {"attention_mask": MASK[:, ::-1]},
            "padding in row 1, .* pad shorter .* on the left",
        ),
        (PROMPTS, {"attention_mask": MASK - 1}, "attention_mask: give 1 for what belongs"),
        (PROMPTS, {"eos_token_id": "2"}, "eos_token_id='2': give a token's number, or a list"),
        (PROMPTS, {"pad_token_id": -1}, "pad_token_id=-1: give a token's number"),
        (PROMPTS, {"temperature": 0}, "temperature=0: give a number above 0"),
        (PROMPTS, {"temperature": -1.0}, "temperature=-1.0: give a number above 0"),
        (PROMPTS, {"top_p": 2}, "top_p=2: give a number above 0, and up to 1"),
        (PROMPTS, {"top_k": 0}, "top_k=0: give a whole number from 1 on"),
        (PROMPTS, {"seed": 2**64}, "seed=18446744073709551616: give a whole number of 64 bits"),
        (PROMPTS, {"logits_processor": 3}, "logits_processor=3: give a function"),
        (PROMPTS, {"logits_processor": lambda ids, logits: logits[0]}, r"\[13\]; .* \[3, 13\]"),
        (
            PROMPTS,
            {"logits_processor": forbid, "do_sample": True},
            "no token .* for row 1: its logits",
        ),
        (PROMPTS + ENTRIES, {}, "out of range in 'input_ids'"),
    ],
)
def test_what_can_not_be_used_is_refused(
    one: InferenceSession, ids: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        autopar.generate(one, ids, max_new_tokens=2, **options)


@pytest.mark.parametrize("options", [{"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.5}])
def test_what_is_said_of_drawing_is_without_effect(
    one: InferenceSession, options: dict[str, Any]
) -> None:
    with pytest.warns(UserWarning, match=r"=.*: only what is drawn .*; give do_sample=True"):
        found = autopar.generate(one, PROMPTS, max_new_tokens=2, **options)
    assert np.array_equal(found, autopar.generate(one, PROMPTS, max_new_tokens=2))


def test_other_models_are_refused(tmp_path: Path, decoder: Path) -> None:
    for model, message in (
        (write_scorer(tmp_path), "a decoder is given input_ids.*; this model also takes ids"),
        (decoder, r"also takes past_key_values.0.key, .*; state= says which"),
    ):
        with InferenceSession(model) as session, pytest.raises(InvalidInputError, match=message):
            autopar.generate(session, PROMPTS, max_new_tokens=2)
