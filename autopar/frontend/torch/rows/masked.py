"""Masks as indices, as in `h[mask] = value` and `h[mask]`, without shapes that depend on them.

What is written alike to all elements that a mask selects is a choice between two tensors. What is
written to rows one after the other is looked up. Else the number of these elements is asked for, as
the user's code may ask for it itself (see `conditions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from autopar.frontend.torch.rows.joined import without_lists

Args = tuple[Any, ...]
Named = Mapping[str, Any]


def _set(func: Any, args: Args, kwargs: Named) -> Any:
    target, index, value = args
    index = without_lists(index)
    if _is_choice(target, index, value):
        return _choose(target, index, value)
    return func(target, _static(index) if _counts(index, value) else index, value)


def _get(func: Any, args: Args, kwargs: Named) -> Any:
    return func(args[0], _static(without_lists(args[1])))


def _nonzero(func: Any, args: Args, kwargs: Named) -> Any:
    mask = args[0] if args else kwargs["input"]
    if not mask.ndim:
        return NotImplemented
    found = tuple(_places(mask))
    return found if kwargs.get("as_tuple") else torch.stack(found, dim=1)


def _where(func: Any, args: Args, kwargs: Named) -> Any:
    alone = len(args) == 1 and not kwargs and args[0].ndim
    return tuple(_places(args[0])) if alone else NotImplemented


def _select(func: Any, args: Args, kwargs: Named) -> Any:
    if len(args) != 2:
        return NotImplemented
    source, mask = torch.broadcast_tensors(*args)  # type: ignore[no-untyped-call]
    return source[_places(mask)]


def _scatter(func: Any, args: Args, kwargs: Named) -> Any:
    made = None if kwargs else _scattered(*args)
    if made is None:
        return NotImplemented
    return args[0].copy_(made) if func is Tensor.masked_scatter_ else made


def _repeat(func: Any, args: Args, kwargs: Named) -> Any:
    return func(*args, **_with_size(*args, **kwargs))


REWRITES: Mapping[Any, Any] = {
    Tensor.__setitem__: _set,
    Tensor.__getitem__: _get,
    torch.where: _where,
    **dict.fromkeys((torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere), _nonzero),
    **dict.fromkeys((torch.masked_select, Tensor.masked_select), _select),
    **dict.fromkeys(
        (torch.masked_scatter, Tensor.masked_scatter, Tensor.masked_scatter_), _scatter
    ),
    **dict.fromkeys((torch.repeat_interleave, Tensor.repeat_interleave), _repeat),
}
"""Functions of which the results have shapes of their own where a mask decides about them."""


def _scattered(target: Tensor, mask: Tensor, source: Tensor) -> Tensor | None:
    """Returns what `masked_scatter` makes of a mask that selects rows; None of any other mask.

    Each row looks up which of the source's it is, so that rows and what they are made of can be
    split, which elements that are told one after the other can't.
    """
    mask = mask.expand(target.shape)
    inner = 0
    while inner < mask.ndim and (mask.stride(-1 - inner) == 0 or mask.shape[-1 - inner] == 1):
        inner += 1
    width = target.shape[mask.ndim - inner :].numel()
    if not inner or not source.numel() or not width or source.numel() % width:
        return None
    rows = mask
    for _ in range(inner):
        rows = rows.select(-1, 0)
    order = (rows.flatten().cumsum(0) - 1).clamp(min=0)
    found = source.reshape(-1, width)[order].reshape(target.shape)
    return torch.where(mask, found, target)


def _with_size(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Returns the keywords of `repeat_interleave`, with how much that is where a tensor says so."""
    given = dict(zip(("input", "repeats", "dim"), args, strict=False)) | kwargs
    source, repeats = given["input"], given.get("repeats", given["input"])
    if not isinstance(repeats, Tensor) or given.get("output_size") is not None:
        return kwargs
    if repeats.numel() == 1 and "repeats" in given:
        dim = given.get("dim")
        repeats = repeats.expand(source.numel() if dim is None else source.shape[dim])
    return kwargs | {"output_size": int(repeats.sum())}


def _is_choice(target: Any, mask: Any, value: Any) -> bool:
    """Whether a value is written alike wherever a mask says so."""
    if not isinstance(value, Tensor) or not is_mask(mask):
        return False
    inner = target.ndim - mask.ndim
    return mask.shape == target.shape[: mask.ndim] and (
        value.ndim <= inner or (value.ndim == inner + 1 and value.shape[0] == 1)
    )


def _counts(index: Any, value: Any) -> bool:
    """Whether what is written needs as many places as a mask selects: several, or one of each."""
    if isinstance(value, Tensor) and value.ndim:
        return True
    return isinstance(index, tuple) and sum(isinstance(each, Tensor) for each in index) > 1


def _choose(target: Tensor, mask: Tensor, value: Tensor) -> None:
    inner = target.ndim - mask.ndim
    rows = mask.reshape(*mask.shape, *[1] * inner)
    row = value.squeeze(0) if value.ndim > inner else value
    target.copy_(torch.where(rows, row.to(target.dtype), target))


def _static(index: Any) -> Any:
    """Returns an index whose mask, if it has one, became the places that it selects."""
    if is_mask(index):
        return _places(index)
    if not isinstance(index, tuple) or not any(map(is_mask, index)):
        return index
    parts = (_places(each) if is_mask(each) else (each,) for each in index)
    return tuple(place for each in parts for place in each)


def is_mask(given: Any) -> bool:
    """Whether something is a mask."""
    return isinstance(given, Tensor) and given.dtype == torch.bool and given.ndim > 0


def _places(mask: Tensor) -> Sequence[Tensor]:
    """Returns where a tensor isn't zero, by dimension."""
    count = int(mask.ne(0).sum())
    # Where there are fewer, places that exist, so that the count is what is told to be wrong.
    found: Tensor = torch.nonzero_static(mask, size=count, fill_value=0)
    return found.unbind(1)
