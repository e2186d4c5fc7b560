"""The models whose communication is listed, and what hand-derived ideals have to know of each.

The same families as those that the tests train, with sizes that divide evenly and activations that
are worth moving: batch 8, sequence 256, width 256, 8 heads (4 of keys where they are shared), 2
layers, vocabulary 8,192.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import transformers
from torch import Tensor, nn

BATCH, SEQUENCE, WIDTH, HEADS, SHARED, HIDDEN, LAYERS, VOCABULARY = 8, 256, 256, 8, 4, 1024, 2, 8192
F32 = 4
ALL = ("*",)


@dataclass(frozen=True)
class Stack:
    """A stack of transformer layers.

    Attributes:
        length: Positions of a sequence.
        layers: Its depth.
        memory: Positions of what it attends to besides itself, 0 if nothing.
        keys: Width of its keys, and of its values.
    """

    length: int = SEQUENCE
    layers: int = LAYERS
    memory: int = 0
    keys: int = WIDTH

    @property
    def blocks(self) -> int:
        """Attention, attention to the memory, and the network of each layer."""
        return self.layers * (3 if self.memory else 2)

    @property
    def nbytes(self) -> int:
        """Bytes of an activation of the whole batch."""
        return F32 * BATCH * self.length * WIDTH


@dataclass(frozen=True)
class Example:
    """A model with what its ideals are made of.

    Attributes:
        build: Makes the model.
        batch: What it is trained on.
        stacks: Its stacks of layers, from the input to the output.
        split: Patterns of the parameters that Megatron splits.
        lookups: Patterns of the parameters that only forward reads: tables of lookups, and what is
            applied to inputs, of which no gradient is asked for.
        tied: How often a table is looked up that is the head's too.
        labels: Positions of a sequence that have a label in the split vocabulary; 0 without one.
        experts: Patterns of stacks of experts.
        chosen: How many experts a token goes to.
        norms: Channels of all batch norms.
        loss: What the output is compared with the target by; None if the model does it.
    """

    build: Callable[[], nn.Module]
    batch: Any
    stacks: Sequence[Stack] = (Stack(),)
    split: Sequence[str] = ()
    lookups: Sequence[str] = ()
    tied: int = 0
    labels: int = SEQUENCE
    experts: Sequence[str] = ()
    chosen: int = 0
    norms: int = 0
    loss: Callable[..., Tensor] | None = None

    @cached_property
    def model(self) -> nn.Module:
        """The model, in training mode."""
        return self.build().train()

    @property
    def frozen_bytes(self) -> int:
        """Bytes of the parameters that aren't trained."""
        return sum(F32 * each.numel() for each in self.model.parameters() if not each.requires_grad)

    def nbytes(
        self,
        patterns: Sequence[str] = ALL,
        *,
        matrices: bool | None = None,
        among: Sequence[str] = ALL,
    ) -> int:
        """Returns the bytes of parameters that are trained.

        Args:
            patterns: Of their names.
            matrices: Whether to count those of several dimensions only, or vectors only.
            among: Patterns of which their names fit one as well.
        """
        return sum(
            F32 * parameter.numel()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
            and _fits(name, patterns)
            and _fits(name, among)
            and matrices in (None, sum(size > 1 for size in parameter.shape) > 1)
        )


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _text() -> dict[str, Tensor]:
    ids = torch.ones(BATCH, SEQUENCE, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}


