"""Splits a rank's program in two: one that computes outputs, and one that computes gradients.

What the second one needs of the first is *saved*: returned by the first, and an input of the
second. Both keep the order of the ops, so the ranks' collectives stay in the order that was proven.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from autopar.base.errors import VerificationError
from autopar.ir.collectives import is_collective
from autopar.ir.program import Function, Op, Program

BACKWARD = "backward"


@dataclass(frozen=True)
class Halves:
    """A program in two.

    Attributes:
        forward: Returns the outputs asked for, and after them the saved values.
        backward: Takes the saved values, and after them the inputs that the first doesn't have.
        saved: Names of the saved values.
    """

    forward: Program
    backward: Program
    saved: tuple[str, ...]


def split(program: Program, outputs: Sequence[str], late: Collection[str]) -> Halves:
    """Splits a program by the phases of its ops.

    The code is what is split: signatures stay as they are.

    Args:
        program: An executable program; ranks that share it have to split it alike, so it still
            has its rank expressions.
        outputs: The outputs of `main` that are known before the others; the second half returns
            the rest.
        late: Inputs of `main` that only the second half has.

    Raises:
        VerificationError: If the first half waits for something of the second: a defect.
    """
    main = program.main
    early = _ancestors(main.ops, outputs)
    first = [op for op in main.ops if op.phase != BACKWARD or not early.isdisjoint(op.results)]
    second = [op for op in main.ops if op.phase == BACKWARD and early.isdisjoint(op.results)]
    rest = [name for name in main.outputs if name not in outputs]
    made = {name for op in second for name in op.results} | set(late)
    if waiting := [op for op in first if not made.isdisjoint(op.operands)]:
        problems = [f"{op.loc}: {op.kind} -> %{op.results[0]}" for op in waiting[:8]]
        raise VerificationError("the forward pass waits for the backward pass", problems)
    needed = dict.fromkeys([*(name for op in second for name in op.operands), *rest])
    saved = tuple(name for name in needed if name not in made)
    given = tuple(name for name in main.inputs if name not in late)
    tangents = tuple(name for name in main.inputs if name in late)
    return Halves(
        _with_main(program, given, first, (*outputs, *saved)),
        _with_main(program, (*saved, *tangents), second, rest),
        saved,
    )


def first_half(program: Program, outputs: Sequence[str], late: Collection[str]) -> Program:
    """Returns the program that computes these outputs only, without the late inputs.

    What a rank sends is an output of others, if not of its own.
    """
    main = program.main
    sent = (name for op in main.ops if is_collective(op.kind) for name in op.results)
    needed = _ancestors(main.ops, (*outputs, *sent))
    ops = [op for op in main.ops if not needed.isdisjoint(op.results)]
    given = [name for name in main.inputs if name not in late]
    return _with_main(program, given, ops, outputs)


def known_without(
    program: Program, outputs: Iterable[str], late: Collection[str]
) -> tuple[str, ...]:
    """Returns the outputs that don't depend on the late inputs."""
    ops = program.main.ops
    return tuple(name for name in outputs if _ancestors(ops, (name,)).isdisjoint(late))


def _ancestors(ops: Sequence[Op], outputs: Iterable[str]) -> set[str]:
    """Returns the values that outputs depend on, the outputs included."""
    needed = set(outputs)
    for op in reversed(ops):
        if not needed.isdisjoint(op.results):
            needed.update(op.operands)
    return needed


def _with_main(
    program: Program, inputs: Iterable[str], ops: Sequence[Op], outputs: Iterable[str]
) -> Program:
    main: Function = program.main
    found = tuple(inputs)
    names = {*found, *(name for op in ops for name in op.results)}
    values = {name: value for name, value in main.values.items() if name in names}
    return program.with_main(
        replace(
            main, inputs=found, outputs=tuple(outputs), values=values, ops=tuple(ops), aliases=()
        )
    )
