"""Lookups: ops that take, or write, entries by their numbers, and how many entries there are.

What lies out of range is an error on one device. On a shard of the entries it is nobody's, which
can't be told from what lies in another shard: so it is looked for before (`runtime.index_bounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from autopar.ir.expr.expression import IntExpr
from autopar.ir.ops.shape.view import RESHAPES, VIEWS
from autopar.ir.program import Op, Ref, Value


@dataclass(frozen=True)
class Lookup:
    """That an op takes entries by their numbers.

    Attributes:
        index: The value that has the numbers.
        size: How many entries there are.
        op: The op.
        wraps: Whether negative numbers count from the end.
        ignored: A number that stands for none.
    """

    index: str
    size: IntExpr
    op: Op
    wraps: bool = False
    ignored: int | None = None

    @property
    def least(self) -> IntExpr:
        """The least number of an entry."""
        return self.size * -1 if self.wraps else 0


Lookups = Callable[[Op, Mapping[str, Value]], Iterator[Lookup]]
"""Yields the lookups of an op."""


def lookups_of(op: Op, values: Mapping[str, Value]) -> Iterator[Lookup]:
    """Yields the lookups of an op.

    Args:
        op: The op.
        values: Those of its function, by name.
    """
    found = _TABLE.get(op.kind)
    return iter(()) if found is None else found(op, values)


def _along_dim(op: Op, values: Mapping[str, Value]) -> Iterator[Lookup]:
    table, index = _shape(op, "self", values), op.arg("index")
    dim = op.arg("dim", 0)
    if isinstance(index, Ref) and isinstance(dim, int) and table:
        yield Lookup(index.name, table[dim], op)


def _by_position(op: Op, values: Mapping[str, Value]) -> Iterator[Lookup]:
    """Yields the lookups of an op with an index per dimension."""
    table, indices = _shape(op, "self", values), op.arg("indices")
    given = list(enumerate(indices)) if isinstance(indices, tuple) else []
    found = [(at, each.name) for at, each in given if isinstance(each, Ref)]
    # A mask stands for as many dimensions as it has.
    if all(values[name].dtype not in ("bool", "u8") for _, name in found):
        for at, name in found:
            yield Lookup(name, table[at], op, wraps=True)


def _rows(op: Op, values: Mapping[str, Value]) -> Iterator[Lookup]:
    index = op.arg("indices")
    if isinstance(index, Ref):
        yield Lookup(index.name, _shape(op, "weight", values)[0], op)


def _classes(op: Op, values: Mapping[str, Value]) -> Iterator[Lookup]:
    index, ignored = op.arg("target"), op.arg("ignore_index", -100)
    scores = _shape(op, "self", values)
    if isinstance(index, Ref) and isinstance(ignored, int):
        yield Lookup(index.name, scores[min(len(scores) - 1, 1)], op, ignored=ignored)


def _shape(op: Op, name: str, values: Mapping[str, Value]) -> tuple[IntExpr, ...]:
    table = op.arg(name)
    assert isinstance(table, Ref)
    return values[table.name].global_shape


_ALONG_DIM = (
    *("gather.default", "index_select.default", "scatter.src", "scatter.value"),
    *("scatter_add.default", "index_add.default", "index_copy.default"),
)

_TABLE: Mapping[str, Lookups] = {
    **{f"aten.{name}": _along_dim for name in _ALONG_DIM},
    "aten.index.Tensor": _by_position,
    "aten.index_put.default": _by_position,
    "aten.embedding.default": _rows,
    "aten.nll_loss_forward.default": _classes,
    "aten.nll_loss2d_forward.default": _classes,
}

REARRANGED = VIEWS.union(RESHAPES, ("aten.clone.default",))
"""Ops whose result has all elements of the operand, and no others."""
