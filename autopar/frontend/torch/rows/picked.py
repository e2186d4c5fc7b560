"""Calls functions for all rows that data may select, with one row for each place of a mask.

    h[mask], h[top_x], w[top_x, idx]        rows of zeros where none is
    out.index_add_(0, top_x, rows), out[mask] = rows, rows.sum(0)     only those that are
    torch.cat([rows, others])               all of them beside others, of which all are there

A row that isn't there is zero, so that it is finite, and so are the gradients that come back from
it. Functions that aren't finite for all numbers get ones in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from autopar.frontend.torch.conditions.counts import Count, count_in, is_count, plain_numbers
from autopar.frontend.torch.ops import own_backward
from autopar.frontend.torch.rows import counts as row_counts
from autopar.frontend.torch.rows import joins as row_joins
from autopar.frontend.torch.rows import reads as row_reads
from autopar.frontend.torch.rows import scatters as row_scatters
from autopar.frontend.torch.rows import writes as row_writes
from autopar.frontend.torch.rows.masked import is_mask
from autopar.frontend.torch.rows.picks import Done, Picks, along
from autopar.frontend.torch.rows.selections import NotApart, Rows, Selected, same
from autopar.frontend.torch.rows.writes import MEANS

_VIEWS = (Tensor.view, Tensor.reshape, torch.reshape, Tensor.expand)
"""Functions that may be handed the number of rows of their operand."""

_MADE = (torch.zeros, torch.ones, torch.empty, Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty)
"""Functions that make as many rows as they are told."""

_FAILING = frozenset(
    (
        *("div", "divide", "true_divide", "truediv", "rtruediv", "itruediv", "reciprocal"),
        *("exp", "expm1", "exp2", "log", "log1p", "log2", "log10", "logit", "sqrt", "rsqrt"),
        *("pow", "rpow", "norm", "gather", "softmax", "log_softmax", "logsumexp"),
    )
)
"""Names of functions that aren't finite everywhere, or whose derivatives aren't."""

_KEPT_MASKS = frozenset(
    ("view", "reshape", "flatten", "ravel", "squeeze", "unsqueeze", "contiguous", "clone", "bool")
)
"""Names of functions that keep the elements of a mask, and their order."""

_BOUNDED = frozenset((torch.nn.functional.normalize,))
"""Functions of several ops that are finite for zeros."""


class PickedRows(TorchFunctionMode):
    """Calls functions for all rows that data may select.

    Args:
        selected: What is known of rows.
        fixed: Returns the value of a tensor that nothing changes; None of others.
    """

    def __init__(self, selected: Selected, fixed: Callable[[Tensor], Tensor | None]) -> None:
        super().__init__()
        self.selected = selected
        self.picks = Picks(selected, fixed)

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        try:
            return self._called(func, args, dict(kwargs or {}))
        except NotApart as error:
            self.selected.failed = error.place
            if func is torch._C._set_grad_enabled:  # As `no_grad` does where it is left.
                func(*args)
            raise

    def _called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.picks.begin(args, kwargs)
        self.picks.visits.leave_left()
        handler = _HANDLERS.get(func) if args else None
        if handler is not None:
            done, result = handler(self.picks, func, args, kwargs)
            if done:
                return result
        if self.selected.active:
            return self._followed(func, args, kwargs)
        return self._noted(func, args, kwargs)

    def _followed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        count = count_in((*args, *kwargs.values()))
        rows = next((found for each in args if (found := self.selected.rows(each))), None)
        if count is not None and func not in _MADE and (rows is None or func not in _VIEWS):
            count.refuse()
        given = args, kwargs
        if count is not None:
            args, kwargs = plain_numbers(args), plain_numbers(kwargs)
        if rows is not None and _name(func).removesuffix("_") in _FAILING:
            return self._of_ones(func, args, kwargs, rows)
        if rows is not None and func in _BOUNDED:
            with self.selected.safe():
                return func(*args, **kwargs)
        result = self._noted(func, args, kwargs)
        if count is not None and func in _MADE:
            self._mark_made(result, count, *given)
        elif rows is not None and func in _VIEWS:
            self._check_sizes(result, *given)
        return result

    def _noted(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a function, and notes which masks have the same elements."""
        result = func(*args, **kwargs)
        first: Any = args[0] if args else None
        if _name(func) in _KEPT_MASKS and is_mask(result) and is_mask(first):
            self.picks.keep(result, first)
        return result

    def _check_sizes(self, result: Tensor, args: Any, kwargs: Any) -> None:
        """Refuses a number that is that of all rows by chance."""
        found = self.selected.rows(result)
        sizes = _flat([*args[1:], *kwargs.values()])
        if found is not None and len(sizes) == result.ndim:
            told = sizes[found.dim]
            if not is_count(told) and told != -1:
                self.selected.refuse(found.selection.place)

    def _mark_made(self, result: Tensor, count: Count, args: Any, kwargs: Any) -> None:
        """Notes that what was made has as many rows as were asked for."""
        flat = _flat(kwargs.get("size", args))
        at = [at for at, each in enumerate(flat[-result.ndim :]) if is_count(each)]
        selection = count.rows.selection
        if len(at) != 1 or result.shape[at[0]] != selection.rows:
            count.refuse()
        self.selected.mark(result, Rows(selection, at[0]))

    def _of_ones(self, func: Any, args: Any, kwargs: Any, rows: Rows) -> Any:
        """Calls a function with ones in the place of rows that aren't there."""
        behind = next(each.ndim - found.dim for each in args if (found := self.selected.rows(each)))

        def safe(given: Any) -> Any:
            return self._safe(given, rows, behind) if isinstance(given, Tensor) else given

        given = tuple(map(safe, args))
        name = _name(func)
        with self.selected.safe():
            if name == "itruediv" or (name.endswith("_") and isinstance(args[0], Tensor)):
                args[0].copy_(given[0])
                return func(args[0], *given[1:], **kwargs)
            return func(*given, **{key: safe(each) for key, each in kwargs.items()})

    def _safe(self, given: Tensor, rows: Rows, behind: int) -> Tensor:
        found = self.selected.rows(given)
        if found is None:
            apart = given.ndim < behind or given.shape[-behind] == 1
        else:
            apart = given.ndim - found.dim == behind and same(found.selection, rows.selection)
        if not apart:
            self.selected.refuse(rows.selection.place)
        with self.selected.free():
            valid = along(self.picks.valid(rows.selection), behind)
            other = 1 if given.is_floating_point() else 0
            made = torch.where(valid, given, torch.full((), other, dtype=given.dtype))
        return self.selected.mark(made, Rows(rows.selection, made.ndim - behind))


