"""Kinds of dtypes, by the names in `autopar.ir.program.DTYPE_BYTES`."""

from __future__ import annotations

HALVES = ("f16", "bf16")
"""Floating-point dtypes in which kernels don't add up."""

FLOATS = ("f64", "f32", *HALVES)
"""Real floating-point dtypes that are computed in. Those of 8 bits are only stored."""

COMPLEX = ("c64", "c128")
"""Complex dtypes that are computed in."""

INEXACT = frozenset((*FLOATS, *COMPLEX))
"""Dtypes whose arithmetic rounds, and never wraps around."""
