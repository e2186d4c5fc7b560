"""Language models as benchmarks train them: as large as they are, without dropout and caches.

Under `torch.device("meta")` their weights are never made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 128256,
}
LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "vocab_size": 32000,
}


def gpt2(**sizes: int) -> nn.Module:
    """Returns a GPT-2, the small one where no sizes are given."""
    from transformers import GPT2Config, GPT2LMHeadModel

    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model: nn.Module = GPT2LMHeadModel(GPT2Config(use_cache=False, **dropout, **sizes))  # type: ignore[arg-type]
    return model.train()


def llama(sizes: Mapping[str, Any]) -> nn.Module:
    """Returns a Llama of these sizes, with eight heads of keys and values, for 4096 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_key_value_heads=8, max_position_embeddings=4096, use_cache=False, **sizes
    )
    model: nn.Module = LlamaForCausalLM(config)
    return model.train()


def bert() -> nn.Module:
    """Returns a BERT, the base one."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model: nn.Module = BertForMaskedLM(config)
    return model.train()


def t5() -> nn.Module:
    """Returns a T5, the small one."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(decoder_start_token_id=0, dropout_rate=0.0, use_cache=False)  # type: ignore[call-arg]
    model: nn.Module = T5ForConditionalGeneration(config)
    return model.train()


def tokens(batch: int, length: int) -> dict[str, torch.Tensor]:
    """Returns a batch on the meta device: what is read, and what is to be predicted."""
    ids = torch.zeros(batch, length, dtype=torch.long, device="meta")
    return {"input_ids": ids, "labels": ids}
