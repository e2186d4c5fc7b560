"""What makes and what reads the values of a function, and which of them are known numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from typing import TypeVar

from autopar.ir.expr.expression import IntExpr
from autopar.ir.program import Arg, Function, Op, Ref, Value

Size = TypeVar("Size", bound=IntExpr)

ROUNDING = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-22, "f64": 2.0**-51}
"""How far a number of a file may be from the one that it stands for, by what it is written in."""


@dataclass(frozen=True)
class Dataflow:
    """A function, as patterns look at it.

    Attributes:
        function: The function.
        numbers: Inputs of one element that are constants, by name.
        kept: Names of values that must stay: what the user pinned.
    """

    function: Function
    numbers: Mapping[str, float]
    kept: frozenset[str]

    @cached_property
    def makers(self) -> Mapping[str, Op]:
        """The op that makes each value."""
        return self.function.producers()

    @cached_property
    def reads(self) -> Mapping[str, int]:
        """How often each value is read; what is returned or pinned counts as read once more."""
        read = Counter(name for op in self.function.ops for name in op.operands)
        return read + Counter(self.function.outputs) + Counter(self.kept)

    def value(self, name: str) -> Value:
        """Returns a value."""
        return self.function.values[name]

    def shape(self, name: str) -> tuple[IntExpr, ...]:
        """Returns the shape of a value."""
        return self.value(name).shape

    def maker(self, name: str, *kinds: str) -> Op | None:
        """Returns the op that makes a value, if it is of one of these kinds."""
        op = self.makers.get(name)
        return op if op is not None and op.kind in kinds else None

    def number(self, arg: Arg) -> float | None:
        """Returns what an argument is if it is a known number, as such or as a constant."""
        if isinstance(arg, Ref):
            return self.numbers.get(arg.name)
        is_number = isinstance(arg, (int, float)) and not isinstance(arg, bool)
        return float(arg) if is_number else None  # type: ignore[arg-type]

    def fresh(self, name: str) -> str:
        """Returns a name that no value has, made from this one."""
        numbered = (f"{name}.{number}" for number in count(1))
        return next(each for each in chain([name], numbered) if each not in self.function.values)

    def are_inner(self, ops: Iterable[Op], root: Op) -> bool:
        """Returns whether nothing but these ops reads what those of them but the root make."""
        covered = {op.results: op for op in ops}
        read = Counter(name for op in covered.values() for name in op.operands)
        inner = [name for results in covered if results != root.results for name in results]
        return all(self.reads[name] == read[name] for name in inner)


@dataclass(frozen=True)
class Instead:
    """What is written in the place of ops.

    Attributes:
        covered: The ops that go.
        ops: What makes the result instead, in order.
        values: The values that are new.
    """

    covered: Sequence[Op]
    ops: Sequence[Op]
    values: Mapping[str, Value] = field(default_factory=dict)


def text_of(op: Op | None, name: str) -> str:
    """Returns the name of the value that is an argument of an op, or "" if none is."""
    arg = op.arg(name) if op is not None else None
    return arg.name if isinstance(arg, Ref) else ""


def dims_of(arg: Arg, rank: int) -> tuple[int, ...] | None:
    """Returns the dimensions that an argument names, counted from the front."""
    each = arg if isinstance(arg, tuple) else (arg,)
    known = tuple(dim for dim in each if isinstance(dim, int))
    return tuple(dim % rank for dim in known) if rank and len(known) == len(each) else None


def is_close(found: float, wanted: float, dtype: str) -> bool:
    """Returns whether a number is another one, as it is rounded in a dtype."""
    return abs(found - wanted) <= ROUNDING.get(dtype, 0.0) * abs(wanted)


def swapped(dims: Sequence[Size]) -> tuple[Size, ...]:
    """Returns dimensions, or their sizes, with the last two the other way round."""
    *lead, rows, columns = dims
    return (*lead, columns, rows)
