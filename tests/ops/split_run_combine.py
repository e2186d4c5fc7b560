"""Split an op along its factors, run the parts, combine: it must give what the whole op gives.

This is what partition and the runtime make of a rule, in the smallest form. Each function raises
`AssertionError` with the op, the split and the difference.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from autopar.ir.dims import DimLayout, SubDim, block_index, local_dim_size
from autopar.ir.expr.expression import Expr, evaluate
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops import rule_of
from autopar.ir.program import Arg, Op, OpDist, Value
from autopar.ir.rules.distribution import (
    consumed,
    factor_layout,
    local_args,
    pending_once,
    produced,
    shard_call,
    split_axes,
    window_extent,
    windows,
)
from autopar.ir.rules.rule import SAME, Linear, Rule
from autopar.runtime.collectives.monoids import identity, reduce_tensors
from autopar.runtime.collectives.reference import window_of
from autopar.runtime.ports.boxes import layout_box, place, take
from tests.ops.sample import Sample, compute

PARTS = (2, 3)


def check_splits(sample: Sample, rule: Rule) -> None:
    """Checks every factor alone, in several numbers of parts, and every pair of factors."""
    for factor in rule.splittable:
        for dim, mesh in single_splits(rule, factor):
            check_split(sample, rule, OpDist(mesh, ((factor, dim),)))
    mesh = ProcessMesh.of_shape((2, 3), ["a", "b"])
    for first, second in itertools.combinations(rule.splittable, 2):
        if first in rule.indexed and second in rule.indexed:
            continue
        dims = ((SubDim(rule.sizes[f], (axis,)),) for f, axis in ((first, "a"), (second, "b")))
        check_split(sample, rule, OpDist(mesh, tuple(zip((first, second), dims, strict=True))))


def single_splits(rule: Rule, factor: str) -> Iterator[tuple[DimLayout, ProcessMesh]]:
    """Yields layouts of one factor: even, uneven, more parts than elements, strided."""
    size = rule.sizes[factor]
    for parts in sorted({*PARTS, size + 1 if size < 8 else 5}):
        yield (SubDim(size, ("a",)),), ProcessMesh.of_shape((parts,), ["a"])
    yield (SubDim(size, ("b", "a")),), ProcessMesh.of_shape((2, 2), ["a", "b"])
    major = next((n for n in (2, 3, 5) if size % n == 0 and size > n), None)
    if major is not None and factor not in rule.flat:
        strided = (SubDim(major), SubDim(size // major, ("a",)))
        yield strided, ProcessMesh.of_shape((2,), ["a"])


def check_split(sample: Sample, rule: Rule, dist: OpDist) -> None:
    """Checks one choice: all results of all processes together are the whole op's results."""
    what = f"{sample}\n  rule {rule}\n  split {dist.factors}"
    layouts = [produced(rule, dist, at) for at in range(len(rule.results))]
    for layout, whole in zip(layouts, sample.results, strict=True):
        assert not layout.problems(tuple(whole.shape)), what
    parts = [run_part(sample, rule, dist, layouts, coords) for coords in all_coords(dist.mesh)]
    for at, (layout, whole) in enumerate(zip(layouts, sample.results, strict=True)):
        found = combine([part[at] for part in parts], layout, what)
        assert_equal(found, whole, f"{what}\n  result {at}, {layout}")


def all_coords(mesh: ProcessMesh) -> list[dict[str, int]]:
    """Returns the coordinates of every process."""
    return [mesh.coordinates(position) for position in range(mesh.size)]


def run_part(
    sample: Sample,
    rule: Rule,
    dist: OpDist,
    layouts: Sequence[Layout],
    coords: Mapping[str, int],
) -> list[Tensor]:
    """Returns what one process computes."""
    operands = [
        take_operand(tensor, rule, dist, at, coords) for at, tensor in enumerate(sample.tensors)
    ]
    shapes = [tuple(evaluate(size, coords) for size in lay.local_shape) for lay in layouts]
    known = [
        _without_running(sample.results[at], shape, rule, dist, at, coords)
        for at, shape in enumerate(shapes)
    ]
    if all(result is not None for result in known):
        return [result for result in known if result is not None]
    kind, args = local_call(sample, rule, dist, coords)
    found = compute(kind, args, operands)
    results = [k if k is not None else f for k, f in zip(known, found, strict=True)]
    for result, shape in zip(results, shapes, strict=True):
        assert tuple(result.shape) == shape, f"{sample} {dist}: {result.shape} is not {shape}"
    return results


