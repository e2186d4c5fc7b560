"""Which dimensions of an example batch stay open, as users say it.

    dynamic={"ids": {0: "batch=1:64", 1: "length"}, "target": {0: "batch"}}

A dimension is given a name, a range, both (`name=range`), or a `torch.export.Dim`. Dimensions
of one name have one size, and that of the example is what is planned for, unless a range says
otherwise. One that is as long as others together is called so: `past + length`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.export import Dim
from torch.export.dynamic_shapes import _DerivedDim, _DimHint, _DimHintType

from autopar.base.arguments import shown
from autopar.base.errors import InvalidInputError, near_misses
from autopar.ir.expr.expression import UNBOUNDED, IntExpr, Size
from autopar.ir.expr.ranges import SPELLINGS, SizeRange, parse_range, sum_of

Dynamic = Mapping[Any, Any] | Sequence[Any]
"""Dimensions by name or position of the tensor: a mapping by dimension, or one entry for each."""

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ENTRIES = f'a name, as "batch"; a range, as "1:64"; both, as "batch=1:64"; or a {Dim.__name__}'


@dataclass(frozen=True)
class _OpenDim:
    """A dimension that stays open.

    Attributes:
        place: What it is, for messages.
        name: The name of its size.
        range: What is said of its size, if anything is.
        example: Its size in the example.
    """

    place: str
    name: str
    range: SizeRange | None
    example: int

    @property
    def is_limited(self) -> bool:
        """Whether the user said what its size may be."""
        known = self.range
        return known is not None and (known.least > 0 or known.most < UNBOUNDED)


@dataclass(frozen=True)
class Opened:
    """The shapes of the tensors of a batch, in which sizes may be open.

    Attributes:
        shapes: Of each tensor.
        said: Names of the sizes whose ranges the user gave.
    """

    shapes: tuple[tuple[IntExpr, ...], ...]
    said: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """Names of the open sizes."""
        sizes = (size for shape in self.shapes for size in shape)
        return frozenset(size.name for size in sizes if isinstance(size, Size))

    @property
    def batch(self) -> bool:
        """Whether the first dimension of a tensor is open."""
        return any(isinstance(size, Size) for shape in self.shapes for size in shape[:1])


def open_shapes(
    dynamic: Dynamic | None, labels: Sequence[str], tensors: Sequence[Tensor]
) -> Opened:
    """Returns the shapes of the tensors of a batch, in which sizes may be open.

    Args:
        dynamic: What the user says.
        labels: Names of the tensors.
        tensors: The example.

    Raises:
        InvalidInputError: If there is no such tensor or dimension, a size isn't said as one is, or
            what is said doesn't fit together, or to the example.
    """
    given: dict[tuple[int, int], _OpenDim] = {}
    for at, dims in _by_tensor(dynamic, labels):
        for dim, said in _by_dim(dims, labels[at], tensors[at].ndim):
            found = _open_dim(said, labels[at], dim, tensors[at].shape[dim])
            if found is not None:
                given[at, dim] = found
    sizes = _sizes(list(given.values()))
    shapes = tuple(
        tuple(
            sizes[given[at, dim].name] if (at, dim) in given else int(size)
            for dim, size in enumerate(tensor.shape)
        )
        for at, tensor in enumerate(tensors)
    )
    return Opened(shapes, frozenset(each.name for each in given.values() if each.is_limited))


def _by_tensor(dynamic: Dynamic | None, labels: Sequence[str]) -> Iterator[tuple[int, Any]]:
    """Yields positions of tensors with what is said of their dimensions."""
    if dynamic is None:
        return
    if not isinstance(dynamic, (Mapping, list, tuple)):
        raise InvalidInputError(
            f'dynamic={shown(dynamic)}: give dimensions by input, as {{"{labels[0]}": {{0:'
            ' "batch"}}'
        )
    if not isinstance(dynamic, Mapping):
        if len(dynamic) > len(labels):
            raise InvalidInputError(
                f"dynamic= has {len(dynamic)} entries, the batch {len(labels)} tensors:"
                f" {', '.join(labels)}"
            )
        dynamic = dict(enumerate(dynamic))
    for key, dims in dynamic.items():
        if key in labels:
            yield labels.index(key), dims
        elif isinstance(key, int) and 0 <= key < len(labels):
            yield key, dims
        else:
            hint = near_misses(str(key), labels) or f"; there are: {', '.join(labels)}"
            raise InvalidInputError(f"dynamic=: there is no tensor {key!r} in the batch{hint}")


def _by_dim(dims: Any, label: str, rank: int) -> Iterator[tuple[int, Any]]:
    """Yields dimensions of a tensor with what is said of them."""
    if dims is None:
        return
    if isinstance(dims, (list, tuple)):
        dims = dict(enumerate(dims))
    if not isinstance(dims, Mapping):
        raise InvalidInputError(
            f'dynamic[{label!r}] is {shown(dims)}; give a dict by dimension, as {{0: "batch"}}'
        )
    for dim, said in dims.items():
        if not isinstance(dim, int) or not -rank <= dim < rank:
            raise InvalidInputError(
                f"dynamic[{label!r}]: there is no dimension {dim!r}; it has {rank}"
            )
        yield dim % rank, said


def _open_dim(said: Any, label: str, dim: int, example: int) -> _OpenDim | None:
    """Returns a dimension that stays open; None if it has the example's size."""
    if said is None or (isinstance(said, _DimHint) and said.type is _DimHintType.STATIC):
        return None
    place = f"dynamic[{label!r}][{dim}]"
    default = re.sub(r"\W|^(?=\d)", "_", f"{label}_{dim}")
    try:
        name, known = _read(said, default)
    except ValueError as problem:
        raise InvalidInputError(f"{place}: {problem}") from None
    if known is None or isinstance(known, SizeRange):
        return _OpenDim(place, name, known, example)
    if known != example:
        raise InvalidInputError(f"{place} is {known}, and the example has {example} there")
    return None


