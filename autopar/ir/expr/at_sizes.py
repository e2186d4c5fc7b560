"""Programs at sizes: what was open becomes a number, what depends on the rank stays."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from autopar.ir.dims import DimLayout, SubDim
from autopar.ir.expr.expression import Expr, IntExpr, Size, axes_of, is_open, substitute
from autopar.ir.expr.formula import Formula, formula
from autopar.ir.layout import Layout
from autopar.ir.program import Arg, BoxDim, Function, Op, OpDist, Port, Program, Signature, Value

Sizes = Mapping[str, int]
"""Numbers for open sizes, by name."""

NO_SIZES: Sizes = MappingProxyType({})
"""Those of a program in which none is open."""


def as_coords(sizes: Sizes) -> dict[str, int]:
    """Returns sizes under the names by which expressions are evaluated."""
    return {f"${name}": size for name, size in sizes.items()}


def at_sizes(program: Program, sizes: Sizes) -> Program:
    """Returns a program with numbers for its open sizes.

    Args:
        program: The program, of any level.
        sizes: The size of each that is open, by name.
    """
    return _AtSizes(as_coords(sizes)).program(program)


class OpenSignature:
    """The inputs and outputs of a program at any sizes; those in which none is open stay.

    Args:
        program: The program, at any level.
    """

    def __init__(self, program: Program) -> None:
        self._signature = signature = program.signature
        state = {port.name for port in signature.inputs if port.role == "state"}
        new = {out for out, into in program.main.aliases if into in state}
        self._inputs, self._state = _open_ports(signature.inputs, state)
        self._outputs, self._new = _open_ports(signature.outputs, new)

    def at(self, sizes: Sizes, *, state: bool = False) -> Signature:
        """Returns them at sizes.

        Args:
            sizes: The sizes by name.
            state: Whether state is wanted too, of which calls ask only where it begins; otherwise
                it stays as it is.
        """
        known = as_coords(sizes)
        inputs, outputs = list(self._signature.inputs), list(self._signature.outputs)
        for ports, open_ports, more in (
            (inputs, self._inputs, self._state),
            (outputs, self._outputs, self._new),
        ):
            for position, port in (*open_ports, *(more if state else ())):
                ports[position] = port.at(known)
        return Signature(tuple(inputs), tuple(outputs))


class _OpenPort:
    """An input or output with open sizes. A new length comes with each token that is generated.

    Args:
        port: It.
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self._is_of_rank = any(map(axes_of, _sizes(port)))

    @cached_property
    def _numbers(self) -> Formula:
        return formula(_sizes(self._port))

    def at(self, known: Mapping[str, int]) -> Port:
        """Returns it at sizes, under the names by which expressions are evaluated."""
        port = self._port
        if self._is_of_rank:
            return _AtSizes(known).port(port)
        numbers = self._numbers(known)
        rank = len(port.shape)
        rest = iter(numbers[rank:])
        box = tuple(tuple(BoxDim(next(rest), next(rest), next(rest)) for _ in d) for d in port.box)
        return _with_sizes(port, numbers[:rank], box)


def port_at(port: Port, sizes: Sizes) -> Port:
    """Returns an input or output at sizes."""
    return _AtSizes(as_coords(sizes)).port(port)


def layout_at(layout: Layout, sizes: Sizes) -> Layout:
    """Returns a layout at sizes."""
    found = _AtSizes(as_coords(sizes)).layout(layout)
    assert found is not None
    return found


def _open_ports(
    ports: Sequence[Port], state: Container[str]
) -> tuple[list[tuple[int, _OpenPort]], list[tuple[int, _OpenPort]]]:
    """Returns ports with open sizes and where they are: others, and those of state."""
    others: list[tuple[int, _OpenPort]] = []
    of_state: list[tuple[int, _OpenPort]] = []
    for position, port in enumerate(ports):
        if any(map(is_open, _sizes(port))):
            (of_state if port.name in state else others).append((position, _OpenPort(port)))
    return others, of_state


def _sizes(port: Port) -> Iterator[IntExpr]:
    yield from port.shape
    for sub in (sub for dim in port.box for sub in dim):
        yield from (sub.size, sub.start, sub.length)


@dataclass
class _AtSizes:
    known: Mapping[str, int]
    _dims: dict[DimLayout, DimLayout] = field(default_factory=dict)
    _sizes: dict[Expr, IntExpr] = field(default_factory=dict)

    def program(self, program: Program) -> Program:
        functions = {name: self._function(each) for name, each in program.functions.items()}
        ports = program.signature
        signature = Signature(
            tuple(map(self.port, ports.inputs)), tuple(map(self.port, ports.outputs))
        )
        relations = (each.at(self.known) for each in program.relations)
        left = tuple(each for each in relations if each.names)
        return replace(program, functions=functions, signature=signature, relations=left)

    def _function(self, function: Function) -> Function:
        values = {name: self._value(each) for name, each in function.values.items()}
        return replace(function, values=values, ops=tuple(map(self._op, function.ops)))

    def _size(self, size: IntExpr) -> IntExpr:
        if isinstance(size, int):
            return size
        if isinstance(size, Size):
            return self.known.get(str(size), size)
        found = self._sizes.get(size)
        if found is None:
            found = self._sizes[size] = substitute(size, self.known)
        return found

    def _value(self, value: Value) -> Value:
        if value.dist is None and all(isinstance(size, int) for size in value.shape):
            return value
        return replace(value, shape=self._shape(value.shape), dist=self.layout(value.dist))

    def _shape(self, shape: tuple[IntExpr, ...]) -> tuple[IntExpr, ...]:
        return tuple(map(self._size, shape))

    def layout(self, layout: Layout | None) -> Layout | None:
        return layout and replace(layout, dims=tuple(map(self._dim, layout.dims)))

    def _dim(self, dim: DimLayout) -> DimLayout:
        found = self._dims.get(dim)
        if found is None:
            found = tuple(SubDim(self._size(sub.size), sub.axes) for sub in dim)
            self._dims[dim] = found
        return found

    def _op(self, op: Op) -> Op:
        args = tuple((name, self._arg(arg)) for name, arg in op.args)
        if op.dist is None and args == op.args:
            return op
        return replace(op, args=args, dist=self._dist(op.dist))

    def _arg(self, arg: Arg) -> Arg:
        if isinstance(arg, tuple):
            return tuple(map(self._arg, arg))
        return self._size(arg) if isinstance(arg, Expr) else arg

    def _dist(self, dist: OpDist | None) -> OpDist | None:
        if dist is None:
            return None
        return replace(dist, factors=tuple((name, self._dim(dim)) for name, dim in dist.factors))

    def port(self, port: Port) -> Port:
        return _with_sizes(port, self._shape(port.shape), tuple(map(self._boxes, port.box)))

    def _boxes(self, dim: tuple[BoxDim, ...]) -> tuple[BoxDim, ...]:
        each = self._size
        return tuple(BoxDim(each(sub.size), each(sub.start), each(sub.length)) for sub in dim)


def _with_sizes(
    port: Port, shape: tuple[IntExpr, ...], box: tuple[tuple[BoxDim, ...], ...]
) -> Port:
    """Returns a port of another shape and box; `replace` takes twice as long."""
    return Port(
        port.name,
        port.label,
        port.dtype,
        shape,
        port.role,
        box,
        port.fill,
        port.aliases,
        port.part,
        port.options,
    )
