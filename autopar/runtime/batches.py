"""Batches: a nested structure of tensors, told apart by the labels of a program's inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from autopar.ir.errors import InvalidInputError
from autopar.ir.units import counted

Path = tuple[str | int, ...]
"""The way from a batch to a tensor: keys and names of fields, or positions."""


def label_batch(batch: Any, labels: Sequence[str]) -> dict[str, Any]:
    """Returns the tensors of a batch by the labels of the inputs that they are for.

    A tensor under a name, as `batch["x"]`, is for the input whose label ends like its path. The
    others are for the labels that are left, in their order.

    Args:
        batch: Tensors in any nesting of mappings, sequences and dataclasses. What else is in it,
            as flags, is part of the program.
        labels: The labels of the inputs, in the order in which they stand in the batch.

    Raises:
        InvalidInputError: If a tensor is for no input, or an input gets none.
    """
    leaves = list(_leaves(batch, ()))
    found: dict[str, Any] = {}
    rest: list[tuple[Path, Any]] = []
    surplus: list[Path] = []
    for path, leaf in leaves:
        label = _label_of(path, [each for each in labels if each not in found])
        if label is not None:
            found[label] = leaf
        elif isinstance(path[-1], str):
            surplus.append(path)
        else:
            rest.append((path, leaf))
    left = [label for label in labels if label not in found]
    found.update((label, leaf) for label, (_, leaf) in zip(left, rest, strict=False))
    surplus.extend(path for path, _ in rest[len(left) :])
    if surplus or len(rest) < len(left):
        raise InvalidInputError(_problem(len(leaves), labels, left[len(rest) :], surplus))
    return found


def looks_like_a_part(
    given: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]], ranks: int
) -> bool:
    """Returns whether tensors are as small as if each rank had been given its part of a batch.

    Args:
        given: Their shapes.
        wanted: Those of the global batch.
        ranks: How many ranks there are.
    """
    ratios: set[int] = set()
    for one, other in zip(given, wanted, strict=True):
        if len(one) != len(other):
            return False
        ratios |= {w // g if g and w % g == 0 else 0 for g, w in zip(one, other, strict=True)}
    share = max(ratios, default=1)
    return share > 1 and ratios <= {1, share} and ranks % share == 0


def _label_of(path: Path, labels: Sequence[str]) -> str | None:
    """Returns the label that ends most like the path; None if none does."""
    ends = {label: _common_end(_parts(path), label.split(".")) for label in labels}
    best = max(ends, key=ends.__getitem__, default=None)
    # Positions alone tell little: many labels end in 0.
    least = 1 if isinstance(path[-1], str) else 2
    return best if best is not None and ends[best] >= least else None


def _parts(path: Path) -> list[str]:
    return ".".join(map(str, path)).split(".")


def _common_end(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[-1 - count] == other[-1 - count]:
        count += 1
    return count


def _leaves(node: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    for name, child in _children(node):
        if _is_inner(child):
            yield from _leaves(child, (*path, name))
        elif hasattr(child, "shape"):
            yield (*path, name), child


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


def _problem(
    count: int, labels: Sequence[str], missing: Sequence[str], surplus: Sequence[Path]
) -> str:
    said = [
        f"the batch has {counted(count, 'tensor')}, the program takes {len(labels)}:"
        f" {', '.join(labels)}"
    ]
    if missing:
        said.append(f"nothing is given for {', '.join(missing)}")
    if surplus:
        said.append(f"nothing takes {', '.join(repr('.'.join(_parts(path))) for path in surplus)}")
    return "; ".join(said)
