"""Runs a reshard's ops on the pieces of all ranks with numpy, independent of the runtime."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autopar.cost.reshard.reshards import Reshard
from autopar.ir.dims import SubDim, local_extent
from autopar.ir.expr.expression import Expr, IntExpr, evaluate
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.partition.lower_reshard import LocalStep, lower_reshard

Array = np.ndarray[Any, np.dtype[Any]]
Coords = Mapping[str, int]
REDUCE: Mapping[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
    "any": np.maximum,
    "all": np.minimum,
}
IDENTITY = {"sum": 0, "max": -(2**30), "min": 2**30, "prod": 1, "any": 0, "all": 1}


def layouts(mesh: ProcessMesh, shape: Sequence[IntExpr], monoids: Sequence[str]) -> list[Layout]:
    """All ways to split, replicate or leave pending a tensor over the axes of a mesh."""
    found: dict[Layout, None] = {}
    choices = [*range(len(shape)), None, *monoids]
    for order in itertools.permutations(mesh.dim_names):
        for assignment in itertools.product(choices, repeat=len(order)):
            pending = {a: c for a, c in zip(order, assignment, strict=True) if isinstance(c, str)}
            if len(set(pending.values())) > 1:
                continue
            mapping: list[tuple[str, ...]] = [() for _ in shape]
            for axis, choice in zip(order, assignment, strict=True):
                if isinstance(choice, int):
                    mapping[choice] += (axis,)
            layout = Layout.from_dims_mapping(mesh, shape, mapping).with_partial(pending)
            found[layout.normalized()] = None
    return list(found)


def with_sub_dims(mesh: ProcessMesh, *dims: Sequence[int]) -> list[Layout]:
    """All ways to split dimensions made of sub-dimensions of these sizes."""
    found: dict[Layout, None] = {}
    sizes = [size for dim in dims for size in dim]
    for order in itertools.permutations(mesh.dim_names):
        for assignment in itertools.product([*range(len(sizes)), None], repeat=len(order)):
            subs = [SubDim(size) for size in sizes]
            for axis, choice in zip(order, assignment, strict=True):
                if choice is not None:
                    subs[choice] = SubDim(subs[choice].size, (*subs[choice].axes, axis))
            rest = iter(subs)
            split = tuple(tuple(next(rest) for _ in dim) for dim in dims)
            found[Layout(mesh, split).normalized()] = None
    return list(found)


def piece(whole: Array, layout: Layout, coords: Coords) -> Array:
    """The rank's piece of a global array, pending reductions left aside."""
    subs = [sub for dim in layout.dims for sub in dim]
    cut = whole.reshape([sub.size for sub in subs])
    for at, sub in enumerate(subs):
        start, length = (evaluate(e, coords) for e in local_extent(sub, layout.mesh))
        cut = cut.take(range(start, start + length), axis=at)
    return cut.reshape([evaluate(size, coords) for size in layout.local_shape])


def scatter(whole: Array, layout: Layout, rng: np.random.Generator) -> dict[int, Array]:
    """Pieces of all ranks; pending ones are random shares whose reduction is the array."""
    pending = layout.partial_axes
    sizes = [layout.mesh.axis_size(axis) for axis in pending]
    shares: dict[tuple[int, ...], Array] = {}
    if pending:
        monoid = layout.partial[0][1]
        keys = list(itertools.product(*(range(size) for size in sizes)))
        owner = rng.integers(len(keys), size=whole.shape)
        for at, key in enumerate(keys):
            shares[key] = np.where(owner == at, whole, IDENTITY[monoid])
        if monoid == "sum":
            noise = rng.integers(-9, 9, size=whole.shape)
            shares[keys[0]] = shares[keys[0]] + noise
            shares[keys[-1]] = shares[keys[-1]] - noise
    else:
        shares[()] = whole
    pieces = {}
    for rank in range(layout.mesh.size):
        coords = layout.mesh.coordinates(rank)
        pieces[rank] = piece(shares[tuple(coords[a] for a in pending)], layout, coords)
    return pieces


def check(whole: Array, layout: Layout, pieces: Mapping[int, Array]) -> None:
    """Fails unless the pieces make up the array in this layout."""
    mesh = layout.mesh
    for members in groups(mesh, layout.partial_axes):
        parts = [pieces[rank] for rank in members]
        if layout.partial:
            parts = [functools.reduce(REDUCE[layout.partial[0][1]], parts)]
        expected = piece(whole, layout, mesh.coordinates(members[0]))
        np.testing.assert_array_equal(parts[0], expected, err_msg=f"{layout}")


def groups(mesh: ProcessMesh, axes: Sequence[str]) -> Iterator[list[int]]:
    """The ranks that differ in these axes alone, in the order of their blocks."""
    lists: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    for rank in range(mesh.size):
        coords = mesh.coordinates(rank)
        rest = tuple(coords[a] for a in mesh.dim_names if a not in axes)
        lists.setdefault(rest, []).append((tuple(coords[a] for a in axes), rank))
    for members in lists.values():
        yield [rank for _, rank in sorted(members)]


