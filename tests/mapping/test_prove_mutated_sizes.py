"""A wrong size in what ranks communicate is found before anything runs, though sizes are open.

One expression of a collective is changed: a number, an operator, a size or a coordinate in it, or
how a quotient is rounded. What still has the same value at all sizes and on all ranks is no
mutation. From which element on a window is read is no size, as the argument of a slice is none.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

import pytest

from autopar.base.errors import VerificationError
from autopar.cost import Cluster
from autopar.ir.collectives import is_collective
from autopar.ir.deployment import Deployment
from autopar.ir.expr.expression import (
    FOLD,
    Binary,
    Coord,
    Expr,
    IntExpr,
    Size,
    evaluate,
    is_open,
    sizes_of,
)
from autopar.ir.program import Function, Op, Program
from autopar.ir.used_sizes import used_sizes
from autopar.mapping.deploy import deploy
from autopar.mapping.prove import prove
from autopar.partition import Partition
from tests.partition.programs import random_program

CLUSTER = Cluster.load("cpu")
NUMBERS = range(14)
MUTATIONS = 12

SEEDS = [*range(24), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(24, 300))]


def mutations(expr: IntExpr, sizes: tuple[Size, ...], axes: tuple[str, ...]) -> Iterator[IntExpr]:
    """Yields an expression with one change somewhere in it."""
    if isinstance(expr, int):
        yield from (expr + 1, expr - 1)
    elif isinstance(expr, Size):
        yield from (expr + 1, expr - 1, *(size for size in sizes if size != expr))
    elif isinstance(expr, Coord):
        yield from (expr + 1, 0, *(Coord(axis) for axis in axes if axis != expr.axis))
    elif isinstance(expr, Binary):
        yield from (FOLD[op](expr.lhs, expr.rhs) for op in swapped(expr.op))
        yield from rounded(expr)
        yield from (FOLD[expr.op](side, expr.rhs) for side in mutations(expr.lhs, sizes, axes))
        divided = expr.op == "//"
        others = mutations(expr.rhs, sizes, axes)
        yield from (FOLD[expr.op](expr.lhs, side) for side in others if not divided or side != 0)


def rounded(expr: Binary) -> Iterator[IntExpr]:
    """Yields a quotient that is rounded up for one that is rounded down, and the other way."""
    if expr.op == "//" and isinstance(expr.rhs, int):
        yield from ((expr.lhs + more) // expr.rhs for more in (expr.rhs - 1, 1 - expr.rhs))


def swapped(op: str) -> tuple[str, ...]:
    return {"min": ("max",), "max": ("min",), "+": ("*",), "*": ("+",)}.get(op, ())


def is_another(one: IntExpr, other: IntExpr, case: Deployment) -> bool:
    """Whether two expressions differ at some sizes, on some rank."""
    sizes = sorted({*sizes_of(one), *sizes_of(other)}, key=str)
    ranges = [[n for n in NUMBERS if size.least <= n <= size.most] for size in sizes]
    for point in product(*ranges):
        known = {str(size): number for size, number in zip(sizes, point, strict=True)}
        for entry in case.ranks:
            at = {**known, **dict(zip(case.axes, entry.coords, strict=True))}
            if evaluate(one, at) != evaluate(other, at):
                return True
    return False


def settings(main: Function) -> list[tuple[int, str, Expr]]:
    """Returns where collectives have arguments that depend on open sizes."""
    return [
        (at, name, arg)
        for at, op in enumerate(main.ops)
        if is_collective(op.kind)
        for name, arg in op.args
        if isinstance(arg, Expr) and is_open(arg) and name != "start"
    ]


def shapes(main: Function) -> list[tuple[str, int, Expr]]:
    """Returns which sizes are open of what collectives read and make."""
    ops = [op for op in main.ops if is_collective(op.kind)]
    names = dict.fromkeys(name for op in ops for name in (*op.operands, *op.results))
    return [
        (name, dim, size)
        for name in names
        for dim, size in enumerate(main.values[name].shape)
        if isinstance(size, Expr) and is_open(size)
    ]


def with_setting(main: Function, at: int, name: str, expr: IntExpr) -> Function:
    args = tuple((key, expr if key == name else arg) for key, arg in main.ops[at].args)
    ops: list[Op] = [*main.ops]
    ops[at] = replace(ops[at], args=args)
    return replace(main, ops=tuple(ops))


def with_size(main: Function, name: str, dim: int, expr: IntExpr) -> Function:
    value = main.values[name]
    shape = (*value.shape[:dim], expr, *value.shape[dim + 1 :])
    return replace(main, values={**main.values, name: replace(value, shape=shape)})


def changed(main: Function, rng: random.Random, case: Deployment) -> tuple[str, Function] | None:
    """Returns what has been changed, and the function with it; None if nothing can be."""
    spots = [*settings(main), *shapes(main)]
    if not spots:
        return None
    where, what, expr = rng.choice(spots)
    other = rng.choice([*mutations(expr, used_sizes(case.programs[0]), case.axes)])
    if not is_another(expr, other, case):
        return None
    told = f"{where} {what}: {other}, not {expr}"
    if isinstance(where, int):
        return told, with_setting(main, where, str(what), other)
    return told, with_size(main, where, int(what), other)


def mutants(case: Deployment, seed: int) -> Iterator[tuple[str, Deployment]]:
    rng = random.Random(seed)
    for _ in range(MUTATIONS):
        at = rng.randrange(len(case.programs))
        program: Program = case.programs[at]
        found = changed(program.main, rng, case)
        if found is not None:
            programs: list[Program] = [*case.programs]
            programs[at] = program.with_main(found[1])
            yield found[0], replace(case, programs=tuple(programs))


def passes(case: Deployment) -> bool:
    try:
        prove(case)
    except VerificationError:
        return False
    return True


@pytest.mark.parametrize("seed", SEEDS)
def test_a_changed_size_is_found(seed: int) -> None:
    case = deploy(Partition(CLUSTER)(random_program(seed, left_open=True)), CLUSTER)
    assert [told for told, mutant in mutants(case, seed) if passes(mutant)] == []


def test_most_programs_have_sizes_to_change() -> None:
    cases: list[Mapping[str, Deployment]] = []
    for seed in range(6):
        case = deploy(Partition(CLUSTER)(random_program(seed, left_open=True)), CLUSTER)
        cases.append(dict(mutants(case, seed)))
    assert sum(map(len, cases)) > MUTATIONS
