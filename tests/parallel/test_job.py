"""A process's place in a job of GPUs, which others stand for here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from autopar.parallel import job


def test_what_ranks_tell_one_another_travels_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it goes through NCCL, it takes the current GPU, which may be another rank's."""
    calls: list[Any] = []

    def gather(found: list[torch.Tensor], mine: torch.Tensor, group: Any) -> None:
        calls.append(group)
        found[:] = [mine] * len(found)

    monkeypatch.setattr(dist, "all_gather", gather)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    talk: Any = object()
    here = job.Job(0, 2, torch.device("cuda", 0), "2", talk=talk)
    here.compare_programs("digest")
    assert calls == [talk, talk]


def test_the_device_of_the_model_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    device = torch.device("cuda", 3)
    assert job.connect("1", device).device == device
    assert current == [device]
