"""Element types: ONNX's numbers, torch's dtypes, and how tensors of each are stored.

Types of less than a byte have no torch dtype that computes. Their elements are unpacked when they
are read: integers into a byte each, float4 into float32. `ElementType.carrier` says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from onnx import TensorProto


@dataclass(frozen=True, slots=True)
class ElementType:
    """An ONNX element type.

    Attributes:
        number: The value of `TensorProto.DataType`.
        name: Its name there.
        carrier: The torch dtype that holds its elements.
        bits: Bits per element as stored.
        field: The field of TensorProto that holds its elements if `raw_data` doesn't.
        low, high: The range, of integers of less than a byte.
    """

    number: int
    name: str
    carrier: torch.dtype
    bits: int
    field: str = "int32_data"
    low: int = 0
    high: int = 0

    def stored_bytes(self, elements: int) -> int:
        """Returns the bytes that so many elements take in a file."""
        return (elements * self.bits + 7) // 8

    def stored_items(self, elements: int) -> int:
        """Returns the entries of `field` that so many elements take."""
        if self.bits < 8:
            return self.stored_bytes(elements)
        return elements * (2 if self.carrier.is_complex else 1)


_T = TensorProto
_ALL = (
    ElementType(_T.FLOAT, "FLOAT", torch.float32, 32, "float_data"),
    ElementType(_T.UINT8, "UINT8", torch.uint8, 8),
    ElementType(_T.INT8, "INT8", torch.int8, 8),
    ElementType(_T.UINT16, "UINT16", torch.uint16, 16),
    ElementType(_T.INT16, "INT16", torch.int16, 16),
    ElementType(_T.INT32, "INT32", torch.int32, 32),
    ElementType(_T.INT64, "INT64", torch.int64, 64, "int64_data"),
    ElementType(_T.BOOL, "BOOL", torch.bool, 8),
    ElementType(_T.FLOAT16, "FLOAT16", torch.float16, 16),
    ElementType(_T.DOUBLE, "DOUBLE", torch.float64, 64, "double_data"),
    ElementType(_T.UINT32, "UINT32", torch.uint32, 32, "uint64_data"),
    ElementType(_T.UINT64, "UINT64", torch.uint64, 64, "uint64_data"),
    ElementType(_T.COMPLEX64, "COMPLEX64", torch.complex64, 64, "float_data"),
    ElementType(_T.COMPLEX128, "COMPLEX128", torch.complex128, 128, "double_data"),
    ElementType(_T.BFLOAT16, "BFLOAT16", torch.bfloat16, 16),
    ElementType(_T.FLOAT8E4M3FN, "FLOAT8E4M3FN", torch.float8_e4m3fn, 8),
    ElementType(_T.FLOAT8E4M3FNUZ, "FLOAT8E4M3FNUZ", torch.float8_e4m3fnuz, 8),
    ElementType(_T.FLOAT8E5M2, "FLOAT8E5M2", torch.float8_e5m2, 8),
    ElementType(_T.FLOAT8E5M2FNUZ, "FLOAT8E5M2FNUZ", torch.float8_e5m2fnuz, 8),
    ElementType(24, "FLOAT8E8M0", torch.float8_e8m0fnu, 8),
    ElementType(_T.UINT4, "UINT4", torch.uint8, 4, low=0, high=15),
    ElementType(_T.INT4, "INT4", torch.int8, 4, low=-8, high=7),
    ElementType(_T.FLOAT4E2M1, "FLOAT4E2M1", torch.float32, 4),
    ElementType(25, "UINT2", torch.uint8, 2, low=0, high=3),
    ElementType(26, "INT2", torch.int8, 2, low=-2, high=1),
)
_BY_NUMBER = {kind.number: kind for kind in _ALL}
_BY_CARRIER = {kind.carrier: kind for kind in reversed(_ALL)}

FLOAT4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The non-negative values of float4 e2m1, by code (OCP Microscaling Formats, 5.3.3)."""


def element_type(number: int) -> ElementType | None:
    """Returns the element type with this ONNX number, or None if there is none that we hold.

    Strings are among those that we don't hold.
    """
    return _BY_NUMBER.get(number)


def element_type_of(dtype: torch.dtype) -> ElementType:
    """Returns the ONNX element type that a torch dtype stands for."""
    return _BY_CARRIER[dtype]


def type_name(number: int) -> str:
    """Returns ONNX's name of an element type, or its number if it has none."""
    names = {value: key for key, value in TensorProto.DataType.items()}
    return names.get(number, str(number))
