"""Calls with arrays like those of an earlier call: what fitted then fits again.

Checks of labels, shapes and dtypes would take longer than a small model does.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autopar.ir.expr.at_sizes import Sizes
from autopar.runtime.execute.sized import KEPT_SIZES


class Alike:
    """What arrays were found right, and the open sizes that follow from them."""

    def __init__(self) -> None:
        self._sizes: dict[Hashable, Sizes] = {}

    def find(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Tensor], Sizes] | None:
        """Returns a call's inputs by label, and its sizes; None if nothing is known of it."""
        sizes = self._sizes.get(_kinds_of(feeds))
        if sizes is None:
            return None
        try:
            return {label: torch.from_numpy(array) for label, array in feeds.items()}, sizes
        except (TypeError, ValueError):  # As of strides that say nothing, below zero.
            return None

    def note(self, feeds: Mapping[str, Any], inputs: Mapping[str, Tensor], sizes: Sizes) -> None:
        """Notes a call that was found right.

        Args:
            feeds: What was given by label.
            inputs: All inputs that were made of it.
            sizes: The open sizes of the call.
        """
        kinds = _kinds_of(feeds)
        if kinds is None or inputs.keys() != feeds.keys():
            return
        if any(inputs[label].data_ptr() != array.ctypes.data for label, array in feeds.items()):
            return
        if len(self._sizes) >= KEPT_SIZES:
            self._sizes.clear()
        self._sizes[kinds] = sizes


def _kinds_of(feeds: Mapping[str, Any]) -> Hashable | None:
    """Returns what arrays are but for their elements; None if there are others than plain ones."""
    found = []
    for label, array in feeds.items():
        if type(array) is not np.ndarray:
            return None
        flags = array.flags
        if not (flags.c_contiguous and flags.writeable):
            return None
        found.append((label, array.dtype, array.shape))
    return tuple(found)
