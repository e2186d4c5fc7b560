"""What tests of agreement run: ranks as threads of this process, and as real processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import torch
from torch import Tensor

from autopar.base.errors import AutoparError
from autopar.runtime.execute.session import Session
from autopar.runtime.job.processes import Processes
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.trainer import Trainer
from tests.runtime.training.steps import Batch, batches


class Ring:
    """Where the ranks of a process meet."""

    def __init__(self, size: int) -> None:
        self.barrier = Barrier(size)
        self.sums: list[list[Tensor]] = []
        self.texts = [""] * size
        self.found = ""


class ThreadTalk:
    """How ranks that are threads hear of one another."""

    device = torch.device("cpu")

    def __init__(self, rank: int, size: int, ring: Ring) -> None:
        self.rank = rank
        self.size = size
        self.ring = ring
        self.decisions = 0

    def start_sum(self, numbers: Sequence[int | Tensor]) -> Callable[[], list[int]]:
        def read() -> list[int]:
            self.ring.sums.append([torch.tensor([int(each) for each in numbers])])
            self.ring.barrier.wait()
            total = sum(each for [each] in self.ring.sums)
            self.ring.barrier.wait()
            self.ring.sums.clear()
            self.ring.barrier.wait()
            assert isinstance(total, Tensor)
            return [int(each) for each in total]

        return read

    def decide(self, text: str, rule: Callable[[list[str]], str]) -> str:
        self.decisions += 1
        self.ring.texts[self.rank] = text
        self.ring.barrier.wait()
        if self.rank == 0:
            self.ring.found = rule(self.ring.texts)
        self.ring.barrier.wait()
        return self.ring.found


def together(size: int, work: Callable[[ThreadTalk], Any]) -> list[Any]:
    """Returns what each of some ranks, threads of this process, makes of its talk."""
    ring = Ring(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, [ThreadTalk(rank, size, ring) for rank in range(size)]))


def said(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Returns the class and text of the error that a call ends with, or the number it returns."""
    try:
        return str(float(call(*args, **kwargs)))
    except AutoparError as error:
        return f"{type(error).__name__}: {error}"


def differing_steps(processes: Processes, build: Path) -> tuple[list[str], list[str]]:
    """Trains three ranks, now and then on what differs.

    Returns:
        What each step said, and what was warned of.
    """
    rank = processes.rank
    good = batches(8)
    found = []
    with open_trainer(build, timeout=20.0, processes=processes) as trainer:
        before = trainer.state_dict()

        def refused(batch: Any, **options: Any) -> None:
            found.append(said(trainer.step, batch, **options))
            assert all(torch.equal(t, before[name]) for name, t in trainer.state_dict().items())

        (x, target) = good[0]
        refused(good[rank])
        refused((x, target + (rank == 1)))
        refused((x.roll(1, 0) if rank == 2 else x, target))
        refused((x[:5], target) if rank == 2 else good[0])
        refused((x,) if rank == 0 else good[0])
        refused(good[0], lr=0.1 * (1 + (rank == 1)))
        refused(good[0], lr=["a", 0.1] if rank == 1 else None)
        refused(tuple(each.chunk(3)[rank] for each in good[0]) if rank else good[0], local=rank > 0)
        trainer.optimizer.param_groups[1]["lr"] = 0.5 if rank == 0 else 0.01
        refused(good[0])
        trainer.optimizer.param_groups[1]["lr"] = 0.01
        trainer.steps = rank
        refused(good[0])
        trainer.steps = 0
        found.append(said(trainer.step, good[0]))
        found.append(said(trainer.step, good[1]))
        losses, warned = rounded(trainer, good[2:5], rank)
    return [*found, *losses], warned


def odd_steps(processes: Processes, build: Path) -> list[str]:
    """Trains two ranks, of which one has what no program takes between good batches."""
    good = batches(2)
    (x, target), odd = good[0], [torch.nested.nested_tensor([torch.ones(2)]), 5.0, None]
    with open_trainer(build, timeout=20.0, processes=processes) as trainer:
        found = [said(trainer.step, good[0])]
        for each in (x.to_sparse(), x.to("meta"), x.to_mkldnn(), odd[0]):
            found.append(said(trainer.step, (each if processes.rank == 0 else x, target)))
        for other in odd[1:]:
            given = (x, target, other) if processes.rank == 1 else good[0]
            found.append(said(trainer.step, given))
        return [*found, said(trainer.step, good[1])]


