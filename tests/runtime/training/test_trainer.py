"""Training: the losses and the state of one device on any mesh."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from autopar.base.errors import InvalidInputError, RuntimeFailure
from autopar.modules import compile
from autopar.runtime.api import load
from autopar.runtime.execute.gate import Gate
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.stepping import seed_of_step
from autopar.runtime.training.trainer import Trainer
from autopar.runtime.training.verdicts import NonFiniteLoss
from tests.runtime.execute.targets import (
    disagree,
    look_alone,
    look_late,
    refuse,
    train,
    train_compiled,
    wrapped,
)
from tests.runtime.job.real import run_ranks
from tests.runtime.training.steps import (
    LAYOUTS,
    MEGATRON,
    Layout,
    Reference,
    assert_same,
    batches,
    training_build,
)

DATA, MIXED = LAYOUTS[1], LAYOUTS[7]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_are_those_of_one_device(tmp_path: Path, layout: Layout) -> None:
    build = training_build(tmp_path / "b", layout)
    one = Reference.of_seed()
    with open_trainer(build, virtual=True) as trainer:
        for batch in batches(5):
            assert trainer.step(batch).item() == pytest.approx(one.step(batch), rel=1e-5)
    assert trainer.steps == 5


def test_pieces_are_dtensors_over_the_memory_of_the_state(tmp_path: Path) -> None:
    build = training_build(tmp_path / "b", ("tp=2", "none", MEGATRON))
    for placed, problems in run_ranks(2, wrapped, build, batches(2)):
        assert placed == {
            "up.weight": "(Shard(dim=0),)",
            "down.weight": "(Shard(dim=1),)",
            "down.bias": "(Replicate(),)",
            "mean": "(Replicate(),)",
        }
        (refusal,) = problems
        assert "compiled for the ranks [0, 1], the mesh has [1, 0]" in refusal
    trainer = open_trainer(build, virtual=True)
    with pytest.raises(InvalidInputError, match="DTensors need a job of processes"):
        trainer.dtensors()
    with pytest.raises(InvalidInputError, match=r"dtensors\('x'\): give a torch DeviceMesh"):
        trainer.dtensors("x")


def test_two_processes_train_as_one_device(tmp_path: Path) -> None:
    build = training_build(tmp_path / "b", DATA, fetch=["up.weight"])
    one = Reference.of_seed()
    outcomes = run_ranks(2, train, build, batches(4), tmp_path, 1)
    expected = [one.step(batch) for batch in batches(4)]
    gradient = one.model.up.weight.grad
    assert gradient is not None
    for losses, state, fetched in outcomes:
        assert losses == pytest.approx(expected, rel=1e-5)
        assert losses == outcomes[0][0]
        assert_same({k: torch.from_numpy(v) for k, v in state.items()}, one.model.state_dict())
        assert_same({"g": torch.from_numpy(fetched["grad/up.weight"])}, {"g": gradient})
    assert_same(load_file(tmp_path / "weights.safetensors"), one.model.state_dict())
    with opened(tmp_path / "other", MIXED) as other:
        other.load_checkpoint(tmp_path / "checkpoint")
        assert [other.step(batch).item() for batch in batches(4)[2:]] == pytest.approx(expected[2:])


@pytest.mark.parametrize(
    "optimizer", [partial(torch.optim.Adam, fused=False), torch.optim.RMSprop, torch.optim.NAdam]
)
def test_steps_op_by_op_are_those_of_one_device(
    tmp_path: Path, optimizer: Callable[..., torch.optim.Optimizer]
) -> None:
    """Each op writes its own part of the state in place."""
    model = Reference.of_seed().model
    steps = optimizer(model.parameters(), lr=0.01)
    compiled = compile(model, batches(1)[0], mesh="2x2", loss=mse_loss, optimizer=steps)
    compiled.save(tmp_path / "b")
    with open_trainer(tmp_path / "b", virtual=True) as trainer:
        for batch in batches(3):
            steps.zero_grad()
            loss = mse_loss(model(batch[0]), batch[1])
            loss.backward()  # type: ignore[no-untyped-call]
            steps.step()
            assert trainer.step(batch).item() == pytest.approx(loss.item(), rel=1e-5)
        assert_same(trainer.state_dict(), model.state_dict())
        state = trainer.optimizer_state_dict()["state"]
        for name, parameter in model.named_parameters():
            assert_same(state[name], steps.state[parameter])


def test_nobody_waits_for_a_compiler_that_nobody_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process would import torch's own before it meets the others."""
    monkeypatch.delattr(torch.compiler, "disable")
    assert Gate().in_place.guard is not None


