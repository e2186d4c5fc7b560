"""Measures what the device holds in a step, which on a CPU is in the same memory as the host's."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from autopar.ir.emitted import OFFLOAD
from autopar.ir.memory.transfers import hosted
from autopar.ir.program import Program
from autopar.runtime.collectives.host_transfers import on_host
from autopar.runtime.execute import body, in_place
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.specialize import specialize
from autopar.runtime.execute.updates import InPlace
from autopar.runtime.kernels.table import kernel
from tests.judges.tracking import Tracking, arguments

Kernel = Callable[..., Any]


class OnDevice(Tracking):
    """Counts the storages that aren't in the host's memory."""

    def __init__(self, device: Iterable[Tensor], host: Iterable[Tensor]) -> None:
        self._host: set[int] = set()
        self._computes_on_host = False
        for tensor in host:
            self._keep_on_host(tensor)
        super().__init__(device)

    def see(self, tensor: Tensor) -> None:
        if self._computes_on_host:
            self._keep_on_host(tensor)
        if tensor.untyped_storage()._cdata not in self._host:
            super().see(tensor)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """What is made within is in the host's memory."""
        self._computes_on_host = True
        yield
        self._computes_on_host = False

    def _keep_on_host(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._host:
            self._host.add(storage._cdata)
            weakref.finalize(storage, self._host.discard, storage._cdata)


def measured(program: Program, weights: Mapping[str, Tensor]) -> int:
    """Returns the most bytes that the device holds in a step."""
    concrete = specialize(program, {})
    there = hosted(concrete)
    given = dict(zip(concrete.main.inputs, arguments(concrete, weights), strict=True))
    device = [tensor for name, tensor in given.items() if name not in there]
    host = [tensor for name, tensor in given.items() if name in there]
    seen = OnDevice(device, host)

    def beside(function: Kernel) -> Kernel:
        inner = on_host(function)

        def computed(*args: Any, **kwargs: Any) -> Any:
            with seen.beside():
                return inner(*args, **kwargs)

        return computed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body, "on_host", beside)
        patch.setattr(in_place, "on_host", beside)
        module = emit(
            concrete,
            {},
            "cpu",
            InPlace(lambda loss, refusal: None),
            lambda kind: beside(kernel(kind)) if kind == OFFLOAD else kernel(kind),
        )
    with seen, torch.no_grad():
        results = module.forward(*given.values())
    del results
    return seen.peak_bytes