def run(source: Layout, reshard: Reshard, pieces: Mapping[int, Array]) -> dict[int, Array]:
    """Carries out a reshard on all ranks."""
    now = dict(pieces)
    for step in lower_reshard(source, reshard):
        now = apply(step, now, source.mesh)
        for rank, mine in now.items():
            coords = source.mesh.coordinates(rank)
            shape = tuple(evaluate(size, coords) for size in step.layout.local_shape)
            assert mine.shape == shape, (step, rank, mine.shape, shape)
    return now


def apply(step: LocalStep, pieces: Mapping[int, Array], mesh: ProcessMesh) -> dict[int, Array]:
    """Carries out one op on all ranks."""
    args = dict(step.args)
    result: dict[int, Array] = {}
    if not step.kind.startswith("comm."):
        for rank, mine in pieces.items():
            result[rank] = LOCAL[step.kind](mine, resolve(args, mesh.coordinates(rank)))
        return result
    axes = args.pop("axes")
    assert isinstance(axes, tuple)
    for members in groups(mesh, [str(axis) for axis in axes]):
        given = [resolve(args, mesh.coordinates(rank)) for rank in members]
        assert all(one == given[0] for one in given), "members disagree"
        received = COMM[step.kind]([pieces[rank] for rank in members], given[0])
        result.update(zip(members, received, strict=True))
    return result


def resolve(args: Mapping[str, Any], coords: Coords) -> dict[str, Any]:
    def value(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(value(item) for item in arg)
        return evaluate(arg, coords) if isinstance(arg, Expr) else arg

    return {name: value(arg) for name, arg in args.items()}


def blocks(size: int, parts: int) -> list[slice]:
    block = -(-size // parts)
    return [slice(min(i * block, size), min((i + 1) * block, size)) for i in range(parts)]


def along(array: Array, dim: int, part: slice) -> Array:
    return array[(slice(None),) * dim + (part,)]


def _gather(parts: list[Array], args: Mapping[str, Any]) -> list[Array]:
    for part, extent in zip(parts, blocks(args["size"], len(parts)), strict=True):
        assert part.shape[args["dim"]] == extent.stop - extent.start
    return [np.concatenate(parts, axis=args["dim"])] * len(parts)


def _reduce(parts: list[Array], args: Mapping[str, Any]) -> list[Array]:
    return [functools.reduce(REDUCE[args["monoid"]], parts)] * len(parts)


def _reduce_scatter(parts: list[Array], args: Mapping[str, Any]) -> list[Array]:
    whole = _reduce(parts, args)[0]
    dim = args["dim"]
    return [along(whole, dim, part) for part in blocks(whole.shape[dim], len(parts))]


def _all_to_all(parts: list[Array], args: Mapping[str, Any]) -> list[Array]:
    split, concat = args["split_dim"], args["concat_dim"]
    whole = _gather(parts, {"dim": concat, "size": args["concat_size"]})[0]
    return [along(whole, split, part) for part in blocks(whole.shape[split], len(parts))]


def _permute(parts: list[Array], args: Mapping[str, Any]) -> list[Array]:
    """Everybody gets what is at its coordinates in another order of the axes."""
    sizes, order = args["sizes"], args["order"]
    grid = np.arange(len(parts)).reshape(sizes).transpose(order)
    sources = np.empty(len(parts), int)
    for source, member in enumerate(grid.reshape(-1)):
        sources[member] = source
    assert len({part.shape for part in parts}) == 1
    return [parts[source] for source in sources]


def _redistribute(parts: list[Array], args: Mapping[str, Any]) -> list[Array]:
    """The blocks are put together and cut again; who holds the same block holds the same."""
    grid = np.stack(np.unravel_index(np.arange(len(parts)), args["sizes"]))

    def index(axes: Sequence[int]) -> list[int]:
        found = np.zeros(len(parts), int)
        for axis in axes:
            found = found * args["sizes"][axis] + grid[axis]
        return [int(number) for number in found]

    held, read, dim = index(args["held"]), index(args["read"]), args["dim"]
    by_number = dict(zip(held, parts, strict=True))
    whole = np.concatenate([by_number[number] for number in sorted(by_number)], axis=dim)
    assert whole.shape[dim] == args["size"] == args["outputs"]
    block, size = args["outputs_block"], args["outputs"]
    starts = [min(number * block, size) for number in read]
    return [along(whole, dim, slice(start, min(start + block, size))) for start in starts]


COMM: Mapping[str, Callable[[list[Array], Mapping[str, Any]], list[Array]]] = {
    "comm.all_gather": _gather,
    "comm.all_reduce": _reduce,
    "comm.reduce_scatter": _reduce_scatter,
    "comm.all_to_all": _all_to_all,
    "comm.permute": _permute,
    "comm.redistribute": _redistribute,
}
LOCAL: Mapping[str, Callable[[Array, Mapping[str, Any]], Array]] = {
    "aten.view.default": lambda x, args: x.reshape(args["size"]),
    "aten.slice.Tensor": lambda x, args: along(
        x, args.get("dim", 0), slice(args["start"], args["end"])
    ),
    "autopar.window": lambda x, args: np.pad(
        x,
        [(0, args["high"] - n if d == args["dim"] else 0) for d, n in enumerate(x.shape)],
    ),
    "autopar.to_partial": lambda x, args: (
        x if args["index"] == 0 else np.full_like(x, IDENTITY[args["monoid"]])
    ),
}