def test_a_trainer_opens_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's optimizers import theirs when they get a group of parameters."""
    build = training_build(tmp_path / "b", LAYOUTS[0])
    add = torch.optim.Optimizer.add_param_group
    monkeypatch.delattr(add.__wrapped__, "__dynamo_disable", raising=False)  # type: ignore[attr-defined]
    monkeypatch.delattr(torch._dynamo, "disable")
    with open_trainer(build, virtual=True) as trainer:
        assert len(trainer.optimizer.param_groups) == 2


@pytest.mark.slow
def test_training_goes_through_torch_compile(tmp_path: Path) -> None:
    build = training_build(tmp_path / "b", DATA)
    one = Reference.of_seed()
    expected = [one.step(batch) for batch in batches(3)]
    for losses in run_ranks(2, train_compiled, build, batches(3)):
        assert losses == pytest.approx(expected, rel=1e-5)


def test_processes_go_on_after_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    build = training_build(tmp_path / "b", DATA)
    (batch,) = batches(1)
    first, second = run_ranks(2, refuse, build, batch)
    assert first == second
    assert first[3].startswith(f"{build} is not empty and not a checkpoint")
    assert first[4].startswith(f"{build / 'manifest.pb'} is not a folder")
    assert first[0].startswith("the loss of step 0 is nan; parameters and optimizer state are")
    assert first[1] == pytest.approx(Reference.of_seed().step(batch), rel=1e-5)
    assert first[2] == "wrong inputs:\n  - input 'x' is f32[5, 4], it must be f32[6, 4]"


def test_ranks_with_batches_of_different_shapes_are_told_so(tmp_path: Path) -> None:
    x, target = batches(1)[0]
    short = (x[:2], target[:2])
    build = training_build(tmp_path / "b", DATA, more_batches=[short])
    first, second = run_ranks(2, disagree, build, [(x, target), short])
    assert first == second
    assert "different shapes: x f32[6, 4], target f32[6, 5] and x f32[2, 4], target" in first[0]
    assert first[1] == pytest.approx(Reference.of_seed().step((x, target)), rel=1e-5)


def test_one_rank_may_look_at_what_all_of_them_hold(tmp_path: Path) -> None:
    build = training_build(tmp_path / "b", DATA, fetch=["up.weight"])
    one, (batch,) = Reference.of_seed(), batches(1)
    one.step(batch)
    gradient = one.model.up.weight.grad
    assert gradient is not None
    (fetched, loss), (_, other) = run_ranks(2, look_alone, build, batch)
    assert_same({"g": torch.from_numpy(fetched["grad/up.weight"])}, {"g": gradient})
    assert loss == other == pytest.approx(one.step(batch), rel=1e-5)


def test_a_rank_that_puts_parts_together_alone_is_told_so(tmp_path: Path) -> None:
    build = training_build(tmp_path / "b", ("dp=2", "fsdp:dp", {}), fetch=["up.weight"])
    message, _ = run_ranks(2, look_alone, build, *batches(1))
    assert re.search(
        r"rank 0 failed: it did not arrive at comm.+ within 3 s; it has been in Trainer.fetched"
        r"|rank 0 failed: no answer within 3 s in Trainer.fetched.*: rank 1 waits in step 1",
        message,
    )
    assert message.endswith("same calls (step, fetched, state_dict, ...) in the same order")


def test_several_collectives_that_wait_in_vain_are_one_time_out(tmp_path: Path) -> None:
    build = training_build(tmp_path / "b", ("dp=2", "fsdp:dp", {}), fetch=["up.weight"])
    _, message = run_ranks(2, look_late, build, *batches(1))
    assert "pair closure" not in message
    assert message.endswith("same calls (step, fetched, state_dict, ...) in the same order")