def _made(model: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        settings = getattr(transformers, config)(**options)
        made: nn.Module = getattr(transformers, model)(settings)
        return made

    return build


_CAUSAL: Mapping[str, Any] = {"vocab_size": VOCABULARY, "use_cache": False}
_LLAMA: Mapping[str, Any] = {
    **_CAUSAL,
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": SHARED,
    "max_position_embeddings": SEQUENCE,
}
_ENCODER: Mapping[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_SHARED = Stack(keys=WIDTH * SHARED // HEADS)
_PROJECTIONS = tuple(
    f"*.{name}.{of}" for name in ("q_proj", "k_proj", "v_proj", "o_proj") for of in ("weight",)
)
_GATED = (*_PROJECTIONS, "*.gate_proj.weight", "*.up_proj.weight", "*.down_proj.weight")
_BIASED = ("*.q_proj.bias", "*.k_proj.bias", "*.v_proj.bias")


class Seq2Seq(nn.Module):
    """`torch.nn.Transformer` between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.transformer = nn.Transformer(
            WIDTH, HEADS, LAYERS, LAYERS, HIDDEN, dropout=0.0, batch_first=True
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Returns logits."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        hidden = self.transformer(
            self.table(source), self.table(target), tgt_mask=mask, tgt_is_causal=True
        )
        out: Tensor = self.head(hidden)
        return out


def _token_loss(logits: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def examples() -> dict[str, Example]:
    """Returns the models by name."""
    ids = _text()["input_ids"]
    images = {"pixel_values": torch.zeros(BATCH, 3, 64, 64), "labels": ids[:, 0]}
    both = (Stack(), Stack(memory=SEQUENCE))
    return {
        "gpt2": Example(
            _made(
                "GPT2LMHeadModel",
                "GPT2Config",
                **_CAUSAL,
                n_positions=SEQUENCE,
                n_embd=WIDTH,
                n_layer=LAYERS,
                n_head=HEADS,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
            ),
            _text(),
            split=("*.c_attn.*", "*.c_proj.weight", "*.c_fc.*", "*.wte.weight"),
            lookups=("*.wpe.weight",),
            tied=1,
        ),
        "llama": Example(
            _made("LlamaForCausalLM", "LlamaConfig", **_LLAMA),
            _text(),
            (_SHARED,),
            split=(*_GATED, "lm_head.weight"),
            lookups=("*.embed_tokens.weight",),
        ),
        "qwen2": Example(
            _made("Qwen2ForCausalLM", "Qwen2Config", **_LLAMA),
            _text(),
            (_SHARED,),
            split=(*_GATED, *_BIASED, "lm_head.weight"),
            lookups=("*.embed_tokens.weight",),
        ),
        "bert": Example(
            _made(
                "BertForMaskedLM",
                "BertConfig",
                **_ENCODER,
                vocab_size=VOCABULARY,
                max_position_embeddings=SEQUENCE,
            ),
            _text(),
            split=(
                *(f"*.{name}.*" for name in ("query", "key", "value", "intermediate.dense")),
                *("*.output.dense.weight", "*.word_embeddings.weight", "cls.predictions.bias"),
            ),
            lookups=("*.position_embeddings.weight", "*.token_type_embeddings.weight"),
            tied=1,
        ),
        "vit": Example(
            _made(
                "ViTForImageClassification",
                "ViTConfig",
                **_ENCODER,
                image_size=64,
                patch_size=4,
                num_labels=8,
            ),
            images,
            (Stack(length=257),),
            split=(
                "*.q_proj.*",
                "*.k_proj.*",
                "*.v_proj.*",
                "*.o_proj.weight",
                "*.fc1.*",
                "*.fc2.weight",
            ),
            lookups=(
                "*.patch_embeddings.projection.weight",
                "*.position_embeddings",
                "*.cls_token",
            ),
            labels=0,
        ),
        "t5": Example(
            _made(
                "T5ForConditionalGeneration",
                "T5Config",
                **_CAUSAL,
                d_model=WIDTH,
                d_kv=WIDTH // HEADS,
                d_ff=HIDDEN,
                num_layers=LAYERS,
                num_heads=HEADS,
                dropout_rate=0.0,
                decoder_start_token_id=0,
            ),
            _text(),
            both,
            split=(
                *(f"*Attention.{name}.weight" for name in "qkvo"),
                *("*.wi.weight", "*.wo.weight", "shared.weight", "*relative_attention_bias.weight"),
            ),
            lookups=("*relative_attention_bias.weight",),
            tied=2,
        ),
        "mixtral": Example(
            _made(
                "MixtralForCausalLM",
                "MixtralConfig",
                **_LLAMA,
                num_local_experts=8,
                num_experts_per_tok=2,
            ),
            _text(),
            (_SHARED,),
            split=(*_PROJECTIONS, "*.experts.*", "lm_head.weight"),
            lookups=("*.embed_tokens.weight",),
            experts=("*.experts.*",),
            chosen=2,
        ),
        "whisper": Example(
            _made(
                "WhisperForConditionalGeneration",
                "WhisperConfig",
                **_CAUSAL,
                d_model=WIDTH,
                encoder_layers=LAYERS,
                decoder_layers=LAYERS,
                encoder_attention_heads=HEADS,
                decoder_attention_heads=HEADS,
                encoder_ffn_dim=HIDDEN,
                decoder_ffn_dim=HIDDEN,
                num_mel_bins=80,
                max_source_positions=SEQUENCE,
                max_target_positions=SEQUENCE,
                dropout=0.0,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                decoder_start_token_id=3,
            ),
            {"input_features": torch.zeros(BATCH, 80, 2 * SEQUENCE), "labels": ids},
            both,
            split=(
                *("*.q_proj.*", "*.k_proj.*", "*.v_proj.*", "*.out_proj.weight"),
                *("*.fc1.*", "*.fc2.weight", "*.embed_tokens.weight"),
            ),
            lookups=("*.decoder.embed_positions.weight", "*.conv1.weight"),
            tied=1,
        ),
        "transformer": Example(
            Seq2Seq,
            ((ids, ids), ids),
            both,
            split=(
                *("*.in_proj_*", "*.out_proj.weight", "*.linear1.*", "*.linear2.weight", "head.*"),
            ),
            lookups=("table.weight",),
            loss=_token_loss,
        ),
        "resnet": Example(
            _made(
                "ResNetForImageClassification",
                "ResNetConfig",
                embedding_size=64,
                hidden_sizes=[64, 128],
                depths=[1, 1],
                layer_type="basic",
                num_labels=8,
            ),
            images,
            (),
            lookups=("*.embedder.embedder.convolution.weight",),
            labels=0,
            norms=64 + 2 * 64 + 3 * 128,
        ),
    }
