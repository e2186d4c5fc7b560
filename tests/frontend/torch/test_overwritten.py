"""Parameters that `forward` overwrites, and what it caches of buffers: trained as PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autopar
from autopar.base.errors import InvalidInputError
from autopar.frontend.torch import Recipe, capture

Does = Callable[["Model", Tensor], Tensor]
Optimize = Callable[[Any], torch.optim.Optimizer]


class Model(nn.Module):
    """Does what a test wants."""

    usage: Tensor
    sums: Tensor

    def __init__(self, does: Does) -> None:
        super().__init__()
        self.does = does
        self.up, self.down = nn.Linear(6, 6), nn.Linear(6, 5)
        self.rows = nn.Embedding(9, 6, max_norm=0.3)
        self.register_buffer("usage", torch.rand(8) + 0.05)
        self.register_buffer("sums", torch.randn(8, 6))
        self.codes: Tensor | None = None
        self.kept: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        return self.does(self, x).pow(2).mean()


def made(does: Does) -> Model:
    """Returns a model in float64, always the same."""
    torch.manual_seed(0)
    return Model(does).double()


def rows(number: int) -> Tensor:
    return torch.randn(12, 6, generator=torch.Generator().manual_seed(number)).double()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.05)


def check(does: Does, build: Path, optimize: Optimize = sgd, **options: Any) -> None:
    """Trains four steps with and without autopar, and compares."""
    model, expected = made(does), made(does)
    optimizer = optimize(expected.parameters())
    options = {"mesh": (2, 2), "strategy": "fsdp:0,tensor:1", **options}
    autopar.compile(model, rows(0), optimizer=optimize(model.parameters()), **options).save(build)
    with autopar.load(build, virtual=True) as trainer:
        for number in range(4):
            optimizer.zero_grad()
            loss = torch.zeros((), dtype=torch.float64)
            parts = rows(number).chunk(options.get("accumulate", 1))
            for part in parts:
                each = expected(part) / len(parts)
                each.backward()
                loss += each.detach()
            optimizer.step()
            assert (trainer.step(rows(number)) - loss).abs() < 1e-12
        found = trainer.state_dict()
        for name, tensor in expected.state_dict().items():
            assert (found[name] - tensor).abs().max() < 1e-12, name


def run(model: Model, x: Tensor) -> Tensor:
    found: Tensor = model.down(torch.tanh(model.up(x)))
    return found


def data(model: Model, x: Tensor) -> Tensor:
    model.up.weight.data.clamp_(-0.1, 0.1)
    return run(model, x)


def without_gradients(model: Model, x: Tensor) -> Tensor:
    with torch.no_grad():
        model.up.weight.clamp_(-0.1, 0.1)
        model.down.bias.mul_(0.5)
    return run(model, x)


def assigned(model: Model, x: Tensor) -> Tensor:
    model.up.weight.data = model.up.weight.data.clamp(-0.1, 0.1)
    return run(model, x)


def shortened(model: Model, x: Tensor) -> Tensor:
    with torch.no_grad():
        norms = model.up.weight.norm(dim=1, keepdim=True)
        model.up.weight.copy_(model.up.weight * (0.4 / norms).clamp(max=1.0))
    return run(model, x)


def between(model: Model, x: Tensor) -> Tensor:
    y = model.up(torch.tanh(model.up(x)))
    model.up.weight.data.mul_(0.5)
    return y


def renormalized(model: Model, x: Tensor) -> Tensor:
    looked_up: Tensor = model.rows(torch.arange(8).view(2, 4))
    return looked_up * run(model, x).mean()


def only_overwritten(model: Model, x: Tensor) -> Tensor:
    model.rows.weight.data.mul_(0.5)
    return run(model, x)


OVERWRITING = (data, without_gradients, assigned, shortened, between, renormalized)


@pytest.mark.parametrize("does", [*OVERWRITING, only_overwritten])
def test_overwritten_parameters_train_as_in_pytorch(does: Does, tmp_path: Path) -> None:
    check(does, tmp_path / "build")


@pytest.mark.parametrize("optimize", [sgd, adamw])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_with_other_optimizers_meshes_and_microbatches(
    optimize: Optimize, accumulate: int, tmp_path: Path
) -> None:
    check(data, tmp_path / "a", optimize, mesh=(3, 2), accumulate=accumulate)
    check(data, tmp_path / "b", optimize, mesh=4, strategy="fsdp", accumulate=accumulate)


@pytest.mark.parametrize("does", OVERWRITING)
def test_overwritten_parameters_in_a_loop_of_their_own(does: Does) -> None:
    expected = made(does)
    parallel = autopar.parallelize(made(does), rows(0), mesh=1)
    pairs = [(each, sgd(each.parameters())) for each in (expected, parallel)]
    for number in range(3):
        losses = []
        for model, optimizer in pairs:
            optimizer.zero_grad()
            losses.append(model(rows(number)))
            losses[-1].backward()
            optimizer.step()
        assert (losses[0] - losses[1]).abs() < 1e-12
    found = parallel.full_state_dict()
    for name, tensor in expected.state_dict().items():
        assert (found[name] - tensor).abs().max() < 1e-12, name


def differentiated(model: Model, x: Tensor) -> Tensor:
    model.up.weight.mul_(2)  # PyTorch refuses it too
    return run(model, x)


def buffered(model: Model, x: Tensor) -> Tensor:
    model.usage.add_(model.down.bias.sum())
    return run(model, x) * model.usage.sum()


def reshaped(model: Model, x: Tensor) -> Tensor:
    model.up.weight.data = model.up.weight.data[:3]
    return model.up(x)


@pytest.mark.parametrize(
    ("does", "problem"),
    [
        (differentiated, "forward writes to 'up.weight' what has a gradient.*a detached tensor"),
        (buffered, "forward writes to 'usage' what has a gradient"),
        (reshaped, r"assigns float64\[3, 6\] to \.data of a tensor, which is float64\[6, 6\]"),
    ],
)
def test_other_writes_are_refused(does: Does, problem: str) -> None:
    refused(does, problem)


def test_a_parameter_that_is_stored_in_more_bits_is_not_overwritten() -> None:
    with pytest.raises(InvalidInputError, match=r"'up.weight', which is stored in float32.*master"):
        captured(made(data).bfloat16(), rows(0).bfloat16(), master_dtype=torch.float32)


def cached(model: Model, x: Tensor) -> Tensor:
    if model.codes is None:
        model.codes = model.sums / model.usage.clamp(min=0.1)[:, None]
    found = run(model, x) @ model.down.weight
    nearest = torch.cdist(found, model.codes).argmin(-1)
    return found - nn.functional.embedding(nearest, model.codes)


def cached_in_a_dict(model: Model, x: Tensor) -> Tensor:
    if "codes" not in model.kept:
        model.kept["codes"] = model.sums.t() * 2
    return torch.tanh(model.up(x) @ model.kept["codes"])


def noted(model: Model, x: Tensor) -> Tensor:
    model.codes = model.sums * 2
    return run(model, x)


@pytest.mark.parametrize("does", [cached, cached_in_a_dict, noted])
def test_what_is_cached_of_buffers_is_made_in_each_call(does: Does, tmp_path: Path) -> None:
    check(does, tmp_path / "build")


def test_what_is_cached_follows_the_buffers_that_are_loaded(tmp_path: Path) -> None:
    def looked_up(model: Model, x: Tensor) -> Tensor:
        if model.codes is None:
            model.codes = model.sums / model.usage.clamp(min=0.1)[:, None]
        return torch.tanh(model.up(x) @ model.codes.t())

    check(looked_up, tmp_path / "build")
    fresh = made(looked_up)
    fresh.sums.mul_(3)
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        trainer.load_state_dict(fresh.state_dict())
        assert (trainer.step(rows(1)) - fresh(rows(1))).abs() < 1e-12


def written_later(model: Model, x: Tensor) -> Tensor:
    if model.codes is None:
        model.codes = model.sums * 2
    found: Tensor = model.up(x) @ model.codes.t()
    model.sums.mul_(0.9)
    return found


def trained(model: Model, x: Tensor) -> Tensor:
    if model.codes is None:
        model.codes = model.up.weight * 2
    return model.up(x) @ model.codes


def drawn(model: Model, x: Tensor) -> Tensor:
    if model.codes is None:
        model.codes = torch.rand_like(model.sums)
    return model.up(x) @ model.codes.t()


def decaying(model: Model, x: Tensor) -> Tensor:
    model.codes = model.sums * 2 if model.codes is None else model.codes * 0.9
    return model.up(x) @ model.codes.t()


def trained_too(model: Model, x: Tensor) -> Tensor:
    if model.codes is None:
        model.codes = model.sums * model.up.bias
    return model.up(x) @ model.codes.t()


def of_the_batch(model: Model, x: Tensor) -> Tensor:
    if model.codes is None:
        model.codes = model.sums * x.detach().mean(0)
    return model.up(x) @ model.codes.t()


def grown(model: Model, x: Tensor) -> Tensor:
    if model.codes is None:
        model.codes = model.sums * 2
    found: Tensor = model.up(x) @ model.codes.clone().t()
    model.codes.add_(1)
    return found


def every_other_call(model: Model, x: Tensor) -> Tensor:
    model.codes = model.sums * 2 if model.codes is None else None
    return model.up(x) if model.codes is None else model.up(x) @ model.codes.t()


def set_up(model: Model, x: Tensor) -> Tensor:
    if "ready" not in model.kept:
        model.kept["ready"] = torch.ones(())
        model.sums.copy_(x.detach()[:8])
    return model.up(x) @ model.sums.t()


def set_up_weights(model: Model, x: Tensor) -> Tensor:
    if not hasattr(model, "ready"):
        model.ready = True
        model.up.bias.data.copy_(x.mean(0))
    return model.up(x)


def first_batch(model: Model, x: Tensor) -> Tensor:
    if "ready" not in model.kept:
        model.kept["ready"] = torch.ones(())
        x.add_(1)
    return model.up(x)


@pytest.mark.parametrize(
    ("does", "problem"),
    [
        (trained_too, "left in the attribute 'codes', made of 'up.bias', which training changes;"),
        (of_the_batch, "left in the attribute 'codes'; a program keeps only buffers"),
        (grown, "left in the attribute 'codes'; a program keeps only buffers"),
        (every_other_call, "left in the attribute 'codes'; a program keeps only buffers"),
        (set_up, "writes to 'sums' in some calls and not in others.*call the model once before"),
        (set_up_weights, "writes to 'up.bias' in some calls and not in others"),
        (first_batch, "writes to tensor 0 of the batch in some calls"),
        (written_later, "left in the attribute 'codes', made of 'sums', which forward writes to;"),
        (trained, "left in the attribute 'codes', made of 'up.weight', which training changes;"),
        (drawn, "left in the attribute 'codes'; a program keeps only buffers"),
        (decaying, "left in the attribute 'codes'; a program keeps only buffers"),
    ],
)
def test_what_changes_from_call_to_call_is_refused(does: Does, problem: str) -> None:
    refused(does, problem)


def refused(does: Does, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        captured(made(does), rows(0))


def captured(model: nn.Module, x: Tensor, **options: Any) -> None:
    capture(model, x, Recipe(optimizer=sgd(model.parameters()), **options))
