"""Random completed programs: any layouts, any choices that the rules allow, however unwise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from autopar.base.errors import Loc
from autopar.ir.dims import DimLayout, SubDim
from autopar.ir.expr.expression import IntExpr, Size, floordiv, planned, prod
from autopar.ir.expr.facts import divides, may_be
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops import rule_of
from autopar.ir.program import (
    Arg,
    DType,
    Function,
    Op,
    OpDist,
    Pending,
    Port,
    Program,
    Ref,
    Signature,
    Value,
)
from autopar.ir.rules.distribution import produced
from autopar.ir.rules.rule import Rule

ARITHMETIC = {"sum", "max", "min", "prod"}
"""The reductions that make sense for floats."""

MESHES = (
    ProcessMesh.of_shape((3,), ("x",)),
    ProcessMesh.of_shape((2, 2), ("x", "y")),
    ProcessMesh.of_shape((2, 3), ("x", "y")),
)


LARGEST = 4096
"""Elements of a value at most, as planned."""


def random_program(seed: int, length: int = 12, left_open: bool = False) -> Program:
    """Returns a completed program of so many ops over two inputs, a table and positions.

    Args:
        seed: What all choices follow from.
        length: How many ops are drawn; some are several.
        left_open: Whether sizes of inputs stay open: `b`, `s` or both.
    """
    builder = _Builder(random.Random(seed), left_open)
    for _ in range(length):
        builder.add()
    return builder.program()


class _Builder:
    def __init__(self, rng: random.Random, left_open: bool) -> None:
        self.rng = rng
        self.mesh = rng.choice(MESHES)
        self.values: dict[str, Value] = {}
        self.ops: list[Op] = []
        self.b: IntExpr
        self.s: IntExpr
        self.b, self.s, self.d = rng.sample((3, 4, 5, 6), 3)
        if left_open:
            self.leave_open()
        self.inputs = [
            self.input("x", "f32", (self.b, self.s, self.d)),
            self.input("w", "f32", (self.d, self.d), "parameter"),
            self.input("table", "f32", (7, self.d), "parameter"),
            self.input("ids", "i64", (self.b, self.s)),
        ]

    def leave_open(self) -> None:
        which = self.rng.choice(("b", "s", "bs"))
        for name in which:
            least = self.rng.randrange(2)
            setattr(self, name, Size(name, least, planned=planned(getattr(self, name))))

    def input(self, name: str, dtype: str, shape: tuple[IntExpr, ...], role: str = "input") -> str:
        layout = self.layout(shape, [])
        self.values[name] = Value(name, dtype, shape, role, layout, Origin("default"))
        return name

    def layout(self, shape: Sequence[IntExpr], monoids: Sequence[str]) -> Layout:
        dims: list[list[str]] = [[] for _ in shape]
        pending = {}
        monoid = self.rng.choice(monoids) if monoids else None
        for axis in self.rng.sample(self.mesh.dim_names, self.mesh.ndim):
            choice = self.rng.randrange(-2, len(shape))
            if choice >= 0:
                dims[choice].append(axis)
            elif choice == -2 and monoid:
                pending[axis] = monoid
        layout = Layout.from_dims_mapping(self.mesh, shape, [tuple(axes) for axes in dims])
        return layout.with_partial(pending).normalized()

    def floats(self, ndim: int) -> list[str]:
        return [
            name
            for name, value in self.values.items()
            if value.dtype == "f32" and len(value.shape) == ndim and 0 not in value.shape
        ]

    def add(self) -> None:
        kinds = (
            *(self.unary, self.binary, self.product, self.reduction, self.lookup),
            *(self.flat, self.halves, self.joined, self.filled, self.windowed),
        )
        self.rng.choice(kinds)()

    def unary(self) -> None:
        x = self.rng.choice(self.floats(3))
        shape = self.values[x].global_shape
        choice = self.rng.randrange(4)
        if choice == 0:
            order = tuple(self.rng.sample(range(3), 3))
            self.emit(
                "aten.permute.default", {"self": Ref(x), "dims": order}, [shape[i] for i in order]
            )
        elif choice == 1:
            at = self.rng.randrange(3)
            args: dict[str, Arg] = {"self": Ref(x), "dim": at, "half_to_float": False}
            self.emit("aten._softmax.default", args, shape)
        elif choice == 2:
            self.emit("aten.tanh.default", {"self": Ref(x)}, shape)
        else:
            self.emit(
                "aten.flip.default", {"self": Ref(x), "dims": (self.rng.randrange(3),)}, shape
            )

    def flat(self) -> None:
        x = self.rng.choice(self.floats(3))
        shape = self.values[x].global_shape
        first, second = prod(shape[:2]), prod(shape[1:])
        flat = self.rng.choice(((first, shape[2]), (shape[0], second), (prod(shape),)))
        name = self.emit("aten.view.default", {"self": Ref(x), "size": flat}, flat)
        self.emit("aten.view.default", {"self": Ref(name), "size": shape}, shape)

    def halves(self) -> None:
        x = self.rng.choice(self.floats(3))
        shape = self.values[x].global_shape
        at = self.rng.randrange(3)
        half = floordiv(shape[at], 2)
        start, end = self.rng.choice(((0, half), (half, shape[at])))
        cut = [end - start if i == at else size for i, size in enumerate(shape)]
        args: dict[str, Arg] = {"self": Ref(x), "dim": at, "start": start, "end": end}
        self.emit("aten.slice.Tensor", args, cut)

    def joined(self) -> None:
        at = self.rng.randrange(3)
        x = self.rng.choice(self.floats(3))
        shape = self.values[x].global_shape
        others = [each for each in self.floats(3) if self.differs(each, shape) <= {at}]
        other = self.rng.choice(others)
        sizes = list(shape)
        sizes[at] = shape[at] + self.values[other].shape[at]
        if planned(prod(sizes)) <= LARGEST:
            self.emit("aten.cat.default", {"tensors": (Ref(x), Ref(other)), "dim": at}, sizes)

    def windowed(self) -> None:
        x = self.rng.choice(self.floats(3))
        shape = list(self.values[x].global_shape)
        at, kernel, step = self.rng.randrange(3), self.rng.randint(1, 4), self.rng.randint(1, 3)
        before, after = self.rng.randrange(3), kernel + self.rng.randrange(2)
        shape[at] = shape[at] + (before + after)
        pad = (*(0, 0) * (2 - at), before, after)
        padded = self.emit("aten.constant_pad_nd.default", {"self": Ref(x), "pad": pad}, shape)
        shape[at] = floordiv(shape[at] - kernel, step) + 1
        args: dict[str, Arg] = {"dimension": at, "size": kernel, "step": step}
        name = self.emit("aten.unfold.default", {"self": Ref(padded), **args}, [*shape, kernel])
        self.emit("aten.sum.dim_IntList", {"self": Ref(name), "dim": (3,)}, shape)

    def differs(self, name: str, shape: Sequence[IntExpr]) -> set[int]:
        sizes = zip(self.values[name].shape, shape, strict=True)
        return {at for at, (one, other) in enumerate(sizes) if one != other}

    def filled(self) -> None:
        x = self.rng.choice(self.floats(3))
        shape = self.values[x].global_shape
        ones = self.emit("aten.full.default", {"size": shape, "fill_value": 0.5}, shape)
        self.emit("aten.mul.Tensor", {"self": Ref(x), "other": Ref(ones)}, shape)

    def binary(self) -> None:
        x = self.rng.choice(self.floats(3))
        shape = self.values[x].shape
        same = [name for name in self.floats(3) if self.values[name].shape == shape]
        kind = self.rng.choice(("aten.add.Tensor", "aten.mul.Tensor", "aten.maximum.default"))
        self.emit(kind, {"self": Ref(x), "other": Ref(self.rng.choice(same))}, shape)

    def product(self) -> None:
        x = self.rng.choice(self.floats(3))
        b, s, d = self.values[x].global_shape
        turned = self.emit("aten.permute.default", {"self": Ref(x), "dims": (0, 2, 1)}, (b, d, s))
        self.emit("aten.bmm.default", {"self": Ref(x), "mat2": Ref(turned)}, (b, s, s))

    def reduction(self) -> None:
        x = self.rng.choice(self.floats(3))
        shape = list(self.values[x].global_shape)
        at = self.rng.randrange(3)
        kind = self.rng.choice(("aten.sum.dim_IntList", "aten.amax.default"))
        if may_be(shape[at], 0):
            kind = "aten.sum.dim_IntList"
        reduced = [1 if i == at else size for i, size in enumerate(shape)]
        name = self.emit(kind, {"self": Ref(x), "dim": (at,), "keepdim": True}, reduced)
        self.emit("aten.sub.Tensor", {"self": Ref(x), "other": Ref(name)}, shape)

    def lookup(self) -> None:
        self.emit(
            "aten.embedding.default",
            {"weight": Ref("table"), "indices": Ref("ids")},
            (self.b, self.s, self.d),
        )

    def emit(self, kind: str, args: dict[str, Arg], shape: Sequence[IntExpr]) -> str:
        name = f"v{len(self.ops)}"
        value = Value(name, "f32", tuple(shape))
        op = Op(kind, tuple(args.items()), (name,), loc=Loc("random", len(self.ops) + 1))
        values = {**self.values, name: value}
        rule = rule_of(op, values)
        dist = self.choose(rule) if rule else OpDist(self.mesh)
        layout = produced(rule, dist, 0) if rule else Layout.replicated(self.mesh, shape)
        if self.rng.random() < 0.4:
            layout = self.layout(shape, ["sum", "max"])
        self.values[name] = replace(value, dist=layout.normalized(), origin=Origin("chosen"))
        self.ops.append(replace(op, dist=dist, origin=Origin("chosen")))
        return name

    def choose(self, rule: Rule) -> OpDist:
        """Any assignment of axes to the factors, and pending reductions over what is left."""
        axes: dict[str, tuple[str, ...]] = {}
        free = []
        for axis in self.rng.sample(self.mesh.dim_names, self.mesh.ndim):
            factor = self.rng.choice([*rule.splittable, None])
            if factor is None:
                free.append(axis)
            else:
                axes[factor] = (*axes.get(factor, ()), axis)
        factors = tuple((name, self.dim(rule, name, axes[name])) for name in axes)
        reduced = {rule.reduce[key] for key in rule.reduce if key[0] in axes}
        pending = []
        for axis in free:
            rows = [(row, m) for row in rule.linear for m in sorted(row.monoids & ARITHMETIC)]
            if rows and self.rng.random() < 0.5:
                row, monoid = self.rng.choice(rows)
                if not reduced - {monoid} and all(p.monoid == monoid for p in pending):
                    pending.append(Pending(axis, monoid, tuple(sorted(row.operands))))
        return OpDist(self.mesh, factors, "", tuple(pending))

    def dim(self, rule: Rule, factor: str, axes: tuple[str, ...]) -> DimLayout:
        size = rule.sizes[factor]
        if factor not in rule.flat and divides(2, size) and self.rng.random() < 0.3:
            return (SubDim(2), SubDim(floordiv(size, 2), axes))
        return (SubDim(size, axes),)

    def program(self) -> Program:
        used = {name for op in self.ops for name in op.operands}
        outputs = tuple(op.results[0] for op in self.ops if op.results[0] not in used)
        for name in outputs:
            value = self.values[name]
            if value.dist is not None:
                self.values[name] = replace(value, dist=value.dist.without_partial())
        main = Function("main", tuple(self.inputs), outputs, self.values, tuple(self.ops))
        signature = Signature(
            tuple(self.port(name) for name in self.inputs),
            tuple(self.port(name) for name in outputs),
        )
        return Program({"main": main}, signature, self.mesh)

    def port(self, name: str) -> Port:
        value = self.values[name]
        return Port(name, name, value.dtype, value.global_shape, value.role)


__all__ = ["DType", "random_program"]
