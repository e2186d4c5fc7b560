"""The batch of a model: a pytree of tensors, and the names that its tensors have as inputs.

A leaf is called by its way from the root: `input_ids` for a key of a dict, `x` for an argument
of `forward`, `batch.0.1` in nested lists. What is no tensor (a flag, None) is part of the program.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autopar.base.errors import InvalidInputError

Path = tuple[Any, ...]
"""Keys from the root of a batch to a leaf: strings, and ints for positions."""


OUTPUT = "output"
"""What a result of a model is called that has no name of its own."""


class _TensorLeaf:
    """Stands for a tensor among the leaves of a structure."""

    def __repr__(self) -> str:
        return "a tensor"


_TENSOR = _TensorLeaf()


@dataclass(frozen=True)
class Structure:
    """The structure of a batch.

    Attributes:
        labels: Names of its tensors, in order.
        spec: How its leaves are put together.
        plain: The leaves that are no tensors, by position, with marks where a tensor is.
    """

    labels: tuple[str, ...]
    spec: pytree.TreeSpec
    plain: tuple[Any, ...]

    def rest(self) -> tuple[Any, ...]:
        """Returns the leaves that are no tensors."""
        return tuple(leaf for leaf in self.plain if leaf is not _TENSOR)

    def rebuild(self, tensors: Sequence[Tensor]) -> Any:
        """Returns a batch of this structure with these tensors in it."""
        fresh = iter(tensors)
        leaves = [next(fresh) if leaf is _TENSOR else leaf for leaf in self.plain]
        return pytree.tree_unflatten(leaves, self.spec)


def flatten(batch: Any, label: Callable[[Path], str]) -> tuple[Structure, list[Tensor]]:
    """Returns the structure of a batch and its tensors in order.

    Args:
        batch: The pytree.
        label: Names a leaf by its path.

    Raises:
        InvalidInputError: If there is no tensor in it.
    """
    paths, spec = pytree.tree_flatten_with_path(batch)
    labels: list[str] = []
    tensors: list[Tensor] = []
    for path, leaf in paths:
        if isinstance(leaf, Tensor):
            labels.append(_distinct(label(tuple(map(key_of, path))), labels))
            tensors.append(leaf)
    if not tensors:
        found = ", ".join(type(leaf).__name__ for _, leaf in paths[:3]) or "nothing"
        raise InvalidInputError(f"the inputs hold no tensor, only {found}")
    return structure_of(paths, spec, labels), tensors


def structure_of(
    paths: Sequence[tuple[Any, Any]], spec: pytree.TreeSpec, labels: Sequence[str]
) -> Structure:
    """Returns the structure of a flattened pytree.

    Args:
        paths: Its leaves, each with its path.
        spec: How they are put together.
        labels: Names of the tensors among them, in order.
    """
    plain = tuple(_TENSOR if isinstance(leaf, Tensor) else leaf for _, leaf in paths)
    return Structure(tuple(labels), spec, plain)


def call_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the positional and named arguments that inputs of a model stand for.

    Args:
        inputs: A dict of named arguments, a tuple or list of positional ones, or the only one.
    """
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def input_label(model: nn.Module) -> Callable[[Path], str]:
    """Returns what names the leaves of inputs of a model: after the arguments of its `forward`."""
    names: list[str] = []
    rest = "input"
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            rest = parameter.name
        elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            names.append(parameter.name)

    def label(path: Path) -> str:
        first, *inner = path or (0,)
        if isinstance(first, int):
            first = names[first] if first < len(names) else f"{rest}.{first - len(names)}"
        return ".".join(map(str, (first, *inner)))

    return label


def pair_label(model: nn.Module) -> Callable[[Path], str]:
    """Returns what names the leaves of a batch `(inputs, target)`."""
    of_input = input_label(model)

    def label(path: Path) -> str:
        if path[0] == 0:
            return of_input(path[1:])
        more = path[1:] if path[0] == 1 else (path[0], *path[1:])
        return ".".join(map(str, ("target", *more)))

    return label


def batch_label(path: Path) -> str:
    """Names a leaf of a batch of any structure."""
    keys = path if path and isinstance(path[0], str) else ("batch", *path)
    return ".".join(map(str, keys))


def output_labels(paths: Sequence[Sequence[Any]]) -> list[str]:
    """Returns names of what a model returns, by the paths of pytree.

    A key is its own name, `logits`; what has none is `output`, or `output.0` in a tuple.
    """
    labels: list[str] = []
    for path in paths:
        keys = [key_of(key) for key in path]
        if keys[:1] == [OUTPUT] and len(keys) > 1 and isinstance(keys[1], str):
            del keys[0]
        elif keys[:1] != [OUTPUT] and not (keys and isinstance(keys[0], str)):
            keys.insert(0, OUTPUT)
        labels.append(_distinct(".".join(map(str, keys)), labels))
    return labels


def only(outputs: Any, names: Sequence[str]) -> Any:
    """Returns what a model returns with None in place of all that nobody asks for.

    Args:
        outputs: A pytree.
        names: What is asked for, as `output_labels` calls it: a tensor, or all within an entry. If
            there is no tensor among that, all is returned.
    """
    paths, spec = pytree.tree_flatten_with_path(outputs)
    labels = output_labels([path for path, _ in paths])
    asked = [
        leaf if is_among(name, names) else None
        for name, (_, leaf) in zip(labels, paths, strict=True)
    ]
    if not any(isinstance(leaf, Tensor) for leaf in asked):
        return outputs
    return pytree.tree_unflatten(asked, spec)


def is_among(label: str, names: Sequence[str]) -> bool:
    """Whether a label is one of these names, or lies within one: `cache.0` within `cache`."""
    return any(label == name or label.startswith(f"{name}.") for name in names)


def key_of(key: Any) -> Any:
    """Returns a step of pytree's way to a leaf as a key, a name or a position."""
    for name in ("idx", "key", "name"):
        if hasattr(key, name):
            return getattr(key, name)
    return str(key)


def _distinct(label: str, taken: Sequence[str]) -> str:
    name, count = label, 1
    while name in taken:
        name, count = f"{label}.{count}", count + 1
    return name
