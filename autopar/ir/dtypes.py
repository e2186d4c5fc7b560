"""What is known of dtypes, by the names that programs have for them. Nothing else lists dtypes but
what a file format, a collective or a random op takes."""

from __future__ import annotations

from collections.abc import Mapping

DTYPE_BYTES: Mapping[str, int] = {
    "f64": 8,
    "f32": 4,
    "f16": 2,
    "bf16": 2,
    "f8e4m3fn": 1,
    "f8e5m2": 1,
    "i64": 8,
    "i32": 4,
    "i16": 2,
    "i8": 1,
    "u8": 1,
    "u16": 2,
    "u32": 4,
    "u64": 8,
    "bool": 1,
    "c32": 4,
    "c64": 8,
    "c128": 16,
}
"""Names of the dtypes, as the text form and the protobuf spell them, and bytes per element."""

TORCH_NAMES: Mapping[str, str] = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "bool": "bool",
    "c32": "complex32",
    "c64": "complex64",
    "c128": "complex128",
}
"""What torch calls them. The IR does without torch."""

HALVES = ("f16", "bf16")
"""Floating-point dtypes in which kernels don't add up."""

FLOATS = ("f64", "f32", *HALVES)
"""Real floating-point dtypes that are computed in. Those of 8 bits are only stored."""

COMPLEX = ("c64", "c128")
"""Complex dtypes that are computed in."""

INEXACT = frozenset((*FLOATS, *COMPLEX))
"""Dtypes whose arithmetic rounds, and never wraps around."""

INTEGERS = ("i64", "i32", "i16", "i8", "u8", "bool")
"""Integers that are computed in, and booleans. Wider unsigned ones are only stored."""

INDEXES = ("i64", "i32")
"""Dtypes of what ops look up with."""

EPSILONS: Mapping[str, float] = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
"""Between 1 and the next number, of `FLOATS`."""
