"""The text form: what it looks like, that it comes back equal, and what its errors say."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given, settings

from autopar.ir.program import Program
from autopar.ir.serde import program_to_bytes
from autopar.ir.text import TextError, parse_program, print_program
from tests.ir import strategies


@settings(max_examples=150)
@given(strategies.programs())
def test_every_program_comes_back_equal(program: Program) -> None:
    text = print_program(program)
    parsed = parse_program(text)
    assert parsed == program
    # Bytes tell apart what is equal to Python: 1, 1.0 and True, 0.0 and -0.0.
    assert program_to_bytes(parsed) == program_to_bytes(program)
    assert print_program(parsed) == text
