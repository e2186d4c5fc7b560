"""Counts the memory of tensors while code runs: every storage that an op of torch leaves, once."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


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
