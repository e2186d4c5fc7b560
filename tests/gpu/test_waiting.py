"""Steps for which the host waits for nothing, and losses that the device judges by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.optim import SGD, Adam, Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

import autopar
from autopar.base.errors import InvalidInputError
from autopar.ir.devices import CUDA
from autopar.runtime import NonFiniteLoss, Trainer
from tests.gpu.places import ON_GPU, PLACE
from tests.runtime.training.steps import Reference, batches

READ = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero")
"""Ops whose results the host knows."""

OPTIMIZERS: Mapping[str, Callable[[Any], Optimizer]] = {
    "one kernel": lambda given: Adam(given, 0.05, fused=True),
    "op by op": lambda given: Adam(given, 0.05, fused=False),
    "momentum": lambda given: SGD(given, 0.05, momentum=0.9),
}


class Refusing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses ops for which the host of an accelerator would wait."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        assert func.overloadpacket.__name__ not in READ, f"the host waits for {func}"
        return func(*args, **(kwargs or {}))


@contextmanager
def unwaited() -> Iterator[None]:
    """Refuses, within, what the host has to wait for."""
    if ON_GPU:
        torch.cuda.set_sync_debug_mode("error")
    try:
        with Refusing():
            yield
    finally:
        if ON_GPU:
            torch.cuda.set_sync_debug_mode("default")


def trainer_of(folder: Path, optimizer: str, mesh: str, **options: Any) -> Trainer:
    """Returns a trainer of a small model for GPUs."""
    model = Reference.of_seed().model
    made = autopar.compile(
        model,
        batches(1)[0],
        mesh=mesh,
        loss=mse_loss,
        optimizer=OPTIMIZERS[optimizer](model.parameters()),
        clip_grad_norm=1.0,
        device=CUDA,
    )
    made.save(folder)
    return autopar.load(folder, Trainer, virtual=True, device=PLACE, **options)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_wrong_loss_changes_nothing_and_nobody_waits(tmp_path: Path, optimizer: str) -> None:
    *given, last = batches(4)
    (x, target), second, third = given
    with trainer_of(tmp_path, optimizer, "2", seed=0) as trainer:
        run = trainer.ranks.execute

        def execute(*args: Any, **kwargs: Any) -> Any:
            with unwaited():
                return run(*args, **kwargs)

        trainer.ranks.execute = execute  # type: ignore[method-assign]
        before = {**trainer.state_dict(), **_flat(trainer)}
        trainer.step((x * math.nan, target))
        after = {**trainer.state_dict(), **_flat(trainer)}
        assert [name for name, each in after.items() if not torch.equal(each, before[name])] == []
        found = [trainer.step(second)]
        with pytest.raises(NonFiniteLoss, match=r"^the loss of step 0 is nan; .* no such step"):
            trainer.step(third)
        assert trainer.steps == 3
        found.append(trainer.step(last))
        trainer.check_losses()
        trainer.step((x, target * math.inf))
        with pytest.raises(NonFiniteLoss, match="the loss of step 4 is inf"):
            trainer.check_losses()
    with autopar.load(tmp_path, virtual=True, device=PLACE, check_loss="now") as other:
        expected = [other.step(batch) for batch in (second, third, last)]
        with pytest.raises(NonFiniteLoss, match="the loss of step 3 is nan"):
            other.step((x * math.nan, target))
    assert torch.equal(torch.stack(found), torch.stack(expected[::2]))


def _flat(trainer: Trainer) -> dict[str, torch.Tensor]:
    state = trainer.optimizer_state_dict()["state"]
    return {f"{name}.{key}": t.clone() for name, s in state.items() for key, t in s.items()}


def test_what_the_host_updates_it_looks_at_first(tmp_path: Path) -> None:
    options = {"offload": "optimizer", "update": "host"}
    model = Reference.of_seed().model
    autopar.compile(
        model,
        batches(1)[0],
        mesh=1,
        loss=mse_loss,
        optimizer=Adam(model.parameters()),
        device=CUDA,
        **options,  # type: ignore[arg-type]
    ).save(tmp_path)
    with pytest.raises(InvalidInputError, match=r"check_loss='later': state of .* say 'now'$"):
        autopar.load(tmp_path, virtual=True, check_loss="later")
    (x, target), *_ = batches(1)
    with (
        autopar.load(tmp_path, virtual=True, device=PLACE) as trainer,
        pytest.raises(NonFiniteLoss, match="the loss of step 0 is nan"),
    ):
        trainer.step((x * math.nan, target))