def wrong_calls(processes: Processes, build: Path) -> list[str]:
    """Trains two ranks, of which one calls `step` now and then as it can't be called."""
    good, first = batches(2)[0], processes.rank == 0
    wrong: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
        ((good,), {"seed": 3}),
        ((), {"foo": 1}),
        ((), {}),
        ((good, 0.1, 5), {}),
        ((good,), {"lr": -1.0}),
        ((good,), {"lr": "1e-3"}),
        ((good,), {"local": "no"}),
    )
    with open_trainer(build, timeout=20.0, processes=processes) as trainer:
        found = [said(trainer.step, good)]
        for args, options in wrong:
            found.append(
                said(trainer.step, *args, **options) if first else said(trainer.step, good)
            )
        return [*found, said(trainer.step, batches(2)[1])]


def step_out_of_range(processes: Processes, build: Path) -> str:
    """Trains on labels one of which there isn't, as floats, which aren't looked at before."""
    x, labels = torch.ones(4, 3), torch.tensor([0.0, 1.0, 0.0, 9.0])
    with open_trainer(build, timeout=20.0, processes=processes) as trainer:
        return said(trainer.step, (x, labels))


def steps_of_parts(processes: Processes, build: Path) -> list[str]:
    """Trains dp=2, tp=2 on parts, of which one rank first brings another than its peer."""
    x, target = batches(1)[0]
    half = processes.rank // 2
    part = (x.chunk(2)[half], target.chunk(2)[half])
    with open_trainer(build, timeout=20.0, processes=processes) as trainer:
        by_rank = (part[0] + (processes.rank == 3), part[1])
        found = [said(trainer.step, by_rank, local=True)]
        short = (part[0][:2], part[1]) if processes.rank == 0 else part
        found.append(said(trainer.step, short, local=True))
        return [*found, said(trainer.step, part, local=True)]


def rounded(trainer: Trainer, good: Sequence[Batch], rank: int) -> tuple[list[str], list[str]]:
    """Returns what is said to, and warned of, batches that differ by rounding on rank 1."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        steps = [
            said(trainer.step, (x * (1 + 1e-7) if rank == 1 else x, target)) for x, target in good
        ]
    return steps, [str(each.message) for each in caught]


def unchecked_steps(processes: Processes, build: Path) -> list[str]:
    """Returns what steps without comparison say to batches that differ, in content and shape."""
    options: dict[str, Any] = {"timeout": 20.0, "processes": processes, "check_inputs": False}
    (x, target), other = batches(2)
    with open_trainer(build, **options) as trainer:
        found = [said(trainer.step, other if processes.rank else (x, target))]
        found.append(said(trainer.step, (x[:5] if processes.rank else x, target)))
        return [*found, said(trainer.step, (x, target))]


def requests(processes: Processes, build: Path, x: Tensor, c: Tensor) -> list[str]:
    """Calls a session with what is wrong, or differs, and with what is right."""
    rank = processes.rank

    def ask(**inputs: Tensor) -> Tensor:
        return session.run(inputs, gather=False)["last"].sum()

    def call(*inputs: Tensor) -> Tensor:
        outputs = session(*inputs)
        assert isinstance(outputs, dict)
        return outputs["last"].sum()

    with Session(build, timeout=20.0, processes=processes, backend="gloo") as session:
        found = [said(call, x, c), said(ask, x=x), said(call, x, c)]
        found += [said(ask, x=x[: 3 - rank], c=c), said(call, x, c)]
        found += [said(call, x), said(call, x, c)]
        return [*found, said(ask, x=x + rank, c=c), said(call, x, c)]


def divided(outputs: Tensor, k: Tensor) -> Tensor:
    """A loss that a batch of zeros ends: integers are divided by the target."""
    return outputs.square().mean() * (6 // k).sum()


def steps_that_divide(processes: Processes, build: Path) -> list[str]:
    """A wrong batch on rank 1 in the first step and in a later one, between right ones."""
    right = (torch.ones(6, 4), torch.full((6,), 2))
    wrong = (torch.ones(5, 4), torch.full((6,), 2))
    mine = wrong if processes.rank == 1 else right
    with open_trainer(build, processes=processes, timeout=20) as trainer:
        return [said(trainer.step, each) for each in (mine, right, mine, right)]
