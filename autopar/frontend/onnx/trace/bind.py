"""Gives every input a shape: the file's sizes, the user's, and symbols, bound by name or open."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import GraphProto, TensorShapeProto, ValueInfoProto

from autopar.base.errors import near_misses
from autopar.frontend.lower.spelling import IR_DTYPES
from autopar.frontend.onnx.model.dtypes import ElementType, element_type, type_name
from autopar.frontend.onnx.model.problems import Problems
from autopar.frontend.onnx.model.tensors import is_possible, shape_text
from autopar.frontend.onnx.trace.size_names import (
    SizeNames,
    dims_of,
    number_of,
    size_names,
    symbol_of,
)
from autopar.ir.expr.expression import IntExpr, Size
from autopar.ir.expr.ranges import SizeRange, parse_range, sum_of

_OTHER_TYPES = {
    "sequence_type": "a sequence",
    "map_type": "a map",
    "optional_type": "an optional",
    "sparse_tensor_type": "a sparse tensor",
}


PLANNED = (8, 128)
"""For which sizes of first dimensions, and of others, plans are made if nothing is said."""


@dataclass(frozen=True, slots=True)
class BoundInput:
    """An input with its shape, in which sizes may be open."""

    name: str
    kind: ElementType
    shape: tuple[IntExpr, ...]


def bind_inputs(
    graph: GraphProto,
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int | str],
    problems: Problems,
) -> list[BoundInput]:
    """Returns the inputs in order, those that are initializers left out.

    Args:
        graph: The main graph.
        shapes: Shapes that the user gives, by input. They bind the symbols of that input, too.
        dims: Sizes or ranges that the user gives, by symbol (ONNX's `dim_param`).
        problems: Notes conflicts, unknown names, and types that can't be inputs.
    """
    stored = {tensor.name for tensor in graph.initializer}
    stored |= {sparse.values.name for sparse in graph.sparse_initializer}
    inputs = [value for value in graph.input if value.name not in stored]
    found = size_names(inputs)
    names = found.of_inputs
    dims = {found.known_as(name): size for name, size in dims.items()}
    _check_names("--input-shapes", shapes, list(names), "input", problems)
    _check_names("--dims", dims, list(found.identifiers), "symbolic dimension", problems)
    ranges = _ranges(dims, problems)
    _check_sizes(shapes, dims, problems)
    kinds = [_kind(value, problems) for value in inputs]
    binding = _bind_symbols(found, shapes, ranges, problems)
    bound = []
    for value, kind in zip(inputs, kinds, strict=True):
        own = names[value.name]
        shape = None if kind is None else _shape(value, own, shapes, binding, problems)
        if kind is not None and shape is not None:
            bound.append(BoundInput(value.name, kind, shape))
    return bound


def _check_names(
    option: str, given: Iterable[str], known: Sequence[str], what: str, problems: Problems
) -> None:
    for name in given:
        if name not in known:
            hint = near_misses(name, known) or f"; there are: {', '.join(known) or 'none'}"
            problems.add("", f"{option}: there is no {what} {name!r}{hint}")


def _ranges(dims: Mapping[str, int | str], problems: Problems) -> dict[str, int | SizeRange]:
    found: dict[str, int | SizeRange] = {}
    for name, given in dims.items():
        try:
            found[name] = parse_range(given) if isinstance(given, str) else given
        except ValueError as error:
            problems.add("", f"--dims {name}={given}: {error}")
    return found


def _check_sizes(
    shapes: Mapping[str, Sequence[int]], dims: Mapping[str, int | str], problems: Problems
) -> None:
    for name, size in dims.items():
        if isinstance(size, int) and size < 0:
            problems.add("", f"--dims {name}={size}: a size can't be negative")
    for name, shape in shapes.items():
        text = ",".join(map(str, shape))
        if any(size < 0 for size in shape):
            problems.add("", f"--input-shapes {name}:{text}: a size can't be negative")
        elif not is_possible(shape):
            problems.add("", f"--input-shapes {name}:{text}: that is {math.prod(shape)} elements")


def _kind(value: ValueInfoProto, problems: Problems) -> ElementType | None:
    where = f"input {value.name!r}"
    which = value.type.WhichOneof("value")
    if which != "tensor_type":
        problems.add(where, f"is {_OTHER_TYPES.get(which or '', 'of no type')}, not a dense tensor")
        return None
    number = value.type.tensor_type.elem_type
    kind = element_type(number)
    if kind is None or kind.bits < 8 or kind.carrier not in IR_DTYPES:
        problems.add(where, f"element type {type_name(number)} isn't supported for inputs")
        return None
    return kind


def _bind_symbols(
    names: SizeNames,
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int | SizeRange],
    problems: Problems,
) -> dict[str, IntExpr]:
    binding = {name: size for name, size in dims.items() if isinstance(size, int)}
    said = {symbol: f"--dims {symbol}={size}" for symbol, size in binding.items()}
    for name, symbols in names.of_inputs.items():
        shape = shapes.get(name)
        if shape is None or len(shape) != len(symbols):
            continue
        text = f"--input-shapes {name}:{','.join(map(str, shape))}"
        for symbol, size in zip(symbols, shape, strict=True):
            if not symbol:
                continue
            if binding.setdefault(symbol, size) != size:
                problems.add("", f"{text} contradicts {said[symbol]}: dimension {symbol!r}")
            said.setdefault(symbol, text)
    known: dict[str, IntExpr] = {**_open_symbols(names, dims), **binding}
    sums = {
        symbol: sum_of(symbol, known) for symbol in known if symbol not in dims.keys() | binding
    }
    return known | {symbol: total for symbol, total in sums.items() if total is not None}


def _open_symbols(names: SizeNames, dims: Mapping[str, int | SizeRange]) -> dict[str, Size]:
    """Returns the open size of each symbol: one for all dimensions that the file calls the same."""
    found: dict[str, Size] = {}
    for symbols in names.of_inputs.values():
        for at, symbol in enumerate(symbols):
            known = dims.get(symbol)
            if symbol and symbol not in found:
                given = known if isinstance(known, SizeRange) else SizeRange()
                found[symbol] = given.size(names.identifiers[symbol], PLANNED[min(at, 1)])
    return found


def _shape(
    value: ValueInfoProto,
    names: Sequence[str],
    shapes: Mapping[str, Sequence[int]],
    binding: Mapping[str, IntExpr],
    problems: Problems,
) -> tuple[IntExpr, ...] | None:
    """Returns the input's shape; None, after noting why, if a size is missing or contradicted."""
    where = f"input {value.name!r}"
    pairs = zip(dims_of(value), names, strict=True)
    declared = [binding.get(name) if name else number_of(dim) for dim, name in pairs]
    text = "[" + ", ".join(_spell(dim) for dim in dims_of(value)) + "]"
    given = shapes.get(value.name)
    ranked = value.type.tensor_type.HasField("shape")
    if given is not None:
        if ranked and len(given) != len(declared):
            problems.add(where, f"its shape is {text}, --input-shapes gives {len(given)} sizes")
            return None
        fixed = zip(dims_of(value), given, strict=True) if ranked else ()
        wrong = [(d, size) for d, size in fixed if d.dim_value > 0 and d.dim_value != size]
        for dim, size in wrong:
            problems.add(
                where, f"its shape is {text}, --input-shapes gives {size} for {dim.dim_value}"
            )
        return None if wrong else tuple(given)
    if not ranked:
        problems.add(where, "its rank and sizes aren't in the file", "--input-shapes NAME:8,128")
        return None
    sizes = tuple(size for size in declared if size is not None)
    known = [size for size in sizes if isinstance(size, int)]
    if not is_possible(known):
        problems.add(where, f"its shape {shape_text(known)} has {math.prod(known)} elements")
        return None
    return sizes


def _spell(dim: TensorShapeProto.Dimension) -> str:
    if symbol_of(dim):
        return symbol_of(dim)
    return "?" if number_of(dim) is None else str(number_of(dim))
