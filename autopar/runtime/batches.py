"""Batches: a nested structure of tensors, told apart by the labels of a program's inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from autopar.ir.errors import InvalidInputError

Path = tuple[str, ...]


def label_batch(batch: Any, labels: Sequence[str]) -> dict[str, Any]:
    """Returns the tensors of a batch by the labels of the inputs that they are for.

    A tensor whose place in the structure ends like a label, as `batch["x"]` does for the input
    `x`, is for that input. The others are for the labels that are left, in their order.

    Args:
        batch: Tensors in any nesting of mappings, sequences and dataclasses. What else is in it,
            as flags, is part of the program.
        labels: The labels of the inputs, in the order in which they stand in the batch.

    Raises:
        InvalidInputError: If there are more tensors, or fewer.
    """
    leaves = list(_leaves(batch, ()))
    found: dict[str, Any] = {}
    rest: list[tuple[Path, Any]] = []
    for path, leaf in leaves:
        label = next((end for end in _endings(path) if end in labels and end not in found), None)
        if label is None:
            rest.append((path, leaf))
        else:
            found[label] = leaf
    left = [label for label in labels if label not in found]
    if len(left) != len(rest):
        raise InvalidInputError(_count_problem(labels, left, leaves, rest))
    found.update((label, leaf) for label, (_, leaf) in zip(left, rest, strict=True))
    return found


def _leaves(node: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    for name, child in _children(node):
        if _is_inner(child):
            yield from _leaves(child, (*path, name))
        elif hasattr(child, "shape"):
            yield (*path, name), child


def _is_inner(node: Any) -> bool:
    if isinstance(node, (str, bytes)):
        return False
    return isinstance(node, (Mapping, list, tuple)) or _is_record(node)


def _is_record(node: Any) -> bool:
    return is_dataclass(node) and not isinstance(node, type)


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        yield from ((str(key), child) for key, child in node.items())
    elif hasattr(node, "_fields"):
        yield from zip(node._fields, node, strict=True)
    elif isinstance(node, (list, tuple)):
        yield from ((str(at), child) for at, child in enumerate(node))
    elif _is_record(node):
        yield from ((field.name, getattr(node, field.name)) for field in fields(node))
    else:
        yield "0", node


def _endings(path: Path) -> Iterator[str]:
    """Yields `a.b.c`, `b.c`, `c`."""
    for start in range(len(path)):
        yield ".".join(path[start:])


def _count_problem(
    labels: Sequence[str],
    left: Sequence[str],
    leaves: Sequence[tuple[Path, Any]],
    rest: Sequence[tuple[Path, Any]],
) -> str:
    found = f"the batch has {len(leaves)} tensors, the program takes {len(labels)}"
    if len(rest) > len(left):
        surplus = ", ".join(repr(".".join(path)) for path, _ in rest)
        return f"{found}: {', '.join(labels)}; nothing takes {surplus}"
    return f"{found}: {', '.join(labels)}; nothing is given for {', '.join(left)}"
