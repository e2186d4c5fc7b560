"""Constants that `forward` keeps in plain attributes, or makes of buffers."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import autopar
from autopar.base.errors import InvalidInputError
from autopar.frontend.torch import capture
from autopar.runtime.api import run
from autopar.runtime.training.opening import open_trainer

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Mapping:
    """A plain object with constants that the first call makes."""

    def __init__(self, config: dict[int, int]) -> None:
        self.config = config

    @functools.cached_property
    def scales(self) -> Tensor:
        scales = torch.zeros(6)
        for key, value in self.config.items():
            scales[key] = value
        return scales

    @functools.cached_property
    def order(self) -> Tensor:
        return torch.tensor([self.config[key] for key in sorted(self.config)])


class Pair(NamedTuple):
    """Two tensors."""

    cos: Tensor
    sin: Tensor


class Model(nn.Module):
    """Holds what a test wants `forward` to use."""

    table: Tensor | None
    unset: Tensor | None
    tied: Tensor

    def __init__(self, does: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__()
        self.does = does
        self.linear = nn.Linear(6, 6)
        self.mapping = Mapping({1: 5, 2: 3, 4: 0})
        self.anchors = [torch.arange(6.0), torch.ones(6)]
        self.swapped = {"a": torch.ones(6), "b": torch.zeros(6)}
        self.pair: Pair | None = None
        self.count = torch.zeros(())
        self.last: Tensor | None = None
        self.cache: dict[str, Tensor] = {}
        self.items: list[Tensor] = []
        self.longest = 0
        self.register_buffer("table", torch.zeros(2, 6), persistent=False)
        self.register_buffer("unset", None, persistent=False)
        self.register_buffer("kept", torch.zeros(2, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.does(self, self.linear(x))


def cached(model: Model, x: Tensor) -> Tensor:
    return (x * model.mapping.scales)[:, model.mapping.order]


def moved(model: Model, x: Tensor) -> Tensor:
    model.anchors = [each.to(x.dtype) for each in model.anchors]
    return x * model.anchors[0] + model.anchors[1]


def widened(model: Model, x: Tensor) -> Tensor:
    model.anchors = [each.to(torch.float64) for each in model.anchors]
    return (x * model.anchors[0]).float()


def lazily(model: Model, x: Tensor) -> Tensor:
    if model.pair is None:
        model.pair = Pair(torch.arange(6.0).cos(), torch.arange(6.0).sin())
    cos, sin = model.pair
    if "mask" not in model.cache:
        model.cache["mask"] = torch.full((4, 6), -torch.inf).triu(5)
    return (x * cos + model.pair.sin * sin + model.cache["mask"]).exp()


def positions(length: int) -> Tensor:
    return torch.arange(float(length))[:, None] * torch.ones(6)


def grown(model: Model, x: Tensor) -> Tensor:
    assert model.table is not None
    if model.table.shape[0] < x.shape[0]:
        model.table = positions(x.shape[0])
    return x + model.table[: x.shape[0]]


def grown_once(model: Model, x: Tensor) -> Tensor:
    if model.longest < x.shape[0]:
        model.longest = x.shape[0]
        model.register_buffer("table", positions(x.shape[0]), persistent=False)
    if model.unset is None:
        model.unset = positions(x.shape[0])
        model.unset[:, 2] = 7
    assert model.table is not None
    return x + model.table * model.unset


def turned(model: Model, x: Tensor) -> Tensor:
    """By angles that a complex table holds with more bits than files of weights know."""
    if model.unset is None:
        model.unset = torch.polar(torch.ones(3).double(), torch.arange(3.0).double())
    pairs = torch.view_as_complex(x.double().reshape(4, 3, 2)) * model.unset
    if "turn" not in model.cache:
        model.cache["turn"] = torch.polar(torch.ones(4, 1).double(), torch.ones(4, 1).double())
    return torch.view_as_real(pairs * model.cache["turn"].conj()).flatten(1).to(x.dtype)


KEPT = (cached, moved, widened, lazily, grown, grown_once, turned)


@pytest.mark.parametrize("does", KEPT)
def test_a_program_computes_what_every_call_computes(
    does: Callable[[Model, Tensor], Tensor], tmp_path: Path
) -> None:
    model = Model(does)
    before = dict(vars(model))
    buffers = dict(model.named_buffers())
    step = autopar.compile(model, (X,), mesh="2", strategy="fsdp")
    assert vars(model) == before
    assert all(each is buffers[name] for name, each in model.named_buffers())
    assert set(vars(model.mapping)) == {"config"}
    assert not model.cache
    assert not step.serial.main.aliases
    step.save(tmp_path / "build")
    (found,) = run(tmp_path / "build", [X], virtual=True).values()
    for _ in range(3):
        torch.testing.assert_close(found, model(X))


@pytest.mark.parametrize("does", [cached, lazily, grown_once, turned])
def test_training_goes_on_as_it_does_eagerly(
    does: Callable[[Model, Tensor], Tensor], tmp_path: Path
) -> None:
    model = Model(does)
    eager = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (model, eager)]
    loss = nn.MSELoss()
    batch = (X, torch.ones_like(does(eager, X)))
    step = autopar.compile(model, batch, mesh="2", loss=loss, optimizer=optimizers[0])
    step.save(tmp_path / "build")
    trainer = open_trainer(tmp_path / "build", virtual=True)
    for _ in range(3):
        optimizers[1].zero_grad()
        expected = loss(eager(batch[0]), batch[1])
        expected.backward()
        optimizers[1].step()
        torch.testing.assert_close(float(trainer.step(batch)), expected.item())


def counted(model: Model, x: Tensor) -> Tensor:
    model.count = model.count + 1
    return x * model.count


def counted_late(model: Model, x: Tensor) -> Tensor:
    model.last = torch.zeros(()) if model.last is None else model.last + 1
    return x * model.last


def turned(model: Model, x: Tensor) -> Tensor:
    swapped = model.swapped
    swapped["a"], swapped["b"] = swapped["b"], swapped["a"]
    return x * swapped["a"]


def appended(model: Model, x: Tensor) -> Tensor:
    model.items.append(torch.ones(6))
    return x * torch.stack(model.items).sum(0)


def replaced(model: Model, x: Tensor) -> Tensor:
    """The first call has another result than later ones."""
    result = x * model.count
    model.count = torch.tensor(2.0)
    return result


def rounded(model: Model, x: Tensor) -> Tensor:
    model.anchors = [(each + 0.3).to(torch.int64) for each in model.anchors]
    model.anchors[0] += 1
    return x * model.anchors[0]


def of_the_batch(model: Model, x: Tensor) -> Tensor:
    if model.last is None:
        model.last = x.detach()
    return x + model.last


def of_a_weight(model: Model, x: Tensor) -> Tensor:
    if model.last is None:
        model.last = model.linear.bias.detach() * 2
    return x + model.last


def drawn(model: Model, x: Tensor) -> Tensor:
    if model.last is None:
        model.last = torch.rand(6)
    return x + model.last


@pytest.mark.parametrize(
    ("does", "attribute"),
    [
        (counted, "count"),
        (counted_late, "last"),
        (turned, "swapped"),
        (appended, "items"),
        (replaced, "count"),
        (rounded, "anchors"),
        (of_the_batch, "last"),
        (of_a_weight, "last"),
        (drawn, "last"),
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_what_changes_from_call_to_call_is_refused(
    does: Callable[[Model, Tensor], Tensor], attribute: str, training: bool
) -> None:
    model = Model(does)
    kept = copy.deepcopy({name: each for name, each in vars(model).items() if name != "does"})
    with pytest.raises(InvalidInputError, match=f"left in the attribute '{attribute}'"):
        compiled(model, training)
    torch.testing.assert_close(model.count, kept["count"])
    assert model.last is None
    assert not model.items


def compiled(model: Model, training: bool) -> None:
    if training:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch = (X, torch.zeros(4, 6))
        autopar.compile(model, batch, mesh="2", loss=nn.MSELoss(), optimizer=optimizer)
    else:
        capture(model, X)


def ever_longer(model: Model, x: Tensor) -> Tensor:
    assert model.table is not None
    model.table = positions(model.table.shape[0] + 1)
    return x + model.table[-1]


def of_other_numbers(model: Model, x: Tensor) -> Tensor:
    assert model.table is not None
    if model.table.shape[0] == 2:
        model.table = positions(4)
    else:
        model.table = model.table + 1
    return x + model.table


def in_the_state(model: Model, x: Tensor) -> Tensor:
    model.kept = positions(4)
    return x + model.kept


def of_batch_and_size(model: Model, x: Tensor) -> Tensor:
    model.table = x.detach()
    return x + model.table


@pytest.mark.parametrize(
    ("does", "buffer"),
    [
        (ever_longer, "table"),
        (of_other_numbers, "table"),
        (in_the_state, "kept"),
        (of_batch_and_size, "table"),
    ],
)
def test_tables_that_are_others_after_each_call_are_refused(
    does: Callable[[Model, Tensor], Tensor], buffer: str
) -> None:
    with pytest.raises(InvalidInputError, match=rf"forward makes .* of buffer '{buffer}'"):
        capture(Model(does), X)


def noted(model: Model, x: Tensor) -> Tensor:
    """Leaves constants and others, and reads none."""
    model.pair = Pair(x * 2, torch.ones(6))
    model.last = torch.rand(6)
    model.items = [torch.ones(6), x]
    return x


def test_what_is_only_noted_does_no_harm() -> None:
    assert len(capture(Model(noted), X).program.main.ops) == len(
        capture(Model(lambda _, x: x), X).program.main.ops
    )


class Keeping(nn.Module):
    """Keeps what it made for a width."""

    @functools.lru_cache(maxsize=4)  # noqa: B019 - as models have it
    def places(self, width: int) -> Tensor:
        return torch.arange(width) / width

    def forward(self, x: Tensor) -> Tensor:
        return x + self.places(x.shape[1])


def test_what_python_keeps_of_calls_is_computed_anew(tmp_path: Path) -> None:
    """A trace runs code more than once, and what is kept of the user's own calls stays usable."""
    model = Keeping()
    expected = model(X)
    autopar.compile(model, (X,), mesh="2", strategy="none").save(tmp_path / "build")
    (found,) = run(tmp_path / "build", [X], virtual=True).values()
    assert torch.equal(torch.as_tensor(found), expected)
    assert torch.equal(model(X), expected)
    assert Keeping.places.cache_info().hits == 1