def _read(said: Any, default: str) -> tuple[str, int | SizeRange | None]:
    """Returns the name of a size, and what is said of it.

    Raises:
        ValueError: If that says no size.
    """
    if isinstance(said, str):
        name, equals, text = said.rpartition("=")
        if not equals and (_NAME.fullmatch(text) or "+" in text):
            return text, None
        if equals and not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name: letters, digits and _")
        return name or default, parse_range(text)
    if isinstance(said, int) and not isinstance(said, bool):
        return default, said
    if isinstance(said, _DerivedDim):
        raise ValueError(f"{said!r} follows from another size; open that one, or give a name")
    if isinstance(said, Dim):
        return said.__name__, _range(said.min, said.max)
    if isinstance(said, _DimHint):
        return default, _range(said.min, said.max)
    raise ValueError(f"{shown(said)} is no size; give {_ENTRIES}; in a range: {SPELLINGS}")


def _range(least: Any, most: Any) -> int | SizeRange:
    """Returns the range of a `Dim`, whose largest size may be infinite, or its only size."""
    known = most is not None and most < UNBOUNDED
    if known and least == most:
        return int(most)
    return SizeRange(int(least or 0), int(most) if known else UNBOUNDED)


def _sizes(dims: Sequence[_OpenDim]) -> dict[str, IntExpr]:
    """Returns the open sizes by name, and sums of them by what they are called."""
    sizes: Mapping[str, Size] = _open_sizes([each for each in dims if "+" not in each.name])
    found: dict[str, IntExpr] = {**sizes}
    examples = {each.name: each.example for each in dims}
    for each in (each for each in dims if each.name not in sizes):
        total, example = sum_of(each.name, sizes), sum_of(each.name, examples)
        if total is None:
            listed = ", ".join(sizes) or "none"
            raise InvalidInputError(
                f"{each.place}: {each.name!r} is no sum of names and numbers; there are {listed}"
            )
        if example != each.example:
            raise InvalidInputError(
                f"{each.place} is {each.name!r}, {example} in the example, but that has"
                f" {each.example} there"
            )
        found[each.name] = total
    return found


def _open_sizes(dims: Sequence[_OpenDim]) -> dict[str, Size]:
    found: dict[str, Size] = {}
    first: dict[str, _OpenDim] = {}
    said: dict[str, _OpenDim] = {}
    for each in dims:
        other = first.setdefault(each.name, each)
        if other.example != each.example:
            raise InvalidInputError(
                f"{other.place} and {each.place} are both {each.name!r}, and the example has"
                f" {other.example} and {each.example} there; give them two names"
            )
        if each.range is not None:
            other = said.setdefault(each.name, each)
            if other.range != each.range:
                raise InvalidInputError(
                    f"{other.place} and {each.place} are both {each.name!r}, with two ranges"
                )
    for name, each in first.items():
        known = (said[name].range if name in said else None) or SizeRange()
        if not known.least <= each.example <= known.most:
            most = "" if known.most == UNBOUNDED else f" and at most {known.most}"
            raise InvalidInputError(
                f"{each.place}: the example has {each.example} there; {name} is at least"
                f" {known.least}{most}"
            )
        found[name] = known.size(name, each.example)
    return found
