"""Indices that are out of range are refused before anything is computed, by all ranks alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import autopar
from autopar.base.errors import InvalidInputError
from autopar.ir.text.parse import parse_program
from autopar.runtime.ports.index_bounds import IndexBounds
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.trainer import Trainer
from tests.runtime.job.real import run_ranks
from tests.runtime.ports import indexing

SIZE, LENGTH = 4000, 6
IDS = torch.arange(4 * LENGTH).reshape(4, LENGTH)
LABELS = IDS.flip(0)


class Model(nn.Module):
    """Looks ids up in two tables, in one of them from both ends."""

    places: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(SIZE, 32)
        self.register_buffer("places", torch.randn(LENGTH, 32))
        self.head = nn.Linear(32, SIZE)

    def forward(self, ids: Tensor, at: Tensor) -> Tensor:
        y: Tensor = self.head(self.table(ids) + self.places[at])
        return y


def shifted(model: nn.Module, batch: Any) -> Tensor:
    """Returns the loss of the next token, as language models have it."""
    logits = model(batch["ids"], batch["at"])
    labels = nn.functional.pad(batch["labels"], (0, 1), value=-100)[..., 1:]
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


def batch_of(**changed: tuple[tuple[int, int], int]) -> dict[str, Tensor]:
    """Returns a batch, in which tensors have another number at a place."""
    batch = {"ids": IDS.clone(), "labels": LABELS.clone(), "at": IDS % LENGTH}
    for name, (place, number) in changed.items():
        batch[name][place] = number
    return batch


def build_of(folder: Path, mesh: str = "tp=2", **options: Any) -> Path:
    torch.manual_seed(0)
    model = Model()
    autopar.compile(
        model,
        batch_of(),
        mesh=mesh,
        training_step=shifted,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        **options,
    ).save(folder)
    return folder


SPLIT = {"strategy": "none", "shard": {"*table.weight": ["tp", -1], "*head.weight": ["tp", -1]}}
"""Ranks hold parts of the table, in which no index is out of range for them."""

KINDS: dict[str, dict[str, Any]] = {
    "split": SPLIT,
    "whole": {"strategy": "data:tp"},
    "microbatches": {"strategy": "data:tp", "accumulate": 2},
}


@pytest.fixture(params=KINDS)
def trainer(request: pytest.FixtureRequest, tmp_path: Path) -> Trainer:
    build = build_of(tmp_path / "b", **KINDS[request.param])
    return open_trainer(build, virtual=True)


def test_they_are_refused_and_the_next_batch_trains(trainer: Trainer) -> None:
    first = float(trainer.step(batch_of()))
    before = trainer.state_dict()
    for changed, said in (
        ({"ids": ((0, 0), SIZE)}, r"4000 is out of range in 'ids': aten.embedding.default at .*"),
        ({"ids": ((3, 5), -1)}, "-1 is out of range in 'ids'"),
        ({"labels": ((1, 2), SIZE + 7)}, "4007 is out of range in 'labels'"),
        ({"labels": ((1, 2), -5)}, "-5 is out of range in 'labels'"),
        ({"at": ((0, 0), LENGTH)}, "6 is out of range in 'at'.* has 6 entries, -6 to 5"),
        ({"at": ((0, 0), -LENGTH - 1)}, "-7 is out of range in 'at'"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            trainer.step(batch_of(**changed))
    after = trainer.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert trainer.steps == 1
    assert float(trainer.step(batch_of())) < first


def test_what_is_not_looked_up_may_be_anything(trainer: Trainer) -> None:
    losses = [
        float(trainer.step(batch_of(**changed)))
        for changed in (
            {"labels": ((0, 0), 99999)},
            {"labels": ((1, 2), -100)},
            {"at": ((0, 0), -1)},
        )
    ]
    assert all(0 < loss < 20 for loss in losses)


def test_one_rank_alone_is_named_and_all_go_on(tmp_path: Path) -> None:
    build = build_of(tmp_path / "b", **SPLIT)
    right, wrong = batch_of(), batch_of(ids=((0, 0), SIZE))
    (first, loss), (second, other) = run_ranks(2, indexing.steps, build, right, wrong)
    own = "4000 is out of range in 'ids'"
    assert [each.startswith(f"rank 1 was given a wrong batch: {own}") for each in first] == [
        True
    ] * 2
    assert all(each.startswith(own) for each in second)
    assert loss == other > 0


def test_parts_are_looked_at_as_far_as_they_tell(tmp_path: Path) -> None:
    build = build_of(tmp_path / "b", mesh="dp=2", strategy="data:dp")
    with open_trainer(build, virtual=True) as trainer:
        parts = [{n: t.chunk(2)[at] for n, t in batch_of().items()} for at in range(2)]
        trainer.step(parts, local=True)
        parts[1]["ids"][0, 0] = SIZE
        with pytest.raises(InvalidInputError, match="4000 is out of range in 'ids'"):
            trainer.step(parts, local=True)
        trainer.step(batch_of())


def test_batches_of_other_shapes(tmp_path: Path) -> None:
    short = {name: each[:2] for name, each in batch_of().items()}
    build = build_of(tmp_path / "b", **SPLIT, more_batches=[short])
    with open_trainer(build, virtual=True) as trainer:
        trainer.step(short)
        with pytest.raises(InvalidInputError, match="4000 is out of range in 'ids'"):
            trainer.step({**short, "ids": short["ids"] + SIZE})
        trainer.step(short)


def test_a_mask_among_indices_stands_for_several_dimensions() -> None:
    program = parse_program(
        """
        input %x: f32[2, 3, 9]
        input %mask: bool[2, 3]
        input %at: i64[6]
        %y: f32[6] = aten.index.Tensor(self=%x, indices=[%mask, %at])
        return %y
        """
    )
    mask, at = torch.ones(2, 3, dtype=torch.bool), torch.arange(3, 9)
    IndexBounds(program).check({"x": torch.ones(2, 3, 9), "mask": mask, "at": at})


class Ordered(nn.Module):
    """Looks up what it looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(SIZE, 2)

    def forward(self, ids: Tensor, order: Tensor) -> Tensor:
        y: Tensor = self.table(ids.gather(1, order))
        return y


