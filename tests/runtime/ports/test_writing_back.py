"""What `forward` writes to its batch is found there afterwards, as without a compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autopar
from autopar.base.errors import InvalidInputError
from autopar.runtime import run
from autopar.runtime.training.verdicts import NonFiniteLoss
from tests.runtime.job.real import run_ranks
from tests.runtime.ports import writing
from tests.runtime.ports.writing import Batch, batch_of, eager_step, off, part, writer

LITTLE = 1e-12


def compiled(model: nn.Module, build: Path, **options: Any) -> Path:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    autopar.compile(model, batch_of(0), optimizer=optimizer, **options).save(build)
    return build


@pytest.mark.parametrize("mesh", [(2, 2), (3, 2)])
@pytest.mark.parametrize("learns", [False, True])
def test_batches_are_left_as_pytorch_leaves_them(
    tmp_path: Path, mesh: tuple[int, ...], learns: bool
) -> None:
    model = writer(learns)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = ("labels", "before")
    options = {"strategy": "fsdp:0,tensor:1", "fetch": names}
    build = compiled(writer(learns), tmp_path / "build", mesh=mesh, **options)
    with autopar.load(build, virtual=True) as trainer:
        for number in range(3):
            loss, left = eager_step(model, optimizer, number)
            batch = batch_of(number)
            assert off(trainer.step(batch), loss) < LITTLE
            assert off(batch, left) < LITTLE
            fetched = {"labels": left["labels"], "before": batch_of(number)["weights"]}
            assert off({name: trainer.fetched()[name] for name in names}, fetched) < LITTLE
        assert off(trainer.state_dict(), dict(model.state_dict())) < LITTLE


def test_microbatches_write_to_their_parts(tmp_path: Path) -> None:
    build = compiled(writer(), tmp_path / "build", mesh=(2, 2), strategy="fsdp:0", accumulate=3)
    batch, left = batch_of(0), batch_of(0)
    writer()(**left)
    with autopar.load(build, virtual=True) as trainer:
        trainer.step(batch)
    assert off(batch, left) < LITTLE


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    build = tmp_path_factory.mktemp("writing") / "build"
    compiled(writer(), build, mesh=2, strategy="fsdp:0")
    with autopar.load(build, virtual=True) as found:
        yield found


def test_parts_are_written_to(trainer: Any) -> None:
    parts, left = [part(batch_of(3), rank) for rank in range(2)], batch_of(3)
    writer()(**left)
    trainer.step(parts, local=True)
    assert all(off(each, part(left, rank)) < LITTLE for rank, each in enumerate(parts))


def test_columns_of_one_table_are_written_to(trainer: Any) -> None:
    table = torch.stack([batch_of(1)["ids"], batch_of(1)["labels"]], dim=-1)
    left = batch_of(1)
    writer()(**left)
    trainer.step({**batch_of(1), "ids": table[..., 0], "labels": table[..., 1]})
    assert torch.equal(table, torch.stack([left["ids"], left["labels"]], dim=-1))


def expanded(batch: Batch) -> Batch:
    return {**batch, "labels": torch.ones((), dtype=torch.long).expand(12, 5)}


def twice(batch: Batch) -> Batch:
    return {**batch, "ids": batch["labels"].fill_(1)}


def shifted(batch: Batch) -> Batch:
    table = torch.ones(12, 6, dtype=torch.long)
    return {**batch, "ids": table[:, 1:], "labels": table[:, :-1]}


def learned(batch: Batch) -> Batch:
    return {**batch, "weights": batch["weights"].requires_grad_()}


def inferred(batch: Batch) -> Batch:
    with torch.inference_mode():
        return {**batch, "weights": torch.ones(12, 3, dtype=torch.float64)}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (expanded, r"'labels', which has elements that share memory.*clone\(\) of it"),
        (twice, r"forward writes to '\w+', which shares memory with '\w+'; hand over a clone"),
        (shifted, r"forward writes to '\w+', which shares memory with '\w+'"),
        (learned, r"'weights', which requires a gradient; hand over a detached clone"),
        (inferred, r"'weights', which is one of torch.inference_mode\(\), outside of it"),
    ],
)
def test_what_cannot_be_written_to_is_refused(
    trainer: Any, change: Callable[[Batch], Batch], problem: str
) -> None:
    before = trainer.state_dict()
    with pytest.raises(InvalidInputError, match=problem):
        trainer.step(change(batch_of(2)))
    assert off(trainer.state_dict(), before) == 0


def test_a_step_that_is_refused_writes_nothing(trainer: Any) -> None:
    batch = batch_of(2)
    batch["weights"][0, 0] = torch.inf
    expected = {name: each.clone() for name, each in batch.items()}
    with pytest.raises(NonFiniteLoss):
        trainer.step(batch)
    assert all(torch.equal(batch[name], each) for name, each in expected.items())


def test_requests_are_written_to(tmp_path: Path) -> None:
    autopar.compile(writer(), batch_of(0), mesh=(2, 2), strategy="fsdp:0,tensor:1").save(
        tmp_path / "build"
    )
    batch, expected = batch_of(4), batch_of(4)
    with torch.no_grad():
        outputs = writer()(**expected)
    assert off(run(tmp_path / "build", batch, virtual=True), outputs) < LITTLE
    assert off(batch, expected) < LITTLE
    verified = autopar.runtime.verify(tmp_path / "build", batch)
    assert verified.ok
    assert off(batch, expected) < LITTLE  # to look is not to write


def test_modules_write_what_has_a_gradient() -> None:
    model, parallel = writer(True), autopar.parallelize(writer(True), batch_of(0), mesh=1)
    for each in (model, parallel):
        batch = batch_of(1)
        (each(**batch)["loss"] + batch["weights"].sum()).backward()
    for name, own in parallel.named_parameters():
        assert own.grad is not None
        assert off(own.grad, model.get_parameter(name).grad) < LITTLE
    given = batch_of(1)
    with torch.no_grad():
        parallel(**given)
    assert not given["weights"].requires_grad
    with pytest.raises(InvalidInputError, match="shares memory"):
        parallel(**twice(batch_of(1)))


class Shrinking(nn.Linear):
    """Halves what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(0.5))


def test_a_module_saves_what_was_there_before() -> None:
    torch.manual_seed(0)
    model = Shrinking(4, 2)
    expected = Shrinking(4, 2)
    expected.load_state_dict(model.state_dict())
    parallel = autopar.parallelize(model, torch.ones(3, 4), mesh=1)
    for each in (expected, parallel):
        x = torch.full((3, 4), 2.0)
        each(x).pow(2).sum().backward()
        assert torch.equal(x, torch.ones(3, 4))
    assert off(parallel.weight.grad, expected.weight.grad) < 1e-5


def test_processes_train_and_serve(tmp_path: Path) -> None:
    build = compiled(writer(), tmp_path / "training", mesh=2, strategy="fsdp:0")
    found = run_ranks(2, writing.training, build)
    assert all(isinstance(each, list) and max(each) < LITTLE for each in found), found
    autopar.compile(writer(), batch_of(0), mesh=2, strategy="fsdp:0").save(tmp_path / "serving")
    found = run_ranks(2, writing.calling, tmp_path / "serving")
    assert all(isinstance(each, list) and max(each) < LITTLE for each in found), found


def test_processes_with_loops_of_their_own() -> None:
    found = run_ranks(2, writing.own_loop)
    assert not any(isinstance(each, str) for each in found), found
    for errors, said in found:
        assert max(errors) < LITTLE
        assert "forward writes what has a gradient to 'weights'" in said
        assert "without local=" in said