def test_an_empty_batch_is_named(tmp_path: Path) -> None:
    model = nn.Linear(8, 4)
    compiled = compile(
        model,
        (torch.zeros(4, 8), torch.zeros(4, 4)),
        mesh="2",
        loss=mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dynamic={0: {0: "batch"}, 1: {0: "batch"}},
    )
    compiled.save(tmp_path / "b")
    with open_trainer(tmp_path / "b", virtual=True) as trainer:
        before = {**trainer.state_dict()}
        with pytest.raises(NonFiniteLoss, match=r"^the batch of step 0 is empty \(.+ \[0, 8\], "):
            trainer.step((torch.zeros(0, 8), torch.zeros(0, 4)))
        assert all(torch.equal(each, before[name]) for name, each in trainer.state_dict().items())
        trainer.step((torch.zeros(3, 8), torch.zeros(3, 4)))


def test_a_loss_that_is_not_finite_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    trainer = opened(tmp_path, MIXED)
    (x, target), good = batches(2)
    before = {**trainer.state_dict()}
    with pytest.raises(NonFiniteLoss, match="the loss of step 0 is nan; parameters and") as raised:
        trainer.step((x * math.nan, target))
    assert (raised.value.step, trainer.steps) == (0, 0)
    with pytest.raises(NonFiniteLoss, match="the loss of step 0 is inf"):
        trainer.step((x, target * 1e30))
    for name, tensor in trainer.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert trainer.step(good).item() == pytest.approx(Reference.of_seed().step(good), rel=1e-5)


def test_losses_of_steps_before_a_checkpoint_was_loaded_are_forgotten(tmp_path: Path) -> None:
    build, (*given, (x, target)) = training_build(tmp_path / "b", DATA), batches(5)
    with open_trainer(build, virtual=True, check_loss="later") as trainer:
        trainer.save_checkpoint(tmp_path / "c")
        for batch in (*given, (x * math.nan, target)):
            trainer.step(batch)
        trainer.load_checkpoint(tmp_path / "c")
        trainer.step((x * math.nan, target))
        trainer.step((x, target))
        with pytest.raises(NonFiniteLoss, match="the loss of step 0 is nan"):
            trainer.step((x, target))
        trainer.check_losses()


def test_the_last_losses_are_looked_at_by_the_end(tmp_path: Path) -> None:
    build, (x, target) = training_build(tmp_path / "b", DATA), batches(1)[0]

    def train(*more: Exception) -> None:
        with open_trainer(build, virtual=True, check_loss="later") as trainer:
            trainer.step((x, target))
            trainer.step((x * math.nan, target))
            for each in more:
                raise each

    with pytest.raises(NonFiniteLoss, match="the loss of step 1 is nan"):
        train()
    with (
        pytest.warns(UserWarning, match="the loss of step 1 is nan"),
        pytest.raises(KeyError, match="its own"),
    ):
        train(KeyError("its own"))


def opened(folder: Path, layout: Layout, **options: object) -> Trainer:
    build = training_build(folder / "b", layout, **options)
    trainer = load(build, virtual=True)
    assert isinstance(trainer, Trainer)
    return trainer


@pytest.mark.parametrize("rate", ["a", "0.1", ["a", 0.1], [0.1], math.nan, [0.1, math.inf]])
def test_rates_that_are_no_numbers_are_refused(tmp_path: Path, rate: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^lr="):
        opened(tmp_path, MIXED).step(batches(1)[0], lr=rate)


def test_schedulers_set_the_learning_rate(tmp_path: Path) -> None:
    trainer, one = opened(tmp_path, MIXED), Reference.of_seed()
    schedulers = [
        torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=6, cycle_momentum=False)
        for optimizer in (trainer.optimizer, one.optimizer)
    ]
    for batch in batches(5):
        assert trainer.step(batch).item() == pytest.approx(one.step(batch), rel=1e-5)
        for scheduler in schedulers:
            scheduler.step()
    assert schedulers[0].get_last_lr() == schedulers[1].get_last_lr()
    assert [group["param_names"] for group in trainer.optimizer.param_groups] == [
        ["up.weight", "down.weight"],
        ["down.bias"],
    ]


