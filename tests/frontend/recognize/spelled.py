"""Programs as text in which something is spelled out, before and after it is recognized."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from autopar.frontend.recognize import Recognize
from autopar.ir.expr.at_sizes import at_sizes
from autopar.ir.program import Program
from autopar.ir.text import parse_program
from autopar.runtime.execute.serial import run_serial

TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
TOLERANCE = {"f16": 4e-3, "bf16": 4e-2, "f32": 4e-6, "f64": 1e-12}


def recognized(
    text: str, numbers: Mapping[str, float] | None = None, kept: tuple[str, ...] = ()
) -> tuple[Program, Program]:
    """Returns the program of a text, and what it is recognized as."""
    program = parse_program(text)
    return program, Recognize(numbers or {}, frozenset(kept))(program)


def kinds(program: Program) -> list[str]:
    """Returns the names of a program's ops."""
    return [op.kind.split(".")[1] for op in program.main.ops]


def drawn(program: Program, numbers: Mapping[str, float]) -> dict[str, Tensor]:
    """Returns inputs for a program: numbers as they are, others at random."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for port in program.signature.inputs:
        shape = port.known_shape
        if port.name in numbers:
            found[port.name] = torch.full(shape, numbers[port.name], dtype=TORCH[port.dtype])
        elif port.dtype == "bool":
            found[port.name] = torch.rand(shape, generator=generator) < 0.7
        else:
            made = torch.randn(shape, generator=generator, dtype=torch.float64)
            found[port.name] = made.to(TORCH[port.dtype])
    return found


def assert_equal(
    spelled: Program,
    program: Program,
    numbers: Mapping[str, float],
    sizes: Mapping[str, int],
    tolerance: float,
) -> None:
    """Checks that two programs compute the same at sizes but for rounding."""
    spelled, program = at_sizes(spelled, sizes), at_sizes(program, sizes)
    given = drawn(spelled, numbers)
    stored = {port.name for port in spelled.signature.inputs if port.role != "input"}
    weights = {name: tensor for name, tensor in given.items() if name in stored}
    inputs = {name: tensor for name, tensor in given.items() if name not in stored}
    known = {port.name for port in program.signature.inputs}
    left = {name: tensor for name, tensor in weights.items() if name in known}
    expected, found = run_serial(spelled, weights, inputs), run_serial(program, left, inputs)
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name], tensor, rtol=tolerance, atol=tolerance, equal_nan=True
        )
