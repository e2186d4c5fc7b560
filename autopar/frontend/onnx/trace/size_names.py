"""What sizes of inputs are called: as the file does, or by an input and the place in its shape."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import TensorShapeProto, ValueInfoProto

Dimension = TensorShapeProto.Dimension

_COUNTED = re.compile(r"\b[su]\d+\b")
"""How torch's exporter calls sizes that have no name: it counts them."""


@dataclass(frozen=True)
class SizeNames:
    """Names of sizes.

    Attributes:
        of_inputs: Of each input's, in order, "" of those that are fixed.
        counted: Of those that torch has counted, by what it calls them.
        identifiers: What open sizes are called in programs, by name; each has its own.
    """

    of_inputs: Mapping[str, Sequence[str]]
    counted: Mapping[str, str]
    identifiers: Mapping[str, str]

    def known_as(self, given: str) -> str:
        """Returns the name that a user means: one of these, or what was made of one."""
        name = self.counted.get(given, given)
        if name in self.identifiers:
            return name
        ours = {identifier: each for each, identifier in self.identifiers.items()}
        return ours.get(name, name)


def size_names(inputs: Sequence[ValueInfoProto]) -> SizeNames:
    """Returns what sizes of inputs are called.

    One that has no name is called by its input and place, as is one that torch has counted: by the
    first of these.
    """
    symbols = {symbol_of(dim) for value in inputs for dim in dims_of(value)}
    counted: dict[str, str] = {}
    for value in inputs:
        for at, dim in enumerate(dims_of(value)):
            if _COUNTED.fullmatch(symbol_of(dim)):
                counted.setdefault(symbol_of(dim), _placed(value.name, at, symbols))
    of_inputs = {value.name: _names(value, counted, symbols) for value in inputs}
    names = dict.fromkeys(name for each in of_inputs.values() for name in each if name)
    return SizeNames(of_inputs, counted, _identifiers(names))


def dims_of(value: ValueInfoProto) -> Sequence[Dimension]:
    """Returns the dimensions of a tensor."""
    return value.type.tensor_type.shape.dim


def symbol_of(dim: Dimension) -> str:
    """Returns the name of a symbolic size; "" if it has none.

    Some exporters write `?` or `None` for that.
    """
    is_name = any(char.isalnum() for char in dim.dim_param) and dim.dim_param != "None"
    return dim.dim_param if is_name else ""


def number_of(dim: Dimension) -> int | None:
    """Returns a fixed size; None if it isn't.

    Some exporters write -1 where the size is unknown.
    """
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None


def _names(
    value: ValueInfoProto, counted: Mapping[str, str], symbols: Iterable[str]
) -> Sequence[str]:
    names = []
    for at, dim in enumerate(dims_of(value)):
        fixed = number_of(dim) is not None
        known = symbol_of(dim) or ("" if fixed else _placed(value.name, at, symbols))
        names.append(_COUNTED.sub(lambda each: counted.get(each[0], each[0]), known))
    return names


def _placed(name: str, at: int, symbols: Iterable[str]) -> str:
    """Returns the name of a dimension that has none, which is no symbol of the file."""
    return _unlike(f"{name}_{at}", symbols)


def _identifiers(names: Iterable[str]) -> dict[str, str]:
    """Returns an identifier for each name: `a_b` for `a.b`, and `a_b_2` for `a-b` beside it."""
    found = {name: name for name in names if _identifier(name) == name}
    for name in names:
        if name not in found:
            found[name] = _unlike(_identifier(name), found.values())
    return {name: found[name] for name in names}


def _unlike(name: str, others: Iterable[str]) -> str:
    """Returns a name, with a number if there is one like it."""
    taken = frozenset(others)
    counted = (f"{name}_{at}" for at in itertools.count(2))
    return next(each for each in itertools.chain([name], counted) if each not in taken)


def _identifier(name: str) -> str:
    return re.sub(r"\W|^(?=\d)", "_", name)
