"""Decoders of transformers, compiled from PyTorch, generate what they generate themselves."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import autopar

transformers = pytest.importorskip("transformers")

EXAMPLES = Path(__file__).parents[2] / "examples"
TOKENS, ENTRIES = 8, 61


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    sys.path.insert(0, str(EXAMPLES))
    yield importlib.import_module("generate_torch")
    sys.path.remove(str(EXAMPLES))


def llama() -> Any:
    return transformers.LlamaConfig(
        vocab_size=ENTRIES,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
    )


def gpt2() -> Any:
    return transformers.GPT2Config(
        vocab_size=ENTRIES, n_positions=64, n_embd=32, n_layer=2, n_head=4
    )


@pytest.mark.parametrize(
    ("config", "mesh", "strategy", "reductions"),
    [
        (llama, "2x2", "data:0,tensor:1", 4),
        # One more for the embedding, which is split by vocabulary.
        (gpt2, "3", "tensor", 5),
    ],
)
def test_tokens_are_those_of_transformers(
    example: ModuleType, config: Any, mesh: str, strategy: str, reductions: int
) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config())
    compiled = example.compile_decoder(model, mesh, strategy)
    summary = compiled.summary()
    assert re.search(r"all_reduce +d\d +(\d+) ", summary)[1] == str(reductions)
    assert "present." not in summary.partition("resharded")[2]
    ids = torch.randint(3, ENTRIES, (3, 5))
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    expected = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=TOKENS,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    with autopar.InferenceSession(compiled, virtual=True) as session:
        found = autopar.generate(session, ids, attention_mask=mask, max_new_tokens=TOKENS)
    assert np.array_equal(found, expected.numpy())


@pytest.mark.parametrize("config", [llama, gpt2])
def test_state_that_grows_stays_as_a_plan_leaves_it(example: ModuleType, config: Any) -> None:
    model = transformers.AutoModelForCausalLM.from_config(config())
    summary = example.compile_decoder(model, "2", "auto").summary()
    # What is predicted of the plan counts what the new content of the past takes.
    assert "times as slow" not in summary
    assert "all_gather" not in summary
