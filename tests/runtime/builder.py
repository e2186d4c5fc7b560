"""Short ways to write executable programs and deployments down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autopar.ir.deployment import Deployment, RankEntry
from autopar.ir.errors import Loc
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import BoxDim, Function, Op, Port, Program, Ref, Signature, Value
from autopar.ir.layout import local_extent


def value(name: str, *shape: Any, dtype: str = "f32", role: str = "activation") -> Value:
    return Value(name, dtype, shape, role)


def op(kind: str, results: str | Sequence[str], plan: Mapping[str, str] = {}, **args: Any) -> Op:  # noqa: B006
    names = (results,) if isinstance(results, str) else tuple(results)
    given = tuple((name, _arg(arg)) for name, arg in args.items())
    return Op(kind, given, names, loc=Loc("model.py", 7, names[0]), plan=tuple(plan.items()))


def _arg(arg: Any) -> Any:
    if isinstance(arg, str) and arg.startswith("%"):
        return Ref(arg[1:])
    return tuple(_arg(item) for item in arg) if isinstance(arg, (list, tuple)) else arg


def function(
    name: str, inputs: Sequence[str], outputs: Sequence[str], values: Iterable[Value], *ops: Op
) -> Function:
    table = {v.name: v for v in values}
    return Function(name, tuple(inputs), tuple(outputs), table, ops)


def box(layout: Layout) -> tuple[tuple[BoxDim, ...], ...]:
    return tuple(
        tuple(BoxDim(sub.size, *local_extent(sub, layout.mesh)) for sub in dim)
        for dim in layout.dims
    )


def port(
    name: str, layout: Layout, dtype: str = "f32", role: str = "input", label: str = ""
) -> Port:
    return Port(name, label or name, dtype, layout.shape, role, box(layout))


def program(
    main: Function,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    *callees: Function,
    level: str = "executable",
) -> Program:
    functions = {f.name: f for f in (main, *callees)}
    return Program(functions, Signature(tuple(inputs), tuple(outputs)), level=level, name="test")


def deployment(mesh: ProcessMesh, shared: Program, **groups: Sequence[str]) -> Deployment:
    """A deployment in which rank r carries out process r; groups are given by their axes."""
    coords = [mesh.coordinates(position) for position in range(mesh.size)]
    ranks = tuple(
        RankEntry(0, tuple(c[axis] for axis in mesh.dim_names), position)
        for position, c in enumerate(coords)
    )
    lists = {name: group_lists(mesh, axes) for name, axes in groups.items()}
    return Deployment((shared,), mesh.dim_names, ranks, lists)


def group_lists(mesh: ProcessMesh, axes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    lists: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    for position in range(mesh.size):
        coords = mesh.coordinates(position)
        others = tuple(coords[a] for a in mesh.dim_names if a not in axes)
        lists.setdefault(others, []).append((tuple(coords[a] for a in axes), position))
    return tuple(tuple(rank for _, rank in sorted(members)) for members in lists.values())
