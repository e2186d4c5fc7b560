"""The leaves of a batch or call: its tensors, and the plain values between them.

A program is made for the plain values of its example. They are noted with it by their paths, and
compared with those of each call; both sides go through batches in the same way, here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from numbers import Number
from typing import Any

from autopar.ir.program import Arg

Path = tuple[str | int, ...]
"""The way from a batch to a leaf: keys and names of fields, or positions."""

_TOLD_BY_REPR = (Enum, bytes, range, slice)
"""Types whose values differ where their texts do, besides those of torch, as `torch.float32`."""


def leaves(batch: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yields the leaves of a batch with their paths.

    These are tensors, and whatever else it has. A list within it that has no tensor is a leaf.

    Args:
        batch: Leaves in any nesting of mappings, sequences and dataclasses.
        path: The way to it.
    """
    for name, child in _children(batch):
        if _is_inner(child) and not is_plain_list(child):
            yield from leaves(child, (*path, name))
        else:
            yield (*path, name), child


def call_leaves(
    args: Sequence[Any], kwargs: Mapping[str, Any], arguments: Sequence[str]
) -> Iterator[tuple[Path, Any]]:
    """Yields the leaves of a call of a model.

    Args:
        args: Its arguments by position, whose paths begin with their names where these are known.
        kwargs: Its arguments by name.
        arguments: See `Example`.
    """
    named = [(_argument(at, arguments), each) for at, each in enumerate(args)]
    for name, each in (*named, *kwargs.items()):
        if _is_inner(each) and not is_plain_list(each):
            yield from leaves(each, (name,))
        else:
            yield (name,), each


def is_array(leaf: Any) -> bool:
    """Whether a leaf is a tensor, of any library."""
    # What a class has isn't asked of the object: a nested tensor has no shape to tell.
    return hasattr(type(leaf), "shape") or hasattr(leaf, "shape")


def is_scalar_of_a_library(leaf: Any) -> bool:
    """Whether a leaf is a number with a shape, as NumPy's are."""
    return isinstance(leaf, Number) and is_array(leaf)


def is_plain_list(node: Any) -> bool:
    """Whether a node is a list that has no tensor: it is one plain value."""
    return isinstance(node, (list, tuple)) and all(
        is_plain_list(each) if _is_inner(each) else not is_array(each) for each in node
    )


def label_of_path(path: Path) -> str:
    """Returns what a program calls a plain value with this path."""
    return ".".join(map(str, path))


def recorded(value: Any) -> Arg:
    """Returns a plain value as it is noted with a program.

    Of objects that are no numbers, texts or lists of such, the type is noted, and the value where
    its text tells that.
    """
    if is_scalar_of_a_library(value):
        return recorded(value.item())
    if isinstance(value, str) and value.startswith("<any "):
        return f"<text {value!r}>"
    if value is None or type(value) in (bool, int, float, complex, str):
        return value  # type: ignore[no-any-return]
    if isinstance(value, (list, tuple)):
        return tuple(map(recorded, value))
    kind = type(value)
    if isinstance(value, _TOLD_BY_REPR) or kind.__module__ == "torch":
        return f"<{kind.__module__}.{kind.__qualname__} {value!r}>"
    return f"<{kind.__module__}.{kind.__qualname__}>"


def any_of(kind: type) -> str:
    """Returns what is noted in place of a value on which a program doesn't depend."""
    return f"<any {kind.__name__}>"


def is_object(noted: str) -> bool:
    """Whether a text notes an object, and isn't one that was given."""
    return noted.startswith("<") and noted.endswith(">")


def _argument(at: int, arguments: Sequence[str]) -> str | int:
    rest = arguments[-1][1:] if arguments and arguments[-1].startswith("*") else ""
    known = len(arguments) - bool(rest)
    if at < known:
        return arguments[at]
    return f"{rest}.{at - known}" if rest else at


def _is_inner(node: Any) -> bool:
    return isinstance(node, (Mapping, list, tuple)) or _is_record(node)


def _is_record(node: Any) -> bool:
    return is_dataclass(node) and not isinstance(node, type)


def _children(node: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(node, Mapping):
        yield from ((str(key), child) for key, child in node.items())
    elif hasattr(node, "_fields"):
        yield from zip(node._fields, node, strict=True)
    elif isinstance(node, (list, tuple)):
        yield from enumerate(node)
    elif _is_record(node):
        yield from ((field.name, getattr(node, field.name)) for field in fields(node))
    else:
        yield 0, node
