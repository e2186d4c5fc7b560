"""Recognize: writes what a program spells out as many ops as the one op that it is."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import ClassVar

from autopar.frontend.recognize.dataflow import Dataflow, Instead
from autopar.frontend.recognize.patterns import PATTERNS
from autopar.frontend.recognize.repeated import without_repetition
from autopar.ir.program import Function, Op, Program


@dataclass(frozen=True)
class Recognize:
    """Recognizes normalizations, activations and attention by what computes them.

    Results differ by rounding alone. A value that is read elsewhere, returned or pinned stays, and
    so does all that it is computed by.

    Attributes:
        numbers: What the constants of one element are, by name.
        kept: Names of values that must stay.
    """

    name: ClassVar[str] = "recognize"

    numbers: Mapping[str, float] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()

    def __call__(self, program: Program) -> Program:
        """Returns the program with an op for each pattern, and without constants unread then."""
        main = self.recognized(program.main)
        if main is program.main:
            return program
        read = {*main.outputs, *self.kept, *(name for op in main.ops for name in op.operands)}
        gone = {name for name in main.inputs if main.values[name].role == "constant"} - read
        return _without_inputs(program.with_main(main), gone)

    def recognized(self, function: Function) -> Function:
        """Returns a function with an op for each pattern; the largest patterns come first."""
        flow = Dataflow(function, self.numbers, self.kept)
        gone: set[tuple[str, ...]] = set()
        values, ops = dict(function.values), list[Op]()
        for op in reversed(function.ops):
            if op.results in gone:
                continue
            found = _found(op, flow) or Instead((), (op,))
            gone |= {each.results for each in found.covered}
            values |= found.values
            ops.extend(reversed(found.ops))
        ops.reverse()
        written = replace(function, values=values, ops=tuple(ops)) if gone else function
        done = without_repetition(written, self.numbers, self.kept)
        return function if done is function else without_unread(done, self.kept)


def _without_inputs(program: Program, gone: AbstractSet[str]) -> Program:
    main, ports = program.main, program.signature.inputs
    inputs = tuple(name for name in main.inputs if name not in gone)
    values = {name: value for name, value in main.values.items() if name not in gone}
    signature = replace(
        program.signature, inputs=tuple(port for port in ports if port.name not in gone)
    )
    done = program.with_main(replace(main, inputs=inputs, values=values))
    return replace(done, signature=signature)


def _found(op: Op, flow: Dataflow) -> Instead | None:
    each = (pattern(op, flow) for pattern in PATTERNS)
    return next((found for found in each if found is not None), None)


def without_unread(function: Function, kept: frozenset[str]) -> Function:
    """Returns a function without ops whose results nobody reads."""
    read = {*function.outputs, *kept}
    ops: list[Op] = []
    for op in reversed(function.ops):
        if not op.results or not read.isdisjoint(op.results):
            read.update(op.operands)
            ops.append(op)
    made = {*function.inputs, *(name for op in ops for name in op.results)}
    values = {name: value for name, value in function.values.items() if name in made}
    return replace(function, values=values, ops=tuple(reversed(ops)))
