"""Models in the sizes that their names mean, and what they are trained on: for benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """A transformer block of GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        hidden: Tensor = F.gelu(self.up(self.norm2(x)), approximate="tanh")
        found: Tensor = x + self.down(hidden)
        return found


class GPT(nn.Module):
    """GPT-2 small; returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        width = 768
        self.tokens, self.positions = nn.Embedding(50257, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, 12) for _ in range(12))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 50257, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


def hugging(name: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    """Returns what makes a model of `transformers` without dropout."""

    def make() -> nn.Module:
        import transformers

        settings = getattr(transformers, config)(**options)
        for key in dir(settings):
            if "drop" in key and isinstance(getattr(settings, key), float):
                setattr(settings, key, 0.0)
        model: nn.Module = getattr(transformers, name)(settings)
        return model.train()

    return make


def text(batch: int, length: int, vocabulary: int) -> Callable[[], dict[str, Tensor]]:
    def make() -> dict[str, Tensor]:
        ids = torch.randint(1, vocabulary, (batch, length))
        return {"input_ids": ids, "labels": ids}

    return make


def images(batch: int) -> dict[str, Tensor]:
    return {
        "pixel_values": torch.randn(batch, 3, 224, 224),
        "labels": torch.zeros(batch, dtype=torch.long),
    }


@dataclass(frozen=True)
class Case:
    """A model and what it is trained on."""

    model: Callable[[], nn.Module]
    batch: Callable[[], dict[str, Tensor]]


LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "use_cache": False,
}
CASES: Mapping[str, Case] = {
    "gpt": Case(GPT, text(2, 1024, 50257)),
    "gpt2": Case(hugging("GPT2LMHeadModel", "GPT2Config", use_cache=False), text(2, 512, 50257)),
    "llama": Case(hugging("LlamaForCausalLM", "LlamaConfig", **LLAMA), text(2, 512, 32000)),
    "bert": Case(hugging("BertForMaskedLM", "BertConfig"), text(4, 256, 30522)),
    "vit": Case(hugging("ViTForImageClassification", "ViTConfig"), lambda: images(8)),
    "t5": Case(
        hugging("T5ForConditionalGeneration", "T5Config", decoder_start_token_id=0),
        text(4, 256, 32128),
    ),
    "resnet": Case(hugging("ResNetForImageClassification", "ResNetConfig"), lambda: images(8)),
}
