"""Counts the memory of tensors while code runs: every storage that an op of torch leaves, once."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from autopar.ir.program import Program
from autopar.runtime.collectives.groups import Group
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.specialize import specialize
from autopar.runtime.execute.updates import InPlace
from autopar.runtime.kernels.table import TORCH_DTYPES


class Tracking(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages that live.

    Args:
        tensors: What is there from the beginning.

    Attributes:
        live_bytes: What lives now.
        peak_bytes: The most that lived after an op.
        log: Per op its name, and the bytes that lived after it.
    """

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = self.peak_bytes = 0
        self.log: list[tuple[str, int]] = []
        self._known: set[int] = set()
        for tensor in tensors:
            self.see(tensor)

    def see(self, tensor: Tensor) -> None:
        """Counts a tensor's storage, if it isn't counted yet."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.live_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
            weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live_bytes -= size

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.see(leaf)
        self.log.append((str(func), self.live_bytes))
        return result


def arguments(program: Program, weights: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Returns tensors to run a program on: weights, and zeros for all else."""
    found = []
    for port in program.signature.inputs:
        given = weights.get(port.name)
        dtype, shape = TORCH_DTYPES[port.dtype], program.main.values[port.name].known_shape
        found.append(torch.zeros(shape, dtype=dtype) if given is None else given.clone())
    return tuple(found)


def executed(
    program: Program,
    weights: Mapping[str, Tensor],
    coords: Mapping[str, int] | None = None,
    groups: Iterable[str] = (),
) -> Tracking:
    """Runs a program of one process as a trainer does.

    Args:
        program: The program.
        weights: What it stores, by name; zeros where nothing is said.
        coords: Where the process is.
        groups: The names of the groups in which it is alone.
    """
    concrete = specialize(program, coords or {})
    alone = {name: Group("", 1, 0, (0,), "gloo") for name in groups}
    module = emit(concrete, alone, "cpu", InPlace(lambda loss, refusal: None))
    inputs = arguments(concrete, weights)
    seen = Tracking(inputs)
    with seen, torch.no_grad():
        results = module.forward(*inputs)
    del results
    return seen
