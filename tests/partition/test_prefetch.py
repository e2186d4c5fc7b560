"""Gathers start before their results are needed, as far as memory allows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from autopar.ir.program import Program
from autopar.ir.text import parse_program
from autopar.ir.verify import verify_structure
from autopar.partition import Prefetch

SIZES = {"a": 4, "b": 4, "c": 2, "d": 2, "e": 4}


def program(reads: Sequence[str], phases: str = "fffff", times: int = 1) -> Program:
    """Returns a program that gathers each weight right before it is added to the activations."""
    sizes = {name: size * times for name, size in SIZES.items()}
    lines = ["input %hidden0: f32[1] replicated"]
    lines += [f"input %{name}: f32[{size // 2}] replicated" for name, size in sizes.items()]
    for at, (name, phase) in enumerate(zip(reads, phases, strict=True)):
        size = sizes[name]
        words = {"f": "forward", "b": "backward"}[phase]
        lines += [
            f"%{name}.w: f32[{size}] = comm.all_gather(self=%{name}, dim=0, size={size},"
            f' axes=["x"]) phase={words}',
            f"%read{at}: f32[] = aten.sum.default(self=%{name}.w) phase={words}",
            f"%hidden{at + 1}: f32[1] = aten.add.Tensor(self=%hidden{at}, other=%read{at})"
            f" phase={words}",
        ]
    body = "\n  ".join([*lines, f"return %hidden{len(reads)}"])
    return parse_program(f"program partitioned\nmesh x=2\n\nfunc main {{\n  {body}\n}}\n")


def order(done: Program) -> str:
    """Returns the gathers, and in capitals the first readers of their results."""
    verify_structure(done)
    words = []
    for op in done.main.ops:
        if op.kind == "comm.all_gather":
            words.append(op.operands[0])
        elif op.kind == "aten.sum.default":
            words.append(op.operands[0][0].upper())
    return "".join(words)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        # As much as the largest takes: one of 16 bytes, or two of 8.
        (1, "abAcdBCeDE"),
        # Never less than the next one, also where it takes more than a bucket.
        (1 << 22, "abAcBdCeDE"),
    ],
)
def test_gathers_start_while_others_are_read(times: int, expected: str) -> None:
    assert order(Prefetch()(program("abcde", times=times))) == expected


def test_no_phase_gathers_for_the_next_one() -> None:
    assert order(Prefetch()(program("abcde", "ffbbb"))) == "abABcdCeDE"


def test_what_is_computed_is_gathered_afterwards() -> None:
    text = """
program partitioned
mesh x=2

func main {
  input %a: f32[2] replicated
  input %b: f32[2] replicated
  %w: f32[4] = comm.all_gather(self=%a, dim=0, size=4, axes=["x"])
  %s: f32[] = aten.sum.default(self=%w)
  %n: f32[2] = aten.neg.default(self=%b)
  %m: f32[2] = aten.exp.default(self=%n)
  %v: f32[4] = comm.all_gather(self=%n, dim=0, size=4, axes=["x"])
  %t: f32[4] = aten.add.Tensor(self=%v, other=%s)
  return %t, %m
}
"""
    done = Prefetch()(parse_program(text))
    verify_structure(done)
    names = [op.results[0] for op in done.main.ops]
    assert names == ["w", "s", "n", "v", "m", "t"]
