"""A library of custom ops, as a user would write one."""

from __future__ import annotations

import torch
from torch import Tensor

LIBRARY = "autopar_test_library"


@torch.library.custom_op(f"{LIBRARY}::scaled", mutates_args=())
def scaled(x: Tensor, factor: float) -> Tensor:
    """Reads memory as if it were dense."""
    flat = x.as_strided((x.numel(),), (1,))
    return (flat * factor).reshape(x.shape)


@scaled.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty(x.shape)


@torch.library.custom_op(f"{LIBRARY}::scale_", mutates_args=("x",))
def scale_(x: Tensor, factor: float) -> None:
    """Writes to its operand and returns nothing."""
    x.mul_(factor)


@torch.library.custom_op(f"{LIBRARY}::add_to_all_", mutates_args=("x", "others"))
def add_to_all_(x: Tensor, y: Tensor, others: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Writes to an operand and to a list of them, and returns two tensors."""
    x.mul_(2)
    for at, other in enumerate(others):
        other.add_(at + 1)
    return x + y, y - 1


@add_to_all_.register_fake
def _(x: Tensor, y: Tensor, others: list[Tensor]) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(y)


@torch.library.custom_op(f"{LIBRARY}::extremes", mutates_args=())
def extremes(
    x: Tensor, limits: list[float], layout: str, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Has arguments of many types, and one that is called as one of torch's own ops."""
    assert layout == "both"
    assert bias is None
    return x.clamp(max=limits[0]), x.clamp(min=limits[1])


@extremes.register_fake
def _(x: Tensor, limits: list[float], layout: str, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op(f"{LIBRARY}::pieces", mutates_args=())
def pieces(x: Tensor) -> list[Tensor]:
    """Returns a list."""
    return [x[:2].clone(), x[2:].clone()]


@pieces.register_fake
def _(x: Tensor) -> list[Tensor]:
    return [x.new_empty(2, *x.shape[1:]), x.new_empty(x.shape[0] - 2, *x.shape[1:])]


@torch.library.custom_op(
    f"{LIBRARY}::noise", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def noise(x: Tensor) -> Tensor:
    """Draws from torch's generator."""
    return x + torch.randn(x.shape)


@noise.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


_FRAGMENT = torch.library.Library(LIBRARY, "FRAGMENT")
_FRAGMENT.define("without_first(Tensor(a) x) -> Tensor(a)")
_FRAGMENT.impl("without_first", lambda x: x[1:], "CompositeExplicitAutograd")

OPS = getattr(torch.ops, LIBRARY)
