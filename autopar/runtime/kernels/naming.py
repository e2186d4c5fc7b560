"""Which op of our own a kernel computes: the one of its name, in the namespace `autopar`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autopar.ir.memory.kernels import OWN_NAMESPACE

Kernel = Callable[..., Any]


def own(**kernels: Kernel) -> Mapping[str, Kernel]:
    """Returns kernels of our own ops by kind, from those by the names that follow the namespace."""
    return {f"{OWN_NAMESPACE}.{name}": kernel for name, kernel in kernels.items()}
