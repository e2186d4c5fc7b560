"""Models of which a part takes most of the memory, small and large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 601


class Scores(nn.Module):
    """Attention whose scores are written out."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (2, -1)).transpose(1, 2).chunk(3, -1)
        found: Tensor = ((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).flatten(2)
        return found


class Perceptron(nn.Module):
    """Four times as wide inside."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.down(F.gelu(self.up(x)))
        return found


class Images(nn.Module):
    """Wide channels between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(F.relu(self.first(x)))
        return found


class Rows(nn.Sequential):
    """Convolutions in a row: padded, dilated, of every second row; a pooling."""

    def __init__(self, width: int = 16) -> None:
        super().__init__(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=2, dilation=2),
            nn.ReLU(),
            nn.Conv2d(width, width, 1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 3, 3, padding=1),
        )


class UNet(nn.Module):
    """Two levels, of which the wide one is there again behind the narrow one."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.last = self._block(3, width), nn.Conv2d(width, 3, 1)
        self.down, self.inner = nn.MaxPool2d(2), self._block(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.outer = self._block(2 * width, width)

    @staticmethod
    def _block(channels: int, width: int) -> nn.Module:
        first, second = (nn.Conv2d(each, width, 3, padding=1) for each in (channels, width))
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        wide = self.first(x)
        narrow = self.inner(self.down(wide))
        found: Tensor = self.last(self.outer(torch.cat([wide, self.up(narrow)], 1)))
        return found


class Head(nn.Module):
    """Scores of many classes."""

    def __init__(self, width: int = 8, classes: int = CLASSES) -> None:
        super().__init__()
        self.pre, self.head = nn.Linear(width, width), nn.Linear(width, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.pre(x))
        return found


class Towers(nn.Module):
    """Two, whose results are compared, each with each."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.first(x), dim=-1), F.normalize(self.second(x), dim=-1)


def squares(found: Tensor, target: Tensor) -> Tensor:
    return (found**2).mean()


def contrastive(found: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    logits, at = 10 * found[0] @ found[1].t(), torch.arange(len(target))
    return F.cross_entropy(logits, at) + F.cross_entropy(logits.t(), at)


def everything(found: Tensor, target: Tensor) -> Tensor:
    weight = torch.linspace(0.1, 1, found.shape[-1], dtype=found.dtype)
    return F.cross_entropy(found, target, weight, ignore_index=3, label_smoothing=0.1)


def mse(found: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(found, hot(found, target))


def two(found: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(found, target) + (found.logsumexp(-1) ** 2).mean() / 100


def likelihood(found: Tensor, target: Tensor) -> Tensor:
    return F.nll_loss(F.log_softmax(found, -1), target)


def hot(found: Tensor, target: Tensor) -> Tensor:
    return F.one_hot(target, found.shape[-1]).to(found)


def binary(found: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(found, hot(found, target))


def divergence(found: Tensor, target: Tensor) -> Tensor:
    return F.kl_div(F.log_softmax(found, -1), hot(found, target), reduction="batchmean")


class Case(NamedTuple):
    """A model, the shape of its input, its loss, and what of the peak it is given."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    loss: Callable[[Any, Tensor], Tensor] = squares
    share: float = 0.6


CASES = {
    "attention": Case(Scores, (1, 128, 8)),
    "perceptron": Case(Perceptron, (700, 8)),
    "convolution": Case(Images, (1, 3, 40, 40)),
    "rows of convolutions": Case(Rows, (1, 3, 96, 40)),
    "U-Net": Case(UNet, (1, 3, 96, 40)),
    "cross entropy": Case(Head, (128, 8), F.cross_entropy),
    "cross entropy of uneven rows": Case(Head, (131, 8), F.cross_entropy),
    "weighted, smoothed, ignoring": Case(Head, (128, 8), everything),
    "likelihood": Case(Head, (128, 8), likelihood),
    "binary": Case(Head, (128, 8), binary),
    "divergence": Case(Head, (128, 8), divergence),
    "squared": Case(Head, (128, 8), mse),
    "two losses": Case(Head, (128, 8), two),
    "contrastive": Case(Towers, (200, 8), contrastive, 0.4),
}


def large_head() -> nn.Module:
    return Head(256, LARGE_CLASSES)


LARGE_CLASSES = 16_000

LARGE = {
    "attention": Case(lambda: Scores(128), (1, 8192, 128)),
    "perceptron": Case(lambda: Perceptron(256), (16_384, 256)),
    "convolution": Case(Images, (1, 3, 1024, 1024)),
    "rows of convolutions": Case(Rows, (1, 3, 1024, 1024)),
    "U-Net": Case(UNet, (1, 3, 1024, 1024)),
    "cross entropy": Case(large_head, (4096, 256), F.cross_entropy),
    "cross entropy of uneven rows": Case(large_head, (4097, 256), F.cross_entropy),
    "weighted, smoothed, ignoring": Case(large_head, (4096, 256), everything),
    "likelihood": Case(large_head, (4096, 256), likelihood),
    "binary": Case(large_head, (4096, 256), binary),
    "divergence": Case(large_head, (4096, 256), divergence),
    "squared": Case(large_head, (4096, 256), mse),
    "two losses": Case(large_head, (4096, 256), two),
    "contrastive": Case(lambda: Towers(256), (8192, 256), contrastive, 0.2),
}
"""As many of them, of sizes for which it matters."""
