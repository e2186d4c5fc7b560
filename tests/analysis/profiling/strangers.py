"""Modules as people write them, small: what a profile has to take as it comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Residual(nn.Module):
    """A residual block of a ResNet, with writes in place."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        self.down = nn.Conv2d(inner, outer, 1, stride, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        found = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        found += self.down(x)
        out: Tensor = self.relu(found)
        return out


def residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3), Residual(8, 16, 1), Residual(16, 32, 2), nn.AdaptiveAvgPool2d(1)
    )


def double(inner: int, outer: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1), nn.GroupNorm(2, outer), nn.SiLU(inplace=True)
    )


class UNet(nn.Module):
    """Down, up by a transposed convolution and by interpolation, with shortcuts."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = double(3, 8), double(8, 16), double(16, 32)
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.d, self.e, self.out = double(32, 16), double(24, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        c = self.c(F.max_pool2d(b, 2))
        wide = self.d(torch.cat([self.up(c), b], 1))
        wide = F.interpolate(wide, scale_factor=2, mode="bilinear", align_corners=False)
        found: Tensor = self.out(self.e(torch.cat([wide, a], 1)))
        return found


class Recurrent(nn.Module):
    """A GRU in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(16, 24, bidirectional=True), nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(self.gru(x)[0])
        return found


class ExpTimes(torch.autograd.Function):
    """exp(x) @ w, whose gradients compute the exponentials again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return torch.exp(x) @ w

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, w = ctx.saved_tensors
        again = torch.exp(x)
        return (gradient @ w.t()) * again, again.t() @ gradient


class OwnGradient(nn.Module):
    """A custom function of autograd within other layers."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.w = nn.Linear(16, 32), nn.Parameter(torch.ones(32, 48))
        self.out = nn.Linear(48, 7)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(torch.tanh(ExpTimes.apply(self.into(x), self.w)))
        return found


class Running(nn.Module):
    """Buffers that change, and one that doesn't."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 16)
        self.mean: Tensor
        self.mask: Tensor
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("mask", torch.ones(16, 16).tril(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.out(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return (y - self.mean) @ self.mask


class Again(nn.Module):
    """Blocks whose activations PyTorch computes again."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


class Mixed(nn.Module):
    """Products in bfloat16, statistics of a norm in float32."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found: Tensor = self.layers(x)
        return found


class Kept(nn.Module):
    """Returns an object that holds what it computed on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        hidden = self.up(x).exp()
        return self.down(hidden), Cache([hidden + 1])


class Cache:
    """No container that PyTorch knows."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors


def images() -> Tensor:
    return torch.randn(2, 3, 32, 32)


def rows() -> Tensor:
    return torch.randn(8, 16)


CASES: Mapping[str, Callable[[], tuple[nn.Module, Any]]] = {
    "residual": lambda: (residual(), images()),
    "unet": lambda: (UNet(), images()),
    "recurrent": lambda: (Recurrent(), torch.randn(6, 4, 16)),
    "own_gradient": lambda: (OwnGradient(), rows()),
    "running": lambda: (Running(), rows()),
    "again": lambda: (Again(), rows()),
    "mixed": lambda: (Mixed(), rows()),
    "kept": lambda: (Kept(), rows()),
    "traced": lambda: (fx.symbolic_trace(UNet()), images()),
    "exported": lambda: (torch.export.export(residual(), (images(),)).module(), images()),
}
