"""What a loss is divided by where a batch is cut: numbers of all of it, or of a microbatch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar.base.errors import InvalidInputError
from autopar.frontend.torch import Captured, Recipe, capture
from tests.judges.steps import Steps

Loss = Callable[[Tensor, Tensor], Tensor]

IGNORED = -1
WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.1, 1.5])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(torch.tanh(self.first(x)))
        return out


def batch_of(rows: int) -> tuple[Tensor, Tensor]:
    """Returns sequences of which targets are ignored: more of some than of others, all of two."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, 4, generator=generator)
    target = torch.randint(0, 5, (rows, 3), generator=generator)
    target[torch.rand(rows, 3, generator=generator) < 0.5] = IGNORED
    target[:2], target[2] = IGNORED, torch.tensor([1, 2, 3])
    return x, target


def tokens(out: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, 1), target.flatten(), ignore_index=IGNORED)


def weighted(out: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, 1), target.flatten(), weight=WEIGHT, ignore_index=IGNORED)


def in_two_dimensions(out: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(out.transpose(1, 2), target, ignore_index=IGNORED)


def smoothed(out: Tensor, target: Tensor) -> Tensor:
    flat = out.flatten(0, 1), target.flatten()
    return F.cross_entropy(*flat, ignore_index=IGNORED, label_smoothing=0.1)


def smoothed_and_weighted(out: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(
        *(out.flatten(0, 1), target.flatten()),
        weight=WEIGHT,
        ignore_index=IGNORED,
        label_smoothing=0.1,
    )


def weighted_by_hand(out: Tensor, target: Tensor) -> Tensor:
    weights = WEIGHT[target.clamp(min=0)]
    return (out.logsumexp(-1) * weights).sum() / weights.sum()


def shifted_with_a_mean(out: Tensor, target: Tensor) -> Tensor:
    return tokens(out[:, :-1].float(), target[:, 1:]) + 0.01 * out.square().mean()


def masked(out: Tensor, target: Tensor) -> Tensor:
    mask = (target != IGNORED).float()
    return (out.logsumexp(-1) * mask).sum() / mask.sum().clamp(min=1)


def summed(out: Tensor, target: Tensor) -> Tensor:
    flat = out.flatten(0, 1), target.flatten()
    return F.cross_entropy(*flat, reduction="sum", ignore_index=IGNORED) + 0.5 * out.square().sum()


def divided_by_its_rows(out: Tensor, target: Tensor) -> Tensor:
    return out.square().sum() / len(out)


def of_probabilities(out: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, 1), F.one_hot(target.flatten() + 1, 6)[:, 1:].float())


def by_place(out: Tensor, target: Tensor) -> Tensor:
    """Its denominator reads nothing of a batch."""
    places = torch.arange(3).expand(len(out), 3)
    return F.cross_entropy(out.transpose(1, 2), places, weight=WEIGHT)


def captured(loss: Loss, rows: int, model: nn.Module | None = None, **options: Any) -> Captured:
    model = model or Net()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    recipe = Recipe(loss, optimizer=optimizer, accumulate=4, **options)
    return capture(model, batch_of(rows), recipe)


def told(found: Captured) -> list[str]:
    return [entry.detail for entry in found.report if entry.category == "per microbatch"]


@pytest.mark.parametrize(
    "loss",
    [
        tokens,
        weighted,
        in_two_dimensions,
        smoothed,
        smoothed_and_weighted,
        weighted_by_hand,
        shifted_with_a_mean,
        masked,
        summed,
        divided_by_its_rows,
        of_probabilities,
        by_place,
    ],
)
@pytest.mark.parametrize("rows", [8, 7])
def test_a_step_is_that_of_the_whole_batch(loss: Loss, rows: int) -> None:
    torch.manual_seed(0)
    model, batch = Net(), batch_of(rows)
    found = captured(loss, rows, model, loss_denominator="batch")
    steps = Steps(found)
    expected = loss(model(batch[0]), batch[1])
    expected.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(steps.take(batch), expected.detach(), rtol=1e-5, atol=0)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        taken = parameter.detach() - steps.stored[name]
        torch.testing.assert_close(taken, parameter.grad, rtol=1e-5, atol=1e-5)
    assert not told(found)


@pytest.mark.parametrize("loss", [tokens, weighted, masked])
def test_targets_are_counted_by_as_many_ops_whatever_there_are_of_microbatches(loss: Loss) -> None:
    model = Net()
    counts = set()
    for number in (2, 16):
        recipe = Recipe(loss, optimizer=torch.optim.SGD(model.parameters()), accumulate=number)
        counts.add(len(capture(model, batch_of(32), recipe).program.main.ops))
    assert len(counts) == 1


def test_in_double_precision_denominators_are_too() -> None:
    x, target = batch_of(7)
    model, weight = Net().double(), WEIGHT.double() / 3

    def precise(out: Tensor, target: Tensor) -> Tensor:
        flat = out.flatten(0, 1), target.flatten()
        return F.cross_entropy(*flat, weight=weight, ignore_index=IGNORED)

    recipe = Recipe(precise, optimizer=torch.optim.SGD(model.parameters(), 1.0), accumulate=4)
    taken = Steps(capture(model, (x.double(), target), recipe)).take((x.double(), target))
    expected = precise(model(x.double()), target).detach()
    torch.testing.assert_close(taken, expected, rtol=1e-13, atol=0)


def test_a_scale_and_clipping_go_with_it() -> None:
    torch.manual_seed(0)
    model, batch = Net(), batch_of(7)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    steps = Steps(captured(tokens, 7, model, scaler=scaler, clip_grad_norm=0.1))
    tokens(model(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    steps.take(batch)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        taken = parameter.detach() - steps.stored[name]
        torch.testing.assert_close(taken, parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", [tokens, summed])
def test_a_step_may_be_the_mean_of_its_microbatches(loss: Loss) -> None:
    torch.manual_seed(0)
    model, (x, target) = Net(), batch_of(7)
    target = target.clamp(min=0)
    steps = Steps(captured(loss, 7, model, loss_denominator="microbatch"))
    expected = torch.zeros(())
    for part, wanted in zip(x.tensor_split(4), target.tensor_split(4), strict=True):
        value = loss(model(part), wanted) * len(part) / len(x)
        value.backward()  # type: ignore[no-untyped-call]
        expected += value.detach()
    torch.testing.assert_close(steps.take((x, target)), expected, rtol=1e-5, atol=0)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        taken = parameter.detach() - steps.stored[name]
        torch.testing.assert_close(taken, parameter.grad, rtol=1e-5, atol=1e-5)


def root(out: Tensor, target: Tensor) -> Tensor:
    return out.square().mean().sqrt()


def shared_out(out: Tensor, target: Tensor) -> Tensor:
    scores = out.sum(-1).flatten()
    return (scores * torch.softmax(scores, 0)).sum()


def by_total(out: Tensor, target: Tensor) -> Tensor:
    mask = (target != IGNORED).float()
    return (out.sum(-1) * (mask / mask.sum())).sum()


def sum_and_mean(out: Tensor, target: Tensor) -> Tensor:
    return out.square().sum() + out.square().mean()


def over_own_count(out: Tensor, target: Tensor) -> Tensor:
    mask = (out > 0).all(-1).float()
    return (out.sum(-1) * mask).sum() / mask.sum()


def twice(out: Tensor, target: Tensor) -> Tensor:
    loss = tokens(out, target.clamp(min=0))
    return loss + loss**2


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (root, "what it is divided by can't be read off its code"),
        (shared_out, "its elements aren't made of each row by itself"),
        (by_total, "its elements aren't made of each row by itself"),
        (sum_and_mean, "or it is added to means"),
        (over_own_count, "can't be read off its code"),
    ],
)
def test_what_cannot_be_told_is_said_or_refused(loss: Loss, why: str) -> None:
    assert [why in detail for detail in told(captured(loss, 8))] == [True]
    with pytest.raises(InvalidInputError, match=rf"loss_denominator='batch': .*\.py:\d+.*{why}"):
        captured(loss, 8, loss_denominator="batch")


def test_a_term_that_goes_into_another_one_stays_as_it_is() -> None:
    torch.manual_seed(0)
    model, (x, target) = Net(), batch_of(8)
    found = captured(twice, 8, model)
    pairs = zip(x.chunk(4), target.chunk(4), strict=True)
    expected = torch.stack([twice(model(part), wanted) for part, wanted in pairs]).mean()
    torch.testing.assert_close(Steps(found).take((x, target)), expected.detach())
    assert len(told(found)) == 2


def test_no_other_word_is_taken() -> None:
    with pytest.raises(InvalidInputError, match="'auto' or 'batch' or 'microbatch'"):
        captured(tokens, 8, loss_denominator="rows")


def test_the_report_of_a_compiled_step_tells() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    options: dict[str, Any] = {"mesh": 2, "strategy": None, "optimizer": optimizer, "loss": root}
    compiled = autopar.compile(model, batch_of(8), accumulate=4, **options)
    assert "per microbatch" in {entry.category for entry in compiled.report}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["data:0", "fsdp:0", "tensor:0"])
def test_meshes_and_short_batches_have_the_losses_of_whole_batches(
    tmp_path: Path, strategy: str
) -> None:
    torch.manual_seed(0)
    model, batches = Net(), [batch_of(8), batch_of(7), batch_of(8)]
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    autopar.compile(
        model,
        batches[0],
        mesh=2,
        strategy=strategy,
        loss=weighted,
        optimizer=optimizer,
        accumulate=4,
        loss_denominator="batch",
        more_batches=[batches[1]],
    ).save(tmp_path / "build")
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        found = [float(trainer.step(batch)) for batch in batches]
    expected = []
    for x, target in batches:
        optimizer.zero_grad()
        loss = weighted(model(x), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        expected.append(loss.item())
    assert found == pytest.approx(expected, rel=1e-5)
