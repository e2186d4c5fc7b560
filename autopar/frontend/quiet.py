"""Quiet: torch doesn't log a traceback of each op that it can't run on fake tensors.

What fails there is reported as an error of ours, with the user's line, or is tried otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps torch from logging what fails within."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
