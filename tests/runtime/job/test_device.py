"""Where a rank computes: what the user has counts more than the backend."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from autopar.base.errors import RuntimeFailure
from autopar.runtime.job.device import backend_of, choose_device
from autopar.runtime.job.processes import Processes


def test_the_device_follows_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(rank=5, size=8, local_rank=1, local_size=4)
    assert choose_device("gloo", processes).type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert str(choose_device("auto", processes)) == "cuda:1"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(RuntimeFailure, match="4 ranks on this host but 2 GPUs"):
        choose_device("auto", processes)
    with pytest.raises(RuntimeFailure, match="use auto, gloo or nccl"):
        choose_device("mpi", processes)


def test_the_device_is_that_of_a_model_with_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    absent, present = torch.empty(1, device="meta"), torch.empty(1)
    alone = Processes(rank=0, size=1, local_rank=0, local_size=1)
    assert str(choose_device("auto", alone, "2x2", [absent, present])) == "cpu"
    assert str(choose_device("gloo", alone, "2x2", [absent])) == "cpu"
    assert str(choose_device("auto", alone, "2x2", [absent])) == "cuda:0"


def test_a_mesh_of_torch_says_first_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    alone = Processes(rank=0, size=1, local_rank=0, local_size=1)
    for kind, device, backend in [("cpu", "cpu", "gloo"), ("cuda", "cuda:3", "nccl")]:
        mesh = DeviceMesh(kind, [0], _init_backend=False, _rank=0)
        found = choose_device("gloo", alone, mesh, [torch.empty(1)])
        assert (str(found), backend_of(found)) == (device, backend)
