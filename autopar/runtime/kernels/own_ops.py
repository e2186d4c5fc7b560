"""The ops that are autopar's own: shards of lookups and writes, pieces of pending reductions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from autopar.runtime.collectives.host_transfers import TRANSFERS
from autopar.runtime.collectives.monoids import identity
from autopar.runtime.collectives.windows import (
    max_pool_backward,
    max_pool_with_indices,
    resize,
    window,
)
from autopar.runtime.kernels.alignments import ALIGNMENTS
from autopar.runtime.kernels.embedding_bag import BAGS
from autopar.runtime.kernels.experts import EXPERTS
from autopar.runtime.kernels.fused_attention import FUSED
from autopar.runtime.kernels.lookups import LOOKUPS
from autopar.runtime.kernels.naming import own
from autopar.runtime.kernels.products import PRODUCTS
from autopar.runtime.kernels.recurrent import RECURRENCES
from autopar.runtime.kernels.writes import WRITES


def to_partial(self: Tensor, monoid: str, index: int) -> Tensor:
    """Keeps a value on the first process of an axis; the others get the reduction's identity.

    Args:
        self: The value.
        monoid: The reduction.
        index: The process's position along the axis.
    """
    return self if index == 0 else torch.full_like(self, identity(monoid, self.dtype))


OWN_OPS: Mapping[str, Callable[..., Any]] = {
    **own(
        to_partial=to_partial,
        resize=resize,
        window=window,
        max_pool_with_indices=max_pool_with_indices,
        max_pool_backward=max_pool_backward,
    ),
    **ALIGNMENTS,
    **BAGS,
    **EXPERTS,
    **FUSED,
    **LOOKUPS,
    **PRODUCTS,
    **RECURRENCES,
    **TRANSFERS,
    **WRITES,
}
"""The function behind each op kind."""