_Handler = Callable[[Picks, Any, Any, dict[str, Any]], Done]

_HANDLERS: dict[Any, _Handler] = {
    torch.where: row_reads.places,
    torch.nonzero: row_reads.places,
    Tensor.nonzero: row_reads.places,
    torch.argwhere: row_reads.places,
    Tensor.argwhere: row_reads.places,
    torch.index_select: row_reads.chosen,
    Tensor.index_select: row_reads.chosen,
    torch.masked_select: row_reads.masked,
    Tensor.masked_select: row_reads.masked,
    Tensor.__getitem__: row_reads.read,
    Tensor.__setitem__: row_writes.write,
    torch.index_add: row_writes.add,
    Tensor.index_add: row_writes.add,
    Tensor.index_add_: row_writes.add,
    torch.index_put: row_writes.put,
    torch.index_put_: row_writes.put,
    Tensor.index_put: row_writes.put,
    Tensor.index_put_: row_writes.put,
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), row_joins.join),
    **dict.fromkeys((torch.scatter, Tensor.scatter, Tensor.scatter_), row_scatters.scatter),
    torch.scatter_add: row_scatters.scatter,
    Tensor.scatter_add: row_scatters.scatter,
    Tensor.scatter_add_: row_scatters.scatter,
    torch.scatter_reduce: row_scatters.scatter,
    Tensor.scatter_reduce: row_scatters.scatter,
    Tensor.scatter_reduce_: row_scatters.scatter,
    torch.sum: row_writes.total,
    Tensor.sum: row_writes.total,
    **dict.fromkeys(MEANS, row_writes.total),
    Tensor.shape.__get__: row_counts.shape,  # type: ignore[attr-defined]
    Tensor.size: row_counts.shape,
    Tensor.numel: row_counts.number,
    Tensor.nelement: row_counts.number,
    torch.numel: row_counts.number,
    Tensor.__len__: row_counts.length,
    Tensor.__bool__: row_counts.truth,
    Tensor.item: row_counts.truth,
    Tensor.unbind: row_counts.each,
    Tensor.register_hook: own_backward.hook,
}


def _flat(sizes: Sequence[Any]) -> list[Any]:
    return [each for part in sizes for each in (part if isinstance(part, tuple | list) else [part])]


def _name(func: Any) -> str:
    name: str = getattr(func, "__name__", "")
    return name.strip("_") if name.startswith("__") else name
