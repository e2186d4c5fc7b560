"""Flops of single ops and of their gradients beside those that torch counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import autopar
from autopar.cost import Cluster, evaluate
from autopar.frontend.torch import Recipe, capture


class Scaled(nn.Module):
    """A module behind a parameter, so that its input has a gradient."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.scale = module, nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.module(x * self.scale)
        return found


CONVOLUTIONS: list[tuple[type[nn.Module], dict[str, Any], tuple[int, ...]]] = [
    (nn.Conv1d, {"kernel_size": 3}, (9,)),
    (nn.Conv2d, {"kernel_size": 1}, (8, 7)),
    (nn.Conv2d, {"kernel_size": 1, "stride": 2, "bias": False}, (8, 7)),
    (nn.Conv2d, {"kernel_size": 3, "stride": 2, "padding": 1}, (8, 8)),
    (nn.Conv2d, {"kernel_size": (3, 2), "dilation": 2}, (8, 8)),
    (nn.Conv2d, {"kernel_size": 8}, (8, 8)),
    (nn.Conv3d, {"kernel_size": 3}, (5, 6, 7)),
    (nn.ConvTranspose1d, {"kernel_size": 3}, (9,)),
    (nn.ConvTranspose2d, {"kernel_size": 2, "stride": 2}, (8, 8)),
    (
        nn.ConvTranspose2d,
        {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1},
        (4, 4),
    ),
]


def torch_counts(module: nn.Module, x: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        module(x).sum().backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("first", [False, True], ids=["within", "first"])
@pytest.mark.parametrize(("kind", "options", "size"), CONVOLUTIONS)
def test_a_convolution_and_its_gradients(
    kind: Callable[..., nn.Module], options: dict[str, Any], size: tuple[int, ...], first: bool
) -> None:
    module, x = kind(8, 4, **options), torch.randn(2, 8, *size)
    trained = module if first else Scaled(module)
    expected = torch_counts(trained, x)
    assert autopar.profile(trained, x).flops == expected > 0
    recipe = Recipe(loss=lambda y, _: y.sum(), optimizer=torch.optim.SGD(trained.parameters(), 0.1))
    captured = capture(trained, (x, x), recipe)
    assert evaluate(captured.program, Cluster.load("cpu")).flops == expected


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_a_convolution_in_groups_multiplies_in_each_group(kind: Callable[..., nn.Module]) -> None:
    # Torch's counter has the weight's gradient of one group.
    x = torch.randn(2, 8, 6, 6)
    apart = [kind(2, 2, 3, padding=1) for _ in range(4)]
    expected = sum(torch_counts(Scaled(each), x[:, :2]) for each in apart)
    together = Scaled(kind(8, 8, 3, padding=1, groups=4))
    assert autopar.profile(together, x).flops == expected


class Experts(nn.Module):
    """Rows times the matrix of their group."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(groups, 16, 32))
        self.ends: Tensor
        self.register_buffer("ends", torch.arange(1, groups + 1, dtype=torch.int32) * 8 // groups)

    def forward(self, x: Tensor) -> Tensor:
        return torch._grouped_mm(x, self.weight, offs=self.ends)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_rows_are_multiplied_by_their_own_expert_alone(groups: int) -> None:
    found = autopar.profile(Experts(groups), torch.randn(8, 16), backward=True)
    assert found.flops == 2 * 2 * 8 * 16 * 32  # x needs no gradient
