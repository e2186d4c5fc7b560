"""The programs of which searches are measured, on the mesh and the cluster of each.

The first ones are those of the bars; the others are models as users have them: bfloat16, a batch
that doesn't divide, heads that share keys, convolutions on three axes, windows, state spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from language_models import LLAMA_8B, bert, gpt2, llama, t5, tokens
from torch import nn
from torch.nn import functional

Training = tuple[nn.Module, Any, Any]
"""A model on the meta device, a batch, and a loss (None: the model has it)."""


@dataclass(frozen=True)
class Reference:
    """What the search of commit 1786f06 found, whose work had no limit.

    Attributes:
        seconds: Predicted seconds of its plan.
        cpu_seconds: After which it ended by itself.
        is_cut: Whether it didn't, but was short of memory then.
    """

    seconds: float
    cpu_seconds: float
    is_cut: bool = False


@dataclass(frozen=True)
class Row:
    """A training step to search.

    Attributes:
        mesh: What it is searched for.
        make: Makes it; called where tensors are made on the meta device.
        reference: What was found of it once.
        cluster: The hardware.
    """

    mesh: str
    make: Callable[[], Training]
    reference: Reference
    cluster: str = "h100"

    def training(self) -> Training:
        """Returns model, batch and loss, without their contents."""
        with torch.device("meta"):
            return self.make()


def _mlp() -> Training:
    blocks = [nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))] * 2
    x = torch.zeros(1024, 1024)
    return nn.Sequential(*blocks).train(), (x, x), functional.mse_loss


def _gpt2(batch: int = 256) -> Training:
    return gpt2(), tokens(batch, 1024), None


def _llama(batch: int = 256, dtype: torch.dtype = torch.float32) -> Training:
    return llama(LLAMA_8B).to(dtype), tokens(batch, 4096), None


def _qwen3() -> Training:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        use_cache=False,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).train(), tokens(8, 512), None


def _swin() -> Training:
    from transformers import SwinConfig, SwinForImageClassification

    model = SwinForImageClassification(SwinConfig(drop_path_rate=0.0)).train()
    images, labels = torch.zeros(32, 3, 224, 224), torch.zeros(32, dtype=torch.long)
    return model, {"pixel_values": images, "labels": labels}, None


def _mamba() -> Training:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(num_hidden_layers=4, use_cache=False)
    return MambaForCausalLM(config).train(), tokens(8, 64), None


class UNet(nn.Module):
    """A U-Net with batch norms, four levels deep.

    Args:
        width: Channels of the first level; each further one has twice as many.
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = [width << level for level in range(5)]
        pairs = list(zip([3, *widths[:-1]], widths, strict=True))
        self.down = nn.ModuleList(_convolutions(*pair) for pair in pairs)
        upward = widths[-2::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * to, to, 2, 2) for to in upward)
        self.join = nn.ModuleList(_convolutions(2 * to, to) for to in upward)
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns two scores per pixel of images, (batch, 3, height, width)."""
        kept = []
        for level in self.down[:-1]:
            kept.append(level(x))
            x = functional.max_pool2d(kept[-1], 2)
        x = self.down[-1](x)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), kept.pop()], 1))
        scores: torch.Tensor = self.out(x)
        return scores


def _convolutions(inward: int, outward: int) -> nn.Module:
    sizes = ((inward, outward), (outward, outward))
    return nn.Sequential(
        *(
            layer
            for size in sizes
            for layer in (nn.Conv2d(*size, 3, padding=1), nn.BatchNorm2d(size[1]), nn.ReLU())
        )
    )


def _unet() -> Training:
    pixels = torch.zeros(16, 256, 256, dtype=torch.long)
    return UNet().train(), (torch.zeros(16, 3, 256, 256), pixels), functional.cross_entropy


ROWS: Mapping[str, Row] = {
    "gpt2": Row("32x8", _gpt2, Reference(28.67218e-3, 2.8)),
    "llama": Row("32x8", _llama, Reference(5.018867, 4.7)),
    "t5": Row("2x4", lambda: (t5(), tokens(32, 512), None), Reference(25.11918e-3, 4.3)),
    "bert": Row("2x4", lambda: (bert(), tokens(32, 512), None), Reference(36.81851e-3, 2.7)),
    "mlp": Row("8x8x4", _mlp, Reference(208.6655e-6, 3.3)),
    "mlp-4": Row("4x4x4x4", _mlp, Reference(228.5516e-6, 4.6)),
    "gpt2-4": Row("4x4x4x4", _gpt2, Reference(28.84199e-3, 9.5)),
    "gpt2-8": Row("8x8x2x2", _gpt2, Reference(28.86444e-3, 10.3)),
    "gpt2-odd": Row("8x8", lambda: _gpt2(250), Reference(95.11304e-3, 3.0), "h100x8"),
    "llama-bf16": Row(
        "32x8", lambda: _llama(64, torch.bfloat16), Reference(237.7499e-3, 40.8), "h100x32"
    ),
    "qwen3": Row("dp=2,tp=4", _qwen3, Reference(62.51274e-3, 31.6)),
    "swin": Row("dp=2,tp=4", _swin, Reference(3.930380e-3, 46.3)),
    "mamba": Row("dp=2,tp=4", _mamba, Reference(5.672672e-3, 32.6)),
    "unet": Row("2x2x2", _unet, Reference(6.320925e-3, 108, is_cut=True)),
}