def take_operand(
    tensor: Tensor, rule: Rule, dist: OpDist, at: int, coords: Mapping[str, int]
) -> Tensor:
    """Returns what one process reads of an operand: its box, and windows of what it is read by."""
    found = windows(rule, dist, at)
    tensor = _counted_once(tensor, rule, dist, at, coords)
    piece = take(tensor, layout_box(consumed(rule, dist, at, complete=found), coords))
    under = rule.under(dist.body)
    sizes = {
        factor: evaluate(local_dim_size(factor_layout(under, dist, factor), dist.mesh), coords)
        for dim in under.operands[at]
        for factor in dim
    }
    sizes |= {factor: under.sizes[factor] for factor in found}
    names = [factor for dim in under.operands[at] for factor in dim]
    piece = piece.reshape([sizes[name] for name in names])
    for factor, way in found.items():
        axes = split_axes(dist, under.windows[factor].of)
        dim, member = names.index(factor), evaluate(block_index(axes, dist.mesh), coords)
        piece = window_of(piece, dim, way, member)
        sizes[factor] = evaluate(window_extent(rule, dist, factor)[1], coords)
        assert piece.shape[dim] == sizes[factor], f"{rule} {factor}: {piece.shape}"
    return piece.reshape([math.prod(sizes[name] for name in dim) for dim in under.operands[at]])


def _counted_once(
    tensor: Tensor, rule: Rule, dist: OpDist, at: int, coords: Mapping[str, int]
) -> Tensor:
    """Returns the process's part of a tensor that is pending, so that it counts once."""
    pending = pending_once(rule.under(dist.body), dist, at)
    if not pending:
        return tensor
    axes, (monoid, *_) = tuple(pending), pending.values()
    member = evaluate(block_index(axes, dist.mesh), coords)
    return random_pieces(tensor, monoid, dist.mesh.axes_size(axes))[member]


def _without_running(
    whole: Tensor,
    shape: tuple[int, ...],
    rule: Rule,
    dist: OpDist,
    at: int,
    coords: Mapping[str, int],
) -> Tensor | None:
    """Returns a result that is empty, or whose part of a reduction is; None for any other.

    As the loader does, since many kernels refuse empty operands.
    """
    if 0 in shape:
        return whole.new_empty(shape)
    empty = [
        factor
        for factor, dim in dist.factors
        if evaluate(local_dim_size(dim, dist.mesh), coords) == 0 and factor not in rule.once
    ]
    monoids = [monoid for f in empty if (monoid := rule.reduce[f, at]) != SAME]
    return whole.new_full(shape, identity(monoids[0], whole.dtype)) if monoids else None


def local_call(
    sample: Sample, rule: Rule, dist: OpDist, coords: Mapping[str, int]
) -> tuple[str, dict[str, Arg]]:
    """Returns the op that a process runs, and its arguments."""
    kind = sample.kind
    args = dict(sample.ir_args)
    local = {name: resolve(arg, coords) for name, arg in local_args(rule, dist).items()}
    args.update(local)
    shard = shard_call(rule, dist)
    if shard is not None:
        kind = shard[0]
        args.update({name: resolve(arg, coords) for name, arg in shard[1].items()})
    return kind, args


def resolve(arg: Arg, coords: Mapping[str, int]) -> Arg:
    """Returns an argument with its rank expressions evaluated."""
    if isinstance(arg, tuple):
        return tuple(resolve(item, coords) for item in arg)
    return evaluate(arg, coords) if isinstance(arg, Expr) else arg


def combine(pieces: Sequence[Tensor], layout: Layout, what: str) -> Tensor:
    """Returns the global tensor that the pieces of all processes make."""
    mesh = layout.mesh
    coords = all_coords(mesh)
    for axis, monoid in layout.partial:
        groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for position, at in enumerate(coords):
            key = tuple((name, value) for name, value in at.items() if name != axis)
            groups.setdefault(key, []).append(position)
        reduced = list(pieces)
        for group in groups.values():
            total = reduce_tensors(monoid, [pieces[position] for position in group])
            for position in group:
                reduced[position] = total
        pieces = reduced
    whole = pieces[0].new_zeros(layout.shape)
    covered = torch.zeros(layout.shape, dtype=torch.bool)
    for piece, at in zip(pieces, coords, strict=True):
        box = layout_box(layout, at)
        place(whole, piece, box)
        place(covered, torch.ones(piece.shape, dtype=torch.bool), box)
    assert bool(covered.all()), f"{what}: pieces leave gaps"
    for piece, at in zip(pieces, coords, strict=True):
        assert_equal(piece, take(whole, layout_box(layout, at)), f"{what}: copies differ")
    return whole


TOLERANCES = {torch.float16: 2e-2, torch.bfloat16: 6e-2, torch.float32: 2e-5}


def tolerance_of(tensors: Sequence[Tensor]) -> float:
    """Returns the relative and absolute tolerance of sums of elements of these dtypes."""
    return max((TOLERANCES.get(tensor.dtype, 1e-9) for tensor in tensors), default=1e-9)


def assert_equal(found: Tensor, expected: Tensor, what: str, tolerance: float = 0.0) -> None:
    """Checks that two tensors are equal up to reassociated sums."""
    assert found.dtype == expected.dtype, f"{what}: dtype {found.dtype}, not {expected.dtype}"
    assert found.shape == expected.shape, f"{what}: {found.shape}, not {expected.shape}"
    if not (expected.is_floating_point() or expected.is_complex()):
        assert torch.equal(found, expected), f"{what}:\n{found}\n{expected}"
        return
    tolerance = max(tolerance, tolerance_of([expected]))
    close = torch.isclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert bool(close.all()), f"{what}:\n{found}\n{expected}"


