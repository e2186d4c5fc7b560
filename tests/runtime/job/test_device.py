"""Where a rank computes: what the user has counts more than the backend."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from autopar.base.errors import InvalidInputError, RuntimeFailure
from autopar.ir.builds.files import Build
from autopar.ir.builds.manifest import Manifest
from autopar.runtime.job.device import (
    backend_for,
    backend_of,
    check_device,
    choose_device,
    device_for_all,
)
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
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeFailure, match="torch finds none here; use a host with GPUs"):
        choose_device("nccl", processes)
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


def build_for(device: str) -> Build:
    return Build(Path("b"), Manifest("0", device=device), "")


@pytest.mark.parametrize(
    ("device", "wanted"),
    [("cpu", "cpu"), ("cuda:1", "cuda"), ("cpu", ""), ("cuda:0", "")],
)
def test_builds_run_where_they_are_for(device: str, wanted: str) -> None:
    check_device(torch.device(device), build_for(wanted))


def test_one_process_computes_where_a_build_is_for_or_on_a_cpu() -> None:
    for device in ("cpu", torch.device("cpu")):
        assert device_for_all(device, build_for("cuda")) == torch.device("cpu")
    with pytest.raises(InvalidInputError, match=r"device='meta': b was compiled for cuda; comp"):
        device_for_all("meta", build_for("cuda"))
    with pytest.raises(InvalidInputError, match=r"device='gpu' can't be used: "):
        device_for_all("gpu", build_for("cuda"))


def test_builds_for_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    absent = r"^b was compiled for cuda, but .* CPU, and torch finds no GPU here; use the backend"
    with pytest.raises(
        RuntimeFailure, match=absent + r".*nccl.*with device='cpu' \(--device cpu\)$"
    ):
        check_device(torch.device("cpu"), build_for("cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(RuntimeFailure, match="this rank computes on the CPU; use the backend nccl"):
        check_device(torch.device("cpu"), build_for("cuda"))
    with pytest.raises(
        RuntimeFailure, match=r"b was compiled for cpu, but .* on cuda; use the back"
    ):
        check_device(torch.device("cuda:1"), build_for("cpu"))


def test_by_default_a_build_says_which_backend() -> None:
    assert [backend_for("auto", build_for(each)) for each in ("cpu", "cuda", "")] == [
        "gloo",
        "auto",
        "auto",
    ]
    assert backend_for("nccl", build_for("cpu")) == "nccl"
