"""Writes the ops of an alternative body."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autopar.ir.dtypes import HALVES
from autopar.ir.expr.expression import IntExpr
from autopar.ir.expr.facts import may_be
from autopar.ir.nothing import OF_NOTHING
from autopar.ir.program import Arg, DType, Op, Ref, Value
from autopar.ir.rules.rule import Body, Rule

Write = Callable[["BodyWriter"], None]
"""Writes the ops that replace one op."""


class BodyWriter:
    """Collects the ops that replace `op`, each with a result of a shape and dtype that is given.

    Operands are passed as value names. Ops inherit the place of the op they replace.
    """

    def __init__(self, op: Op, values: Mapping[str, Value], fresh: Callable[[str], str]) -> None:
        """Starts with no ops."""
        self.op = op
        self.ops: list[Op] = []
        self.new: dict[str, Value] = {}
        self._values = values
        self._fresh = fresh

    def value(self, name: str) -> Value:
        """Returns an operand or result of the replaced op, or a value written so far."""
        return self.new[name] if name in self.new else self._values[name]

    def name(self, arg: str) -> str | None:
        """Returns the name of the value that the replaced op's argument refers to, if any."""
        found = self.op.arg(arg)
        return found.name if isinstance(found, Ref) else None

    def required(self, arg: str) -> str:
        """Returns the name of the value that the replaced op's argument refers to.

        Raises:
            ValueError: If it refers to none.
        """
        name = self.name(arg)
        if name is None:
            raise ValueError(f"{self.op.kind} has no tensor {arg!r}")
        return name

    def emit(
        self,
        kind: str,
        args: Mapping[str, Arg],
        shape: Sequence[IntExpr],
        dtype: str,
        result: str | None = None,
    ) -> str:
        """Adds an op with one result and returns the result's name.

        Args:
            kind: The op.
            args: Its arguments, in schema order.
            shape: Global shape of the result.
            dtype: Its dtype.
            result: Name of the replaced op's result that it is; by default, a new value.
        """
        if result is None:
            result = self._fresh(f"{self.op.results[0]}.{kind.split('.')[1].strip('_')}")
            like = self._values[self.op.results[0]]
            self.new[result] = replace(
                like, name=result, shape=tuple(shape), dtype=dtype, dist=None, origin=None
            )
        arguments = tuple(args.items())
        self.ops.append(
            replace(self.op, kind=kind, args=arguments, results=(result,), dist=None, origin=None)
        )
        return result

    def emit_all(self, kind: str, args: Mapping[str, Arg]) -> None:
        """Adds an op that produces all results of the replaced one."""
        self.ops.append(
            replace(self.op, kind=kind, args=tuple(args.items()), dist=None, origin=None)
        )

    def like(self, kind: str, x: str, result: str | None = None, **args: Arg) -> str:
        """Adds an op whose first argument, `self`, and result have one shape and dtype."""
        value = self.value(x)
        return self.emit(kind, {"self": Ref(x), **args}, value.global_shape, value.dtype, result)

    def reduce(self, kind: str, x: str, dims: Sequence[int]) -> str:
        """Adds a reduction of `x` that keeps the reduced dimensions as size 1."""
        value = self.value(x)
        shape = [1 if at in dims else size for at, size in enumerate(value.global_shape)]
        args: dict[str, Arg] = {"self": Ref(x), "dim": tuple(dims), "keepdim": True}
        return self.emit(kind, args, shape, value.dtype)

    def highest(self, x: str, dims: Sequence[int]) -> str:
        """Adds the maximum of `x` as `reduce` does; of nothing it is the least number."""
        result = self.reduce("aten.amax.default", x, dims)
        if any(may_be(self.value(x).global_shape[at], 0) for at in dims):
            plan = (*self.ops[-1].plan, (OF_NOTHING, "max"))
            self.ops[-1] = replace(self.ops[-1], plan=plan)
        return result

    def combine(self, kind: str, x: str, y: str, result: str | None = None) -> str:
        """Adds an elementwise op of `x` and `y`, where `y` broadcasts to the shape of `x`."""
        value = self.value(x)
        args: dict[str, Arg] = {"self": Ref(x), "other": Ref(y)}
        return self.emit(kind, args, value.global_shape, value.dtype, result)

    def reshape(self, x: str, shape: Sequence[IntExpr], result: str | None = None) -> str:
        """Adds a view of `x`."""
        args: dict[str, Arg] = {"self": Ref(x), "size": tuple(shape)}
        return self.emit("aten.view.default", args, shape, self.value(x).dtype, result)

    def indices(self, shape: Sequence[IntExpr], dims: Sequence[int]) -> str:
        """Adds the row-major index of each element of `shape` along `dims`, taken as one.

        The dimensions that are not in `dims` have size 1.
        """
        sizes: list[IntExpr] = [1] * len(shape)
        stride: IntExpr = 1
        found = ""
        for at in sorted(dims, reverse=True):
            args: dict[str, Arg] = {"start": 0, "end": shape[at] * stride, "step": stride}
            indices = self.emit("aten.arange.start_step", args, (shape[at],), "i64")
            aligned = self.reshape(
                indices, [shape[at] if n == at else 1 for n in range(len(shape))]
            )
            sizes[at] = shape[at]
            both: dict[str, Arg] = {"self": Ref(aligned), "other": Ref(found)}
            found = self.emit("aten.add.Tensor", both, sizes, "i64") if found else aligned
            stride = stride * shape[at]
        return found

    def cast(self, x: str, dtype: str, result: str | None = None) -> str:
        """Adds a conversion to `dtype`, if there is anything to convert or a result to produce."""
        value = self.value(x)
        if result is None and value.dtype == dtype:
            return x
        args: dict[str, Arg] = {"self": Ref(x), "dtype": DType(dtype)}
        return self.emit("aten._to_copy.default", args, value.global_shape, dtype, result)


def body(name: str, rule: Rule, write: Write) -> Body:
    """Returns an alternative body whose ops `write` writes."""

    def expand(
        op: Op, values: Mapping[str, Value], fresh: Callable[[str], str]
    ) -> tuple[Sequence[Op], Sequence[Value]]:
        writer = BodyWriter(op, values, fresh)
        write(writer)
        return writer.ops, list(writer.new.values())

    return Body(name, rule, expand)


def accumulate_dtype(dtype: str) -> str:
    """Returns the dtype in which fused kernels compute statistics of elements of `dtype`."""
    return "f32" if dtype in HALVES else dtype


def with_bodies(make: Callable[[bool], Rule], name: str, write: Write) -> Rule:
    """Returns the op's own rule, `make(False)`, with a body whose rule is `make(True)`."""
    return with_body(make(False), make(True), name, write)


def with_body(own: Rule, split: Rule, name: str, write: Write) -> Rule:
    """Returns a rule with a body whose rule is `split`.

    The body is left out where it would split nothing more, and where there is nothing to compute:
    a reshape of no elements keeps no layout.
    """
    empty = any(size == 0 for name, size in split.sizes.items() if name not in split.whole)
    if empty or own.splittable == split.splittable:
        return own
    return replace(own, bodies=(*own.bodies, body(name, split, write)))
