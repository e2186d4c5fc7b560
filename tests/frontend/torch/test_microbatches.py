"""A step in microbatches is the step of the whole batch, whether its rows divide or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch import Recipe, capture
from autopar.frontend.torch.step.microbatches import cut_batch
from tests.judges.steps import Steps

Loss = Callable[[Tensor, Tensor], Tensor]


class Net(nn.Module):
    """Two layers around a batch norm, if there is one."""

    def __init__(self, normalized: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8) if normalized else nn.Identity()
        self.second = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.norm(self.first(x))))


def batch_of(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, size, generator=generator) for size in (4, 5))  # type: ignore[return-value]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 0.01)


def check(
    model: nn.Module, batches: list[tuple[Tensor, Tensor]], loss: Loss, **options: Any
) -> None:
    """Checks the losses and parameters of a step in microbatches against those of whole batches."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    steps = Steps(capture(model, batches[0], Recipe(loss, optimizer=optimizer, **options)))
    for x, target in batches:
        optimizer.zero_grad()
        expected = loss(model(x), target)
        expected.backward()
        if limit := options.get("clip_grad_norm"):
            nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        torch.testing.assert_close(steps.take((x, target)), expected.detach(), rtol=1e-5, atol=0)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(steps.stored[name], parameter.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rows", "count"), [(7, 4), (8, 4), (5, 4), (7, 2), (7, 7)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip_grad_norm": 0.1},
        {"scaler": torch.amp.GradScaler("cpu", init_scale=512.0)},
    ],
)
def test_parts_are_weighted_by_their_rows(rows: int, count: int, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    batches = [batch_of(rows, seed) for seed in range(2)]
    check(Net(), batches, F.mse_loss, accumulate=count, **options)


def test_batch_norm_takes_statistics_per_microbatch_in_their_order() -> None:
    torch.manual_seed(0)
    model, (x, target) = Net(normalized=True), batch_of(8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    steps = Steps(
        capture(model, (x, target), Recipe(F.mse_loss, optimizer=optimizer, accumulate=3))
    )
    found, expected = steps.take((x, target)), torch.zeros(())
    for part, wanted in zip(x.tensor_split(3), target.tensor_split(3), strict=True):
        loss = F.mse_loss(model(part), wanted) * len(part) / len(x)
        loss.backward()
        expected += loss.detach()
    optimizer.step()
    torch.testing.assert_close(found, expected)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(steps.stored[name], tensor, rtol=1e-5, atol=1e-6)


class Printing(nn.Module):
    """Holds a constant as large as its batch, and writes to what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        ranks = torch.tensor([[0.5 * row] for row in range(len(x))])
        out: Tensor = self.layer(x) + ranks
        return out


def test_code_may_hold_other_constants_for_each_size() -> None:
    torch.manual_seed(0)
    model, (x, target) = Printing(), batch_of(7)
    recipe = Recipe(F.mse_loss, optimizer=adamw(model), accumulate=4, fetch=("output",))
    steps = Steps(capture(model, (x, target), recipe))
    steps.take((x, target))
    expected = torch.cat([model(part) for part in x.tensor_split(4)])
    torch.testing.assert_close(steps.outputs["output"], expected.detach())


def test_a_forward_pass_is_cut_too() -> None:
    model, (x, _) = Net().eval(), batch_of(7)
    captured = capture(model, x, Recipe(accumulate=3))
    assert {op.microbatch for op in captured.program.main.ops} == {0, 1, 2}


class Moody(nn.Module):
    """Returns one more result for a single row."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x + 1, x + 2) if len(x) == 1 else (x + 1,)


@pytest.mark.parametrize(
    ("model", "batch", "recipe", "message"),
    [
        (
            Net(),
            torch.ones(3, 4),
            {"accumulate": 4},
            r"accumulate=4 cuts the first dimension of 'x', of shape \[3, 4\], which has no 4 rows",
        ),
        (
            nn.Bilinear(4, 4, 2),
            (torch.ones(7, 4), torch.ones(8, 4)),
            {"accumulate": 4},
            "accumulate=4 doesn't divide the first dimension of 'input1', 7, and that of 'input2'"
            " is 8: which rows belong together can't be told",
        ),
        (
            Net(normalized=True),
            torch.ones(7, 4),
            {"accumulate": 4},
            "accumulate=4 cuts a batch of 7 rows into microbatches of 2 and 1; of the latter: .*"
            "Expected more than 1 value per channel",
        ),
        (
            Moody(),
            torch.ones(7, 4),
            {"accumulate": 4},
            "what the model returns is output.0 for a microbatch of 2 rows, and output.0, output.1"
            " for one of 1",
        ),
    ],
)
def test_what_is_refused(
    model: nn.Module, batch: Any, recipe: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        capture(model, batch, Recipe(**recipe))


def test_ragged_microbatches_have_no_open_sizes() -> None:
    message = "accumulate=2 cuts a batch into parts of different sizes, and dynamic= leaves 'n'"
    with pytest.raises(InvalidInputError, match=message):
        capture(Net(), torch.ones(7, 3, 4), Recipe(accumulate=2), dynamic={"x": {1: "n"}})


def test_the_first_microbatches_have_one_row_more() -> None:
    for rows in range(4, 9):
        cut = cut_batch(["x"], [torch.ones(rows)], 4)
        sizes = [len(part) for part in torch.ones(rows).tensor_split(4)]
        assert [size for (size,) in cut.rows] == sizes
        assert sum(cut.weights) == pytest.approx(1)
        assert cut.ragged == (rows not in (4, 8))
