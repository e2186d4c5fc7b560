"""What `gpu.py` trains: models in the sizes that their names mean, and the same in little."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tests.zoo.full_size import CASES, Case, hugging, text

LLAMA = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "use_cache": False,
}


def _images(batch: int) -> Callable[[], dict[str, Tensor]]:
    def make() -> dict[str, Tensor]:
        labels = torch.zeros(batch, dtype=torch.long)
        return {"pixel_values": torch.randn(batch, 3, 224, 224), "labels": labels}

    return make


MODELS: Mapping[str, Case] = {
    "gpt2": Case(CASES["gpt2"].model, text(16, 1024, 50257)),
    "bert": Case(CASES["bert"].model, text(32, 512, 30522)),
    "vit": Case(CASES["vit"].model, _images(64)),
    "resnet": Case(CASES["resnet"].model, _images(128)),
    "llama": Case(hugging("LlamaForCausalLM", "LlamaConfig", **LLAMA), text(2, 2048, 128256)),
}
"""In the sizes that their names mean; Llama has 8 layers of those of Llama-3 8B."""

_NARROW = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
TINY: Mapping[str, Case] = {
    "gpt2": Case(
        hugging("GPT2LMHeadModel", "GPT2Config", n_layer=1, n_embd=64, n_head=4, vocab_size=512),
        text(2, 64, 512),
    ),
    "bert": Case(
        hugging("BertForMaskedLM", "BertConfig", **_NARROW, intermediate_size=128, vocab_size=512),
        text(2, 64, 512),
    ),
    "vit": Case(
        hugging("ViTForImageClassification", "ViTConfig", **_NARROW, intermediate_size=128),
        _images(2),
    ),
    "resnet": Case(
        hugging("ResNetForImageClassification", "ResNetConfig", depths=[1, 1, 1, 1]), _images(2)
    ),
    "llama": Case(
        hugging(
            "LlamaForCausalLM",
            "LlamaConfig",
            **{**LLAMA, **_NARROW, "vocab_size": 512, "intermediate_size": 128},
        ),
        text(2, 64, 512),
    ),
}
"""The same in little, to try this out."""
