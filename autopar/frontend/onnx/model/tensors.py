"""TensorProto: is it sound, and its content as a torch tensor."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from onnx import SparseTensorProto, TensorProto

from autopar.frontend.onnx.model.dtypes import FLOAT4_VALUES, ElementType, element_type, type_name
from autopar.frontend.onnx.model.external import ExternalData, Mapped
from autopar.frontend.onnx.model.problems import Problems

LARGEST_DENSE = 2**29
"""Bytes of the dense content of a sparse tensor, which is small in the file."""
LARGEST_GROWTH = 16
"""How much larger than what is stored it may be if it is larger than that."""
MOST_DIMS = 64
"""Dimensions of a tensor; torch and numpy know no more."""
MOST_ELEMENTS = 2**48
"""Elements of a tensor: more is a mistake."""

_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_VIEWS = {torch.float16: np.uint16, torch.bfloat16: np.uint16, torch.bool: np.uint8}


def check_tensor(where: str, tensor: TensorProto, files: ExternalData, problems: Problems) -> None:
    """Notes everything that keeps `tensor` from being read: dtype, dims, byte counts, its file."""
    kind = element_type(tensor.data_type)
    if kind is None:
        problems.add(where, f"element type {type_name(tensor.data_type)} isn't supported")
        return
    if any(dim < 0 for dim in tensor.dims):
        problems.add(where, f"negative dims {list(tensor.dims)}")
        return
    if not is_possible(tensor.dims):
        problems.add(where, f"dims {shape_text(tensor.dims)}, which no tensor has")
        return
    if tensor.HasField("segment"):
        problems.add(where, "is stored in segments, which isn't supported")
        return
    elements = math.prod(tensor.dims)
    if tensor.data_location == TensorProto.EXTERNAL:
        files.check(where, tensor, kind.stored_bytes(elements), problems)
        return
    _check_content(where, tensor, kind, elements, problems)


def _check_content(
    where: str, tensor: TensorProto, kind: ElementType, elements: int, problems: Problems
) -> None:
    filled = [name for name in _FIELDS if len(getattr(tensor, name))]
    raw = tensor.HasField("raw_data")
    if raw and filled:
        problems.add(where, f"has raw_data and {', '.join(filled)}: which one counts?")
        return
    if raw:
        have, need, unit = len(tensor.raw_data), kind.stored_bytes(elements), "bytes"
    else:
        have = len(getattr(tensor, kind.field))
        need, unit = kind.stored_items(elements), f"entries of {kind.field}"
        other = [name for name in filled if name != kind.field]
        if other:
            problems.add(where, f"a {kind.name} tensor can't have {', '.join(other)}")
            return
    if have != need:
        dims = list(tensor.dims)
        problems.add(where, f"dims {dims} of {kind.name} need {need} {unit}, it has {have}")


def check_sparse(
    where: str, sparse: SparseTensorProto, files: ExternalData, problems: Problems
) -> None:
    """Notes everything that keeps a sparse tensor from being read."""
    if any(dim < 0 for dim in sparse.dims):
        problems.add(where, f"negative dims {list(sparse.dims)}")
        return
    if not is_possible(sparse.dims):
        problems.add(where, f"dims {shape_text(sparse.dims)}, which no tensor has")
        return
    before = len(problems.found)
    check_tensor(where, sparse.values, files, problems)
    check_tensor(where, sparse.indices, files, problems)
    if len(problems.found) > before:
        return
    stored, rank = math.prod(sparse.values.dims), len(sparse.dims)
    if sparse.indices.data_type != TensorProto.INT64 or len(sparse.values.dims) != 1:
        problems.add(where, "a sparse tensor needs 1-d values and int64 indices")
    elif (size := _dense_bytes(sparse)) > max(LARGEST_DENSE, LARGEST_GROWTH * 8 * stored):
        what = f"dims {shape_text(sparse.dims)} of {stored} values take {size} bytes once dense"
        problems.add(where, f"{what}; at most {LARGEST_DENSE} are spread out", "store less of it")
    elif list(sparse.indices.dims) not in ([stored], [stored, rank]):
        problems.add(where, f"indices of dims {list(sparse.indices.dims)} for {stored} values")


def _dense_bytes(sparse: SparseTensorProto) -> int:
    kind = element_type(sparse.values.data_type)
    return 0 if kind is None else math.prod(sparse.dims) * kind.carrier.itemsize


def is_possible(dims: Sequence[int]) -> bool:
    """Tells whether a tensor can have this shape, even if there is nothing in it."""
    return len(dims) <= MOST_DIMS and math.prod(max(dim, 1) for dim in dims) <= MOST_ELEMENTS


def shape_text(dims: Sequence[int]) -> str:
    """Returns a shape for a message, however long it is."""
    shown = ", ".join(map(str, dims[:MOST_DIMS]))
    return f"[{shown}]" if len(dims) <= MOST_DIMS else f"[{shown}, ...] ({len(dims)} of them)"


def read_tensor(tensor: TensorProto, files: ExternalData) -> torch.Tensor:
    """Returns the content of a sound tensor; external data stay on disk, mapped into memory."""
    kind = element_type(tensor.data_type)
    if kind is None:
        raise ValueError(f"{tensor.name} wasn't checked")
    dims = tuple(tensor.dims)
    if math.prod(dims) == 0:
        return torch.empty(dims, dtype=kind.carrier)
    if tensor.data_location == TensorProto.EXTERNAL:
        return _from_bytes(files.map(tensor, kind.stored_bytes(math.prod(dims))), kind, dims)
    if tensor.HasField("raw_data"):
        raw = tensor.raw_data
        return _from_bytes(Mapped(raw, 0, len(raw)), kind, dims)
    return _from_items(tensor, kind, dims)


def read_sparse(sparse: SparseTensorProto, files: ExternalData) -> torch.Tensor:
    """Returns the dense content of a sound sparse tensor.

    Raises:
        IndexError: If an index is out of range.
    """
    values, indices = read_tensor(sparse.values, files), read_tensor(sparse.indices, files)
    dense = torch.zeros(tuple(sparse.dims), dtype=values.dtype)
    if indices.ndim == 2:
        dense[tuple(indices.T)] = values
    else:
        dense.view(-1)[indices] = values
    return dense


def _from_bytes(data: Mapped, kind: ElementType, dims: tuple[int, ...]) -> torch.Tensor:
    with warnings.catch_warnings():
        # The buffer is read-only, and nobody writes to a weight.
        warnings.simplefilter("ignore", UserWarning)
        if kind.bits < 8:
            stored = torch.frombuffer(
                data.buffer, dtype=torch.uint8, offset=data.offset, count=data.length
            )
            return _unpack(stored, kind, dims)
        count = math.prod(dims)
        flat = torch.frombuffer(data.buffer, dtype=kind.carrier, offset=data.offset, count=count)
    if kind.carrier == torch.bool:
        # Any byte but 0 and 1 is no bool to torch.
        flat = flat.view(torch.uint8) != 0
    elif data.offset % max(1, kind.bits // 8):
        flat = flat.clone()
    return flat.reshape(dims)


def _from_items(tensor: TensorProto, kind: ElementType, dims: tuple[int, ...]) -> torch.Tensor:
    items = np.asarray(getattr(tensor, kind.field))
    if kind.bits < 8:
        return _unpack(torch.from_numpy(items.astype(np.uint8)), kind, dims)
    if kind.carrier.is_complex:
        pairs = torch.from_numpy(items.reshape(-1, 2).copy())
        numbers: torch.Tensor = torch.view_as_complex(pairs).to(kind.carrier)
        return numbers.reshape(dims)
    if kind.carrier in _VIEWS:
        bits = torch.from_numpy(items.astype(_VIEWS[kind.carrier]))
        return bits.view(kind.carrier).reshape(dims)
    if kind.bits == 8 and kind.carrier.is_floating_point:
        return torch.from_numpy(items.astype(np.uint8)).view(kind.carrier).reshape(dims)
    numpy_type = torch.empty(0, dtype=kind.carrier).numpy().dtype
    return torch.from_numpy(items.astype(numpy_type)).reshape(dims)


def _unpack(stored: torch.Tensor, kind: ElementType, dims: tuple[int, ...]) -> torch.Tensor:
    """Spreads elements of less than a byte, lowest bits first, over one byte each."""
    shifts = torch.arange(0, 8, kind.bits, dtype=torch.uint8)
    codes: torch.Tensor = (stored[:, None] >> shifts) & (2**kind.bits - 1)
    codes = codes.reshape(-1)[: math.prod(dims)].reshape(dims)
    if kind.carrier is torch.float32:
        table = torch.tensor([*FLOAT4_VALUES, *(-value for value in FLOAT4_VALUES)])
        return table.index_select(0, codes.reshape(-1).to(torch.int64)).reshape(dims)
    if kind.low == 0:
        return codes
    signed = codes.to(torch.int8)
    return torch.where(signed > kind.high, signed - 2**kind.bits, signed)