def test_a_learning_rate_may_be_given_for_one_step(tmp_path: Path) -> None:
    trainer = opened(tmp_path, LAYOUTS[0])
    before = trainer.state_dict()
    (batch,) = batches(1)
    trainer.step(batch, lr=0.0)
    assert torch.equal(trainer.state_dict()["up.weight"], before["up.weight"])
    trainer.step(batch, lr=[0.0, 0.1])
    after = trainer.state_dict()
    assert torch.equal(after["up.weight"], before["up.weight"])
    assert not torch.equal(after["down.bias"], before["down.bias"])
    with pytest.raises(InvalidInputError, match="the program has 2 learning rates"):
        trainer.step(batch, lr=[0.1])


def test_ranks_may_be_handed_only_their_slices(tmp_path: Path) -> None:
    trainer, one = opened(tmp_path, DATA), Reference.of_seed()
    (batch,) = batches(1)
    local = list(zip(*(tensor.chunk(2) for tensor in batch), strict=True))
    assert trainer.step(local, local=True).item() == pytest.approx(one.step(batch), rel=1e-5)
    with pytest.raises(InvalidInputError, match=r"'x' is f32\[6, 4\], it must be f32\[3, 4\]"):
        trainer.step([batch, batch], local=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, t: (x[1:], t), r"input 'x' is f32\[5, 4\], it must be f32\[6, 4\]"),
        (lambda x, t: (x,), "nothing is given for target"),
        (lambda x, t: (x.double(), t), r"input 'x' is f64"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    trainer = opened(tmp_path, LAYOUTS[0])
    (batch,) = batches(1)
    with pytest.raises(InvalidInputError, match=message):
        trainer.step(change(*batch))
    assert trainer.step({"target": batch[1], "x": batch[0]}).isfinite()


def test_what_is_fetched_is_global(tmp_path: Path) -> None:
    trainer, one = opened(tmp_path, MIXED, fetch=["down.weight"]), Reference.of_seed()
    with pytest.raises(InvalidInputError, match="nothing is fetched before the first step"):
        trainer.fetched()
    (batch,) = batches(1)
    trainer.step(batch)
    one.step(batch)
    gradient = one.model.down.weight.grad
    assert gradient is not None
    assert_same(trainer.fetched(), {"grad/down.weight": gradient})


def test_each_step_has_a_seed_of_its_own() -> None:
    seeds = {seed_of_step(seed, step) for seed in (0, 1, 2**31 - 1) for step in range(100)}
    assert len(seeds) == 300
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_build_for_more_ranks_than_processes_is_refused(tmp_path: Path) -> None:
    build = training_build(tmp_path / "b", DATA)
    with pytest.raises(RuntimeFailure, match="the build is for 2 ranks, but 1 process was started"):
        load(build)


class Dropping(nn.Module):
    """A layer with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8, bias=False)
        self.down = nn.Linear(8, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(nn.functional.dropout(self.up(x), 0.5))
        return found


def dropping(folder: Path, layout: Layout, seed: int | None = None) -> list[float]:
    """Returns the losses of four steps on the same batch without learning."""
    torch.manual_seed(0)
    model, (batch,) = Dropping(), batches(1)
    mesh, strategy, shard = layout
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    compile(
        model,
        batch,
        mesh=mesh,
        strategy=strategy,
        shard=shard,
        loss=nn.functional.mse_loss,
        optimizer=optimizer,
    ).save(folder / "b")
    with open_trainer(folder / "b", virtual=True, seed=seed) as trainer:
        losses = [trainer.step(batch).item() for _ in range(2)]
        trainer.save_checkpoint(folder / "c")
    with open_trainer(folder / "b", virtual=True) as trainer:
        trainer.load_checkpoint(folder / "c")
        return [*losses, *(trainer.step(batch).item() for _ in range(2))]


def test_dropout_is_new_in_each_step_and_the_same_on_any_mesh(tmp_path: Path) -> None:
    one = dropping(tmp_path / "a", LAYOUTS[0], 3)
    assert len(set(one)) == 4
    assert dropping(tmp_path / "b", LAYOUTS[6], 3) == pytest.approx(one, rel=1e-5)
    assert dropping(tmp_path / "c", LAYOUTS[0]) != pytest.approx(one, rel=1e-3)