def check_linear(sample: Sample, rule: Rule, row: Linear, parts: int = 3) -> None:
    """Checks that reducing pending operands before the op, or its results after it, is the same."""
    for monoid in sorted(row.monoids):
        for pieces in _decompositions(sample, row, monoid, parts):
            found = [compute(sample.kind, sample.ir_args, operands) for operands in pieces]
            for at, whole in enumerate(sample.results):
                total = reduce_tensors(monoid, [results[at] for results in found])
                what = f"{sample}\n  {rule} {row} result {at}, {monoid}"
                assert_equal(total, whole, what, tolerance_of(sample.tensors))


def _decompositions(
    sample: Sample, row: Linear, monoid: str, parts: int
) -> Iterator[list[list[Tensor]]]:
    """Yields operands per process: random pieces, and one that holds all while others hold none."""
    dtypes = {sample.tensors[at].dtype for at in row.operands}
    if any(not _defined(monoid, dtype) for dtype in dtypes):
        return
    for pieces_of in (random_pieces, first_holds_all):
        per_operand = [
            pieces_of(tensor, monoid, parts) if at in row.operands else [tensor] * parts
            for at, tensor in enumerate(sample.tensors)
        ]
        yield [list(operands) for operands in zip(*per_operand, strict=True)]


def _defined(monoid: str, dtype: torch.dtype) -> bool:
    if monoid in ("any", "all"):
        return dtype == torch.bool
    if monoid in ("max", "min"):
        return not dtype.is_complex and dtype != torch.bool
    return dtype != torch.bool


def first_holds_all(tensor: Tensor, monoid: str, parts: int) -> list[Tensor]:
    """Returns the pieces that a complete value is turned into."""
    nothing = torch.full_like(tensor, identity(monoid, tensor.dtype))
    return [tensor, *[nothing] * (parts - 1)]


def random_pieces(tensor: Tensor, monoid: str, parts: int) -> list[Tensor]:
    """Returns pieces whose reduction is `tensor`."""
    generator = torch.Generator().manual_seed(tensor.numel())

    def uniform() -> Tensor:
        return torch.rand(tensor.shape, generator=generator, dtype=torch.float64)

    if monoid in ("max", "min"):
        owner = torch.randint(parts, tensor.shape, generator=generator)
        sign = -1 if monoid == "max" else 1
        bound = torch.minimum if monoid == "max" else torch.maximum
        # The bound is for unsigned integers, which wrap around.
        less = [
            bound(tensor, tensor + sign * (uniform() * 3).to(tensor.dtype)) for _ in range(parts)
        ]
        return [torch.where(owner == at, tensor, less[at]) for at in range(parts)]
    if monoid in ("any", "all"):
        empty = monoid == "all"
        owner = torch.randint(parts, tensor.shape, generator=generator)
        return [torch.where(owner == at, tensor, empty) for at in range(parts)]
    if monoid == "prod":
        if not tensor.is_floating_point():
            return first_holds_all(tensor, monoid, parts)
        factors = [(uniform() + 0.5).to(tensor.dtype) for _ in range(parts - 1)]
        return [*factors, tensor / torch.stack(factors).prod(0)]
    summands = [(uniform() * 4 - 2).to(tensor.dtype) for _ in range(parts - 1)]
    return [*summands, tensor - torch.stack(summands).sum(0).to(tensor.dtype)]


def check_body(sample: Sample, rule: Rule) -> None:
    """Checks that each body computes what the op does, in ops that have rules themselves."""
    for body in rule.bodies:
        what = f"{sample}\n  body {body.name}"
        assert dict(body.rule.sizes) == dict(rule.sizes), what
        assert body.rule.operands == rule.operands, what
        assert body.rule.results == rule.results, what
        assert set(rule.splittable) < set(body.rule.splittable), what
        for at, dims in enumerate(body.rule.results):
            absent = set(body.rule.splittable).difference(*dims)
            assert all((factor, at) in body.rule.reduce for factor in absent), what
        ops, new = expand(sample, body.name, rule)
        values = {**sample.values, **{value.name: value for value in new}}
        tensors = {f"x{at}": tensor for at, tensor in enumerate(sample.tensors)}
        for op in ops:
            assert rule_of(op, values) is not None, f"{what}: no rule for {op}"
            operands = [tensors[name] for name in op.operands]
            found = compute(op.kind, dict(op.args), operands)
            for name, tensor in zip(op.results, found, strict=True):
                assert tuple(tensor.shape) == values[name].shape, f"{what}: {op}: {tensor.shape}"
                tensors[name] = tensor
        for name, whole in zip(sample.op.results, sample.results, strict=True):
            assert_equal(tensors[name], whole, f"{what}: {name}")


def expand(sample: Sample, name: str, rule: Rule) -> tuple[Sequence[Op], Sequence[Value]]:
    """Returns the ops and new values of a body."""
    body = rule.body(name)
    assert body is not None
    count = itertools.count()
    return body.expand(sample.op, sample.values, lambda hint: f"{hint}.{next(count)}")
