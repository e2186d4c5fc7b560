"""Python's collector of cycles, paused where much is made that has none.

Each full collection looks at all objects of the process, PyTorch's too. A search makes so many
tuples that it would spend a quarter of its time on that, and the trace of a large model so many
nodes that it would spend a seventh.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pauses the collector; cycles made meanwhile are collected later.

    May also decorate a function.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
