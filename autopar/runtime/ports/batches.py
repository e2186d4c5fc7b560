"""Batches and calls: nested tensors, told apart by the labels of a program's inputs.

What is no tensor in them is part of the program: it must be what the example had, but for values
that no code reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autopar.base.arguments import shown
from autopar.base.errors import InvalidInputError
from autopar.base.units import counted
from autopar.ir.leaves import (
    Path,
    any_of,
    call_leaves,
    is_array,
    is_object,
    is_scalar_of_a_library,
    label_of_path,
    leaves,
    recorded,
)
from autopar.ir.program import Arg, Example
from autopar.runtime.ports.dense import check_dense

Leaves = Sequence[tuple[Path, Any]]

_SHOWN = 5
"""Problems of a kind that a message has."""

_NO_TENSOR = (
    "what is no tensor is part of the program, unless no code reads it: give what it was compiled"
    " with, compile it with this in the example, make what changes from call to call a tensor, or"
    " take what isn't needed out of the example and of what you hand over"
)


def label_batch(
    batch: Any, labels: Sequence[str], example: Example | None = None
) -> dict[str, Any]:
    """Returns the tensors of a batch by the labels of the inputs that they are for.

    A tensor under a name, as `batch["x"]`, is for the input whose label ends like its path. The
    others are for the labels that are left, in their order.

    Args:
        batch: Tensors in any nesting of mappings, sequences and dataclasses, and plain values.
        labels: The labels of the inputs, in the order in which they stand in the batch.
        example: What plain values must be; without it, they aren't looked at.

    Raises:
        InvalidInputError: If a tensor is for no input or not a plain one, or an input gets none, or
            a plain value isn't the example's.
    """
    return _labelled(list(leaves(batch)), labels, example, "batch", True)


def label_call(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    labels: Sequence[str],
    example: Example | None = None,
) -> dict[str, Any]:
    """Returns the tensors of a call of a model by the labels of the inputs that they are for.

    Args:
        args, kwargs: The arguments.
        labels, example: See `label_batch`.

    Raises:
        InvalidInputError: As `label_batch` does.
    """
    arguments = () if example is None else example.arguments
    found = list(call_leaves(args, kwargs, arguments))
    return _labelled(found, labels, example, "argument", False)


def _labelled(
    found: Leaves, labels: Sequence[str], example: Example | None, what: str, nested: bool
) -> dict[str, Any]:
    known = {} if example is None else {**dict(example.defaults), **dict(example.given)}

    def is_tensor(path: Path, leaf: Any) -> bool:
        noted = is_scalar_of_a_library(leaf) and label_of_path(path) in known
        return is_array(leaf) and not noted

    tensors = [(path, leaf) for path, leaf in found if is_tensor(path, leaf)]
    plain = [(path, leaf) for path, leaf in found if not is_tensor(path, leaf)]
    taken, problem = _tensors(tensors, labels, what)
    missing = [label for label in labels if label not in taken]
    problems = [problem] if problem else []
    problems += _no_tensors(plain, missing, what)
    if example is not None:
        others = [each for each in plain if not _stands_for_a_tensor(*each, missing)]
        problems += _plain_problems(others, example, what, nested)
    if problems:
        raise InvalidInputError("; ".join(problems))
    check_dense(taken)
    return taken


def _tensors(found: Leaves, labels: Sequence[str], what: str) -> tuple[dict[str, Any], str]:
    """Returns tensors by label, and what is wrong with them."""
    taken: dict[str, Any] = {}
    rest: list[tuple[Path, Any]] = []
    surplus: list[Path] = []
    for path, leaf in found:
        label = _label_of(path, [each for each in labels if each not in taken])
        if label is not None:
            taken[label] = leaf
        elif isinstance(path[-1], str):
            surplus.append(path)
        else:
            rest.append((path, leaf))
    left = [label for label in labels if label not in taken]
    taken.update((label, leaf) for label, (_, leaf) in zip(left, rest, strict=False))
    surplus.extend(path for path, _ in rest[len(left) :])
    if not surplus and len(rest) >= len(left):
        return taken, ""
    return taken, _problem(len(found), labels, left[len(rest) :], surplus, what)


def _no_tensors(plain: Leaves, missing: Sequence[str], what: str) -> Iterator[str]:
    """Yields where tensors are missing and something else is given."""
    for path, leaf in [each for each in plain if _stands_for_a_tensor(*each, missing)][:_SHOWN]:
        if isinstance(leaf, (list, tuple)):
            kind = type(leaf).__name__
            yield f"{_place(path, what)} is a {kind} and no tensor: give torch.tensor(...) of it"
        else:
            yield f"{_place(path, what)} is {shown(leaf)} and no tensor"


def _stands_for_a_tensor(path: Path, leaf: Any, missing: Sequence[str]) -> bool:
    """Whether a plain value is where a tensor seems to be missing."""
    listed = isinstance(leaf, (list, tuple)) and len(leaf) > 0
    return label_of_path(path) in missing or bool(missing and listed)


def _plain_problems(plain: Leaves, example: Example, what: str, nested: bool) -> Iterator[str]:
    problems = list(_differences(plain, example, what, nested))
    yield from problems[:_SHOWN]
    if len(problems) > _SHOWN:
        yield f"and {len(problems) - _SHOWN} more"
    if problems:
        yield _NO_TENSOR


def _differences(plain: Leaves, example: Example, what: str, nested: bool) -> Iterator[str]:
    known = {**dict(example.defaults), **dict(example.given)}
    seen: set[str] = set()
    for path, leaf in plain:
        label = label_of_path(path)
        if label not in known and nested and isinstance(path[-1], str):
            label = _label_of(path, [each for each in known if each not in seen]) or label
        seen.add(label)
        value = recorded(leaf)
        given = f"{_place(path, what)} is {_told(value, leaf)}"
        if label not in known:
            yield f"{given}, the program was compiled without it"
        elif known[label] != any_of(type(leaf)) and repr(value) != repr(known[label]):
            yield f"{given}, the program was compiled with {_told(known[label], known[label])}"
    for label, value in example.given:
        if label not in seen:
            yield f"{label!r} is left out, the program was compiled with {_told(value, value)}"


def _told(noted: Arg, value: Any) -> str:
    """Returns a plain value, of which this is noted, as a message shows it."""
    return noted if isinstance(noted, str) and is_object(noted) else shown(value)


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
    return label_of_path(path).split(".")


def _common_end(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[-1 - count] == other[-1 - count]:
        count += 1
    return count


def _place(path: Path, what: str) -> str:
    """Returns where a leaf is, as the user gave it."""
    first, *inner = path
    if what == "argument":
        head = repr(first) if isinstance(first, str) else f"argument {first + 1}"
    else:
        head, inner = what, list(path)
    return head + "".join(f"[{key!r}]" for key in inner)


def _problem(
    count: int, labels: Sequence[str], missing: Sequence[str], surplus: Iterable[Path], what: str
) -> str:
    whole = "batch" if what == "batch" else "call"
    said = [
        f"the {whole} has {counted(count, 'tensor')}, the program takes {len(labels)}:"
        f" {', '.join(labels)}"
    ]
    if missing:
        said.append(f"nothing is given for {', '.join(missing)}")
    if places := [_place(path, what) for path in surplus]:
        said.append(f"nothing takes {', '.join(places)}")
    return "; ".join(said)
