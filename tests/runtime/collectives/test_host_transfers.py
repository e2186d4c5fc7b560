"""What a host waits for before it computes, with streams that only note what they are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from autopar.ir.emitted import OFFLOAD, RELOAD
from autopar.runtime.collectives import host_transfers
from autopar.runtime.collectives.host_transfers import on_host

DEVICE = torch.device("cuda", 0)


class Stream:
    """A stream of a device that there isn't: it notes its copies and who waits for them."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.copies = name, log, 0

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Any) -> None:
        self.log.append(f"{self.name} waits for {event.name}")

    def record_event(self) -> Any:
        self.copies += 1
        name = f"{self.name} {self.copies}"
        self.log.append(name)
        return SimpleNamespace(
            name=name, synchronize=lambda: self.log.append(f"host waits for {name}")
        )


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    noted: list[str] = []
    streams = {kind: Stream(kind.split(".")[-1], noted) for kind in (OFFLOAD, RELOAD)}
    device = Stream("device", noted)

    @contextmanager
    def within(stream: Stream) -> Iterator[None]:
        yield

    module = SimpleNamespace(current_stream=lambda device_: device, stream=within)
    monkeypatch.setattr(torch, "get_device_module", lambda device_: module)
    monkeypatch.setattr(host_transfers, "_stream", lambda device_, kind: streams[kind])
    return noted


def sent(tensor: Tensor) -> Tensor:
    return host_transfers._copied(tensor, torch.empty_like(tensor), DEVICE, OFFLOAD)


def test_the_host_waits_for_what_it_reads_and_nothing_else(log: list[str]) -> None:
    grad, other, state = torch.ones(3), torch.ones(3), torch.zeros(3)
    here, next_one = sent(grad), sent(other)
    host_transfers._wait(here, DEVICE)
    log.clear()
    assert on_host(torch.add)(state, here, alpha=2).tolist() == [2, 2, 2]
    assert log == ["host waits for offload 1"]
    on_host(torch.Tensor.add_)(state, here)
    assert log == ["host waits for offload 1"]
    host_transfers._wait(next_one, DEVICE)
    on_host(lambda tensors, scale: tensors[0].mul_(scale))([next_one], scale=2)
    assert log[1:] == ["device waits for offload 2", "host waits for offload 2"]


def test_nothing_is_written_while_it_is_on_its_way_to_the_device(log: list[str]) -> None:
    weight, arriving = torch.ones(3), torch.empty(3)
    host_transfers._copied(weight, arriving, DEVICE, RELOAD)
    host_transfers._wait(arriving, DEVICE)
    log.clear()
    on_host(torch.Tensor.add_)(weight, 1)
    assert log == ["host waits for reload 1"]
    assert arriving.tolist() == [1, 1, 1]


def test_what_was_never_transferred_is_there(log: list[str]) -> None:
    assert on_host(torch.mul)(torch.ones(2), 3).tolist() == [3, 3]
    assert log == []
