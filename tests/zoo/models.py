"""Small random configurations of models that nobody here wrote, each with a batch to train on.

From `transformers` and `torch.nn`; sizes are odd where models allow it, so that splits are uneven.
Dropout is off: with it, only programs of ours draw alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH, LENGTH, VOCABULARY = 6, 10, 53


@dataclass(frozen=True)
class Example:
    """A model and what it is trained on.

    Attributes:
        model: In training mode, with the same weights every time.
        batch: A function of the step's number, which returns a batch.
        loss: What the model's output and target are compared by; None if the model does it.
    """

    model: nn.Module
    batch: Callable[[int], Any]
    loss: Callable[..., Tensor] | None = None


def _tokens(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, shape, generator=generator)


def _numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _text(number: int) -> dict[str, Tensor]:
    ids = _tokens(number, BATCH, LENGTH)
    return {"input_ids": ids, "labels": ids}


def _causal(name: str, config: str, **options: Any) -> Example:
    import transformers

    settings = getattr(transformers, config)(
        vocab_size=VOCABULARY, use_cache=False, attn_implementation="sdpa", **options
    )
    torch.manual_seed(0)
    return Example(getattr(transformers, name)(settings).train(), _text)


def gpt2() -> Example:
    """GPT-2, with tied embeddings."""
    return _causal(
        "GPT2LMHeadModel",
        "GPT2Config",
        n_positions=16,
        n_embd=24,
        n_layer=2,
        n_head=6,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )


_LLAMA: Mapping[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


def llama() -> Example:
    """Llama, with grouped-query attention."""
    return _causal("LlamaForCausalLM", "LlamaConfig", **_LLAMA)


def qwen2() -> Example:
    """Qwen2: biases in attention."""
    return _causal("Qwen2ForCausalLM", "Qwen2Config", **_LLAMA)


def mixtral(**sizes: Any) -> Example:
    """Mixtral: experts."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    options = {**_LLAMA, **experts, **sizes}
    return _causal("MixtralForCausalLM", "MixtralConfig", **options)


def bert() -> Example:
    """BERT for masked language modelling."""
    return _causal(
        "BertForMaskedLM",
        "BertConfig",
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=6,
        intermediate_size=40,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def vit() -> Example:
    """ViT for classification."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=6,
        intermediate_size=40,
        image_size=16,
        patch_size=4,
        num_labels=5,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )

    def batch(number: int) -> dict[str, Tensor]:
        return {
            "pixel_values": _numbers(number, BATCH, 3, 16, 16),
            "labels": _tokens(number, BATCH) % 5,
        }

    return Example(ViTForImageClassification(config).train(), batch)


def t5() -> Example:
    """T5: encoder and decoder, relative positions."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=24,
        d_kv=4,
        d_ff=40,
        num_layers=2,
        num_heads=6,
        dropout_rate=0.0,
        use_cache=False,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    return Example(T5ForConditionalGeneration(config).train(), _text)


def whisper() -> Example:
    """Whisper: convolutions before an encoder and decoder."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=24,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=40,
        decoder_ffn_dim=40,
        num_mel_bins=8,
        max_source_positions=12,
        max_target_positions=16,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
    )

    def batch(number: int) -> dict[str, Tensor]:
        return {
            "input_features": _numbers(number, BATCH, 8, 24),
            "labels": _tokens(number, BATCH, LENGTH),
        }

    return Example(WhisperForConditionalGeneration(config).train(), batch)


class Seq2Seq(nn.Module):
    """`torch.nn.Transformer` between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 24)
        self.transformer = nn.Transformer(24, 6, 1, 1, 40, dropout=0.0, batch_first=True)
        self.head = nn.Linear(24, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        hidden = self.transformer(
            self.table(source), self.table(target), tgt_mask=mask, tgt_is_causal=True
        )
        out: Tensor = self.head(hidden)
        return out


def transformer() -> Example:
    """`torch.nn.Transformer`."""
    torch.manual_seed(0)

    def batch(number: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        source, target = _tokens(number, BATCH, LENGTH), _tokens(number + 99, BATCH, LENGTH - 1)
        return (source, target), target

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())

    return Example(Seq2Seq().train(), batch, loss)


def resnet() -> Example:
    """ResNet: convolutions and batch norms."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        num_labels=5,
    )

    def batch(number: int) -> dict[str, Tensor]:
        return {
            "pixel_values": _numbers(number, BATCH, 3, 32, 32),
            "labels": _tokens(number, BATCH) % 5,
        }

    return Example(ResNetForImageClassification(config).train(), batch)


ZOO: Mapping[str, Callable[[], Example]] = {
    "gpt2": gpt2,
    "llama": llama,
    "qwen2": qwen2,
    "bert": bert,
    "vit": vit,
    "t5": t5,
    "mixtral": mixtral,
    "whisper": whisper,
    "transformer": transformer,
    "resnet": resnet,
}
