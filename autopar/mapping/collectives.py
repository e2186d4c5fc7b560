"""The collectives of a program: where they are, and in which order a rank meets them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autopar.base.errors import VerificationError
from autopar.ir.collectives import axes_of_group, is_collective
from autopar.ir.expr.expression import Expr, IntExpr
from autopar.ir.program import CALL, REPEAT, Arg, Function, Op, Program, Ref, Value, callee_of


@dataclass(frozen=True, eq=False)
class Collective:
    """A comm op in its function. Compared by identity: there is one object per op.

    Attributes:
        function: Name of the function that it stands in.
        op: The op.
        operand: What a rank brings.
        result: What a rank gets.
    """

    function: str
    op: Op
    operand: Value
    result: Value

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that it runs over; empty once it names a group instead."""
        return axes_of_group(self.op)

    @property
    def among(self) -> tuple[tuple[int, ...], ...]:
        """The coordinates of its members along the axes; empty for all, and after mapping."""
        return among_of(self.op)

    @property
    def group(self) -> str:
        """The group that it runs in; empty before mapping."""
        group = self.op.arg("group")
        return group if isinstance(group, str) else ""

    @property
    def settings(self) -> Mapping[str, Arg]:
        """The arguments on which all members must agree: all but the tensor and the group."""
        own = ("self", "axes", "among", "group")
        return {name: arg for name, arg in self.op.args if name not in own}

    @property
    def integers(self) -> Mapping[str, IntExpr]:
        """Those of the settings that are integers or rank expressions."""
        return {
            name: arg
            for name, arg in self.settings.items()
            if isinstance(arg, (int, Expr)) and not isinstance(arg, bool)
        }

    def __str__(self) -> str:
        place = "" if self.function == "main" else f" in @{self.function}"
        settings = "".join(f", {name}={arg}" for name, arg in self.settings.items())
        text = f"%{self.result.name} = {self.op.kind}(%{self.operand.name}{settings})"
        return f"{text}{place} ({self.op.loc})"


def among_of(op: Op) -> tuple[tuple[int, ...], ...]:
    """Returns the coordinates of a collective's members along its axes; empty for all."""
    among = op.arg("among")
    rows = [row for row in among if isinstance(row, tuple)] if isinstance(among, tuple) else []
    return tuple(tuple(index for index in row if isinstance(index, int)) for row in rows)


Site = Collective | tuple[str, int]
"""What a function does that matters here: a collective, or (callee, how many times)."""


def sites(program: Program) -> dict[str, tuple[Site, ...]]:
    """Returns the collectives and calls of each function that `main` reaches, in order.

    Callers stand before their callees in the result.

    Raises:
        VerificationError: If functions call one another in a circle or a callee is missing.
    """
    by_function: dict[str, tuple[Site, ...]] = {}
    _visit(program, "main", (), by_function)
    return dict(reversed(by_function.items()))


def collectives(program: Program) -> tuple[Collective, ...]:
    """Returns every collective that `main` reaches, each op once."""
    return tuple(
        site for each in sites(program).values() for site in each if isinstance(site, Collective)
    )


def in_order(
    by_function: Mapping[str, tuple[Site, ...]], function: str = "main"
) -> Iterator[Collective]:
    """Yields the collectives as a rank meets them, repeated where calls repeat them."""
    for site in by_function[function]:
        if isinstance(site, Collective):
            yield site
            continue
        callee, times = site
        if by_function[callee]:
            for _ in range(times):
                yield from in_order(by_function, callee)


def executions(by_function: Mapping[str, tuple[Site, ...]]) -> dict[str, int]:
    """Returns how often a rank runs each function."""
    times = dict.fromkeys(by_function, 0)
    times["main"] = 1
    for name, each in by_function.items():
        for site in each:
            if isinstance(site, tuple):
                times[site[0]] += site[1] * times[name]
    return times


def _visit(
    program: Program, name: str, callers: tuple[str, ...], by_function: dict[str, tuple[Site, ...]]
) -> None:
    if name in by_function:
        return
    if name in callers:
        circle = " -> ".join((*callers[callers.index(name) :], name))
        raise VerificationError("functions must not call one another in a circle", [circle])
    function = program.functions.get(name)
    if function is None:
        raise VerificationError("a function is missing", [f"@{callers[-1]} calls @{name}"])
    own = tuple(site for op in function.ops if (site := _site(function, op)) is not None)
    for site in own:
        if isinstance(site, tuple):
            _visit(program, site[0], (*callers, name), by_function)
    by_function[name] = own


def _site(function: Function, op: Op) -> Site | None:
    if op.kind == CALL:
        return callee_of(op), 1
    if op.kind == REPEAT:
        trip = op.arg("trip")
        if not isinstance(trip, int):
            raise VerificationError(
                "all ranks must repeat alike", [f"@{function.name}: trip count {trip} ({op.loc})"]
            )
        return callee_of(op), trip
    if not is_collective(op.kind):
        return None
    operand = op.arg("self")
    if not isinstance(operand, Ref) or len(op.results) != 1:
        raise VerificationError(
            "a collective takes one tensor and gives one",
            [f"@{function.name}: {op.kind} ({op.loc})"],
        )
    values = function.values
    return Collective(function.name, op, values[operand.name], values[op.results[0]])
