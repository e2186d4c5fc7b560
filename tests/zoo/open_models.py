"""Small random models of transformers whose batch and length, or batch and image, stay open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 53

Sizes = tuple[int, int]
"""Batch and length."""

Inputs = dict[str, Tensor]

TEXT = {"input_ids": {0: "batch", 1: "length=1:16"}, "attention_mask": {0: "batch", 1: "length"}}
IMAGES = {"pixel_values": {0: "batch"}}


@dataclass(frozen=True)
class OpenModel:
    """A model of transformers, made of its configuration.

    Attributes:
        model: The class.
        config: That of its configuration.
        sizes: What is said of it.
        inputs: Makes inputs of a batch and a length, both of a model that is called so.
        dynamic: What stays open; see `autopar.compile`.
        output: Which output counts.
    """

    model: str
    config: str
    sizes: Mapping[str, Any]
    inputs: Callable[[int, int], Inputs]
    dynamic: Mapping[str, Any]
    output: str

    def build(self) -> nn.Module:
        """Returns the model, with the same weights every time, in evaluation mode."""
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.sizes)
        found: nn.Module = getattr(transformers, self.model)(config).eval()
        return found


def _drawn(*sizes: int) -> torch.Generator:
    return torch.Generator().manual_seed(sum(1000**at * size for at, size in enumerate(sizes)))


def text(batch: int, length: int) -> Inputs:
    """Returns tokens of which the first rows end earlier, and their mask."""
    ids = torch.randint(3, VOCABULARY, (batch, length), generator=_drawn(batch, length))
    lengths = (length - torch.arange(batch)).clamp(min=1)[:, None]
    return {"input_ids": ids, "attention_mask": (torch.arange(length) < lengths).long()}


def images(batch: int, length: int) -> Inputs:
    """Returns images of one size."""
    return {"pixel_values": torch.randn(batch, 3, 16, 16, generator=_drawn(batch, length))}


_BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "intermediate_size": 40,
    "max_position_embeddings": 24,
}
_LLAMA = {**_BERT, "num_key_value_heads": 2, "use_cache": False}


def _of_text(model: str, config: str, output: str = "logits", **sizes: Any) -> OpenModel:
    return OpenModel(model, config, sizes, text, TEXT, output)


OPEN_MODELS: Mapping[str, OpenModel] = {
    "distilbert": _of_text(
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        vocab_size=VOCABULARY,
        dim=24,
        n_layers=2,
        n_heads=6,
        hidden_dim=40,
        max_position_embeddings=24,
    ),
    "electra": _of_text("ElectraForMaskedLM", "ElectraConfig", embedding_size=12, **_BERT),
    "albert": _of_text("AlbertForMaskedLM", "AlbertConfig", embedding_size=12, **_BERT),
    "mpnet": _of_text("MPNetForMaskedLM", "MPNetConfig", **_BERT),
    "t5": _of_text(
        "T5EncoderModel",
        "T5Config",
        "last_hidden_state",
        vocab_size=VOCABULARY,
        d_model=24,
        d_kv=4,
        d_ff=40,
        num_layers=2,
        num_heads=6,
    ),
    "opt": _of_text(
        "OPTForCausalLM",
        "OPTConfig",
        vocab_size=VOCABULARY,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=6,
        ffn_dim=40,
        max_position_embeddings=24,
        word_embed_proj_dim=24,
        use_cache=False,
    ),
    "gpt_neo": _of_text(
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        vocab_size=VOCABULARY,
        hidden_size=24,
        num_layers=2,
        num_heads=6,
        intermediate_size=40,
        max_position_embeddings=24,
        attention_types=[[["global", "local"], 1]],
        window_size=5,
        use_cache=False,
    ),
    "bloom": _of_text(
        "BloomForCausalLM",
        "BloomConfig",
        vocab_size=VOCABULARY,
        hidden_size=24,
        n_layer=2,
        n_head=6,
        use_cache=False,
    ),
    "gemma": _of_text("GemmaForCausalLM", "GemmaConfig", head_dim=4, **_LLAMA),
    "phi": _of_text("PhiForCausalLM", "PhiConfig", **_LLAMA),
    "mistral": _of_text("MistralForCausalLM", "MistralConfig", sliding_window=6, **_LLAMA),
    "qwen2": _of_text("Qwen2ForCausalLM", "Qwen2Config", **_LLAMA),
    "vit": OpenModel(
        "ViTForImageClassification",
        "ViTConfig",
        {
            "hidden_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "intermediate_size": 40,
            "image_size": 16,
            "patch_size": 4,
            "num_labels": 5,
        },
        images,
        IMAGES,
        "logits",
    ),
    "clip": _of_text(
        "CLIPTextModelWithProjection",
        "CLIPTextConfig",
        "text_embeds",
        projection_dim=8,
        eos_token_id=VOCABULARY - 1,
        **_BERT,
    ),
}
"""By the library's names."""