def test_an_index_of_indices(tmp_path: Path) -> None:
    autopar.compile(Ordered(), (IDS, IDS % LENGTH), mesh=1).save(tmp_path / "b")
    with autopar.load(tmp_path / "b") as session:
        with pytest.raises(InvalidInputError, match=r"aten.gather.default .* out of bounds"):
            session(IDS, IDS)
        with pytest.raises(InvalidInputError, match="4000 is out of range in 'ids' and 'order'"):
            session(IDS + SIZE, IDS % LENGTH)
        assert session(IDS, IDS % LENGTH).shape == (4, LENGTH, 2)


def test_requests(tmp_path: Path) -> None:
    autopar.compile(Model(), (IDS, IDS % LENGTH), mesh=1).save(tmp_path / "b")
    with autopar.load(tmp_path / "b") as session:
        with pytest.raises(InvalidInputError, match="6 is out of range in 'at'"):
            session(IDS, IDS)
        assert session(IDS, IDS % LENGTH).shape == (4, LENGTH, SIZE)


def test_parallel_modules() -> None:
    torch.manual_seed(0)
    model = Model()
    module = autopar.parallelize(model, (IDS, IDS % LENGTH), mesh="1")
    with pytest.raises(InvalidInputError, match="4000 is out of range in 'ids'"):
        module(IDS + SIZE - 23, IDS % LENGTH)
    with pytest.raises(InvalidInputError, match="4000 is out of range in 'ids'"):
        module(IDS[:2] + SIZE - 11, IDS[:2] % LENGTH)
    found = module(IDS[:2], IDS[:2] % LENGTH)
    torch.testing.assert_close(found, model(IDS[:2], IDS[:2] % LENGTH))


class Quantized(nn.Module):
    """Looks up, and writes, what it makes of numbers: whether it is there, nobody knows before."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        at = x.round().long()
        spread = torch.zeros(9, 4).index_add(0, at, torch.ones(3, 4)) * self.table
        wrapped = self.table[at - 9]
        picked = self.table.gather(0, at[:, None])
        return nn.functional.embedding(at, self.table), spread, wrapped, picked


def test_numbers_that_become_indices(tmp_path: Path) -> None:
    right, wrong = torch.tensor([0.0, 8.0, 5.1]), torch.tensor([0.0, 9.0, 5.1])
    model = Quantized()
    options: dict[str, Any] = {"strategy": "none", "shard": {"*table": ["tp", -1]}}
    autopar.compile(model, (right,), mesh="tp=2", **options).save(tmp_path / "b")
    said = run_ranks(2, indexing.requests, tmp_path / "b", right, wrong)
    for found, refusal in said:
        assert found == [each.tolist() for each in model(right)]
        assert "an index is out of range: there are 9 entries" in refusal
