"""A process's place in a job of GPUs, which others stand for here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from autopar.parallel import job, watching
from autopar.runtime.job.processes import Processes
from tests.parallel import targets
from tests.runtime.job.real import run_ranks


def test_what_ranks_tell_one_another_travels_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it goes through NCCL, it takes the current GPU, which may be another rank's."""
    calls: list[Any] = []

    def gather(found: list[torch.Tensor], mine: torch.Tensor, group: Any) -> None:
        calls.append(group)
        found[:] = [mine] * len(found)

    def made(backend: str) -> str:
        return f"new {backend}"

    monkeypatch.setattr(dist, "all_gather", gather)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: calls.append(group))
    monkeypatch.setattr(dist, "new_group", made)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(watching, "_get_default_store", HashStore)
    gpu = torch.device("cuda", 0)
    ranks = watching.Watched(Processes(0, 1, 0, 1))
    here = job.Job(0, 2, gpu, "2", ranks.talk(gpu), ranks.messages(gpu))
    assert here.shapes_of_all([(2, 3)]) == [[(2, 3)] * 2]
    here.compare_programs("digest")
    assert calls == ["new gloo"] * 4
    ranks.close()


def test_a_rank_that_is_missing_is_named() -> None:
    (said,) = run_ranks(1, targets.alone, size=2)
    assert said == (
        "! rank 1 failed: it did not come within 0.5 s of the start; start all 2 processes, look at"
        " what the missing ones say, and call torch.distributed.init_process_group(timeout=) before"
        " if they take longer"
    )


def test_the_process_group_is_made_where_there_is_none() -> None:
    assert run_ranks(2, targets.without_a_group) == [("", "gloo", 2)] * 2


def test_a_rank_that_has_ended_is_named_when_modules_are_made_again() -> None:
    first, second = run_ranks(2, targets.ended_before_the_next)
    assert second == 0
    assert first.startswith("! rank 1 failed: it ended without a word (killed?); last seen ")


def test_where_nobody_watches_any_more_it_is_said_what_to_do() -> None:
    first, second = run_ranks(2, targets.ended_after_the_watch)
    assert second == 0
    assert first.startswith("! the ranks can't agree to make modules again: another one has ended")
    assert first.endswith("; start the job again")


def test_the_device_of_the_model_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    device = torch.device("cuda", 3)
    assert job.connect("1", device).device == device
    assert current == [device]
