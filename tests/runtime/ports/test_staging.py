"""What goes to a device goes through pinned memory; the meta device stands for one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from autopar.runtime.ports.staging import moved


def test_on_the_cpu_nothing_is_copied() -> None:
    x = torch.arange(3)
    assert moved(x, "cpu") is x
    assert moved(x.to("meta"), "meta").is_meta


def test_a_device_reads_pinned_memory_while_the_host_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, empty, to = torch.arange(6).reshape(2, 3).T, torch.empty, Tensor.to
    seen: list[Tensor] = []

    def pinned(*args: Any, pin_memory: bool, **kwargs: Any) -> Tensor:
        assert pin_memory
        return empty(*args, **kwargs)

    def sent(self: Tensor, device: torch.device, non_blocking: bool = False) -> Tensor:
        assert non_blocking
        seen.append(self)
        return to(self, device)

    monkeypatch.setattr(torch, "empty", pinned)
    monkeypatch.setattr(Tensor, "to", sent)
    assert moved(x, "meta").is_meta
    assert seen[0].is_contiguous()
    assert torch.equal(seen[0], x)
    assert seen[0].untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
