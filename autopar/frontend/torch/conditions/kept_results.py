"""Methods whose results Python keeps by their arguments, which are computed anew in a trace."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def computed_anew(model: nn.Module) -> Iterator[None]:
    """Takes `functools.cache` and `functools.lru_cache` off the methods of a model's modules.

    What they keep of a trace has no values, and code runs more than once in a trace.
    """
    kept = {
        (kind, name): each
        for module in model.modules()
        for kind in type(module).__mro__
        for name, each in vars(kind).items()
        if isinstance(each, functools._lru_cache_wrapper)
    }
    _put({at: each.__wrapped__ for at, each in kept.items()})
    try:
        yield
    finally:
        _put(kept)


def _put(methods: dict[tuple[type, str], Any]) -> None:
    for (kind, name), each in methods.items():
        setattr(kind, name, each)
