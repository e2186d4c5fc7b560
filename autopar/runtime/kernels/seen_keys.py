"""Causal attention of some of the queries: what kernels are spared that know only whole ones.

A query of number n sees the keys up to n. Where a rank has the queries from `first` on, keys behind
the last of them are seen by nobody, and queries before the first key see nothing. Without those,
the last query sees the last key, which is how kernels of GPUs take a causal mask.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class Attended(NamedTuple):
    """An attention as its kernel is told of it.

    Attributes:
        query, key, value: [batch, heads, length, size]; heads of keys may be fewer.
        causal: Whether queries don't see what is behind them.
        mask: What is added to scores.
        scale: What scores are multiplied by.
        first: The number of the first query.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    causal: bool
    mask: Tensor | None
    scale: float
    first: int = 0


class Seen(NamedTuple):
    """The part of an attention in which something is seen.

    Attributes:
        call: That part.
        blind: How many queries before it see nothing.
        unseen: How many keys behind it nobody sees.
    """

    call: Attended
    blind: int = 0
    unseen: int = 0

    def queries(self, x: Tensor) -> Tensor:
        """Returns the rows of these queries."""
        return x[:, :, self.blind :] if self.blind else x

    def all_queries(self, x: Tensor) -> Tensor:
        """Returns rows of all queries, zeros for those that see nothing."""
        if not self.blind:
            return x
        return pad(x, (*(0, 0) * (x.ndim - 3), self.blind, 0))

    def all_keys(self, x: Tensor) -> Tensor:
        """Returns rows of all keys, zeros for those that nobody sees."""
        return pad(x, (0, 0, 0, self.unseen)) if self.unseen else x


def seen(call: Attended) -> Seen:
    """Returns the part of an attention in which something is seen."""
    if not call.causal:
        return Seen(call)
    length, count = call.query.shape[-2], call.key.shape[-2]
    blind = min(length, max(0, -call.first))
    first = max(0, call.first)
    keys = min(count, first + length - blind)
    key, value = (x if keys == count else x[:, :, :keys] for x in (call.key, call.value))
    mask = call.mask
    if mask is not None and mask.ndim > 1 and mask.shape[-2] > 1:
        mask = mask[..., blind:, :]
    if mask is not None and mask.shape[-1] > 1:
        mask = mask[..., :keys]
    query = call.query[:, :, blind:] if blind else call.query
    part = call._replace(query=query, key=key, value=value, mask=mask, first=first)
    return Seen(part, blind, count - keys)


def explicit(call: Attended) -> Attended:
    """Returns an attention of which a mask says what isn't seen."""
    length, keys = call.query.shape[-2], call.key.shape[-2]
    behind = torch.full(
        (length, keys), -torch.inf, dtype=call.query.dtype, device=call.query.device
    ).triu_(call.first + 1)
    mask = behind if call.mask is None else call.mask + behind
    return call._replace(causal=False, mask=mask, first=0)
