"""Small programs that communicate, for the tests of mapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autopar.base.errors import Loc
from autopar.ir.deployment import Deployment, RankEntry
from autopar.ir.expr.expression import IntExpr
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Arg, Function, Op, Program, Ref, Value

Shape = tuple[IntExpr, ...]


@dataclass(frozen=True)
class Step:
    """One op: `result = kind(operand, **args)`, with the result's local shape.

    Its source line is derived from its result, so that messages can be checked for it.
    """

    result: str
    kind: str
    operand: str
    shape: Shape
    args: tuple[tuple[str, Arg], ...] = ()
    dtype: str = "f32"

    def op(self) -> Op:
        """Returns the op."""
        args = (("self", Ref(self.operand)), *self.args)
        return Op(self.kind, args, (self.result,), loc=Loc("model.py", line_of(self.result)))


def line_of(name: str) -> int:
    """Returns the line that `Step` gives the op producing this value."""
    return sum(map(ord, name))


def step(
    result: str, kind: str, operand: str, shape: Sequence[IntExpr], dtype: str = "f32", **args: Arg
) -> Step:
    """Returns a step; `kind` without the leading `comm.`."""
    return Step(result, f"comm.{kind}", operand, tuple(shape), tuple(args.items()), dtype)


def function(name: str, shape: Sequence[IntExpr], steps: Sequence[Step | Op]) -> Function:
    """Returns a function of one input `x` of this local shape that returns its last value."""
    values = {"x": Value("x", "f32", tuple(shape), "input")}
    ops = []
    for each in steps:
        if isinstance(each, Step):
            values[each.result] = Value(each.result, each.dtype, each.shape)
            ops.append(each.op())
            continue
        values.update((result, Value(result, "f32", tuple(shape))) for result in each.results)
        ops.append(each)
    last = ops[-1].results if ops else ("x",)
    return Function(name, ("x",), last, values, tuple(ops))


def program(
    shape: Sequence[IntExpr],
    steps: Sequence[Step | Op],
    mesh: ProcessMesh | None = None,
    functions: Sequence[Function] = (),
) -> Program:
    """Returns a program whose main has these steps: partitioned with a mesh, else executable."""
    main = function("main", shape, steps)
    named = {"main": main, **{each.name: each for each in functions}}
    return Program(named, mesh=mesh, level="partitioned" if mesh else "executable")


def deployment(
    programs: Sequence[Program],
    runs: Sequence[int],
    groups: Mapping[str, Sequence[Sequence[int]]],
    coords: Mapping[str, Sequence[int]] | None = None,
) -> Deployment:
    """Returns the deployment in which rank r runs `programs[runs[r]]`.

    Args:
        programs: Executable programs.
        runs: The program of each rank.
        groups: Lists of ranks, by group.
        coords: Each rank's coordinate, by axis; by default one axis `r`, the rank itself.
    """
    table = coords or {"r": range(len(runs))}
    ranks = [
        RankEntry(which, tuple(values[rank] for values in table.values()), rank)
        for rank, which in enumerate(runs)
    ]
    lists = {name: tuple(map(tuple, each)) for name, each in groups.items()}
    return Deployment(tuple(programs), tuple(table), tuple(ranks), lists)
