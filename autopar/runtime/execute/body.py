"""The body of a function as a graph: each op becomes a node that carries it out."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from autopar.base.errors import InvalidInputError, RuntimeFailure
from autopar.ir.assumptions import Assumption, assumption_ports
from autopar.ir.collectives import declared, is_collective
from autopar.ir.expr.expression import ARITHMETIC, Binary, Expr, IntExpr, Size
from autopar.ir.memory.overlap import async_collectives, plan_overlap
from autopar.ir.memory.storage import Storage
from autopar.ir.memory.transfers import hosted, is_on_host
from autopar.ir.ops.shape.pieces import CONCATENATION
from autopar.ir.program import (
    CALL,
    REPEAT,
    Arg,
    Function,
    Op,
    Program,
    Ref,
    Value,
    callee_of,
    index_of,
)
from autopar.runtime.collectives.async_collectives import HALVES
from autopar.runtime.collectives.communication import COLLECTIVES
from autopar.runtime.collectives.groups import Group
from autopar.runtime.collectives.host_transfers import on_host
from autopar.runtime.execute.control import Call, Loop, Repeat, boxed, unboxed
from autopar.runtime.execute.held import judging
from autopar.runtime.execute.updates import InPlace
from autopar.runtime.kernels.growing import append
from autopar.runtime.kernels.table import Kernel, signature, to_torch
from autopar.runtime.ports.assumptions import looking

GUARD, HOLD = "guard", "hold"
"""The kinds of the op on the node that calls a guard, and on the one that judges on the device."""


class Context(NamedTuple):
    """What the functions of a program are emitted in.

    Attributes:
        program: A program without rank expressions.
        groups: The rank's process groups, by the names that collectives use.
        device: Where ops that create tensors create them.
        in_place: Whether new content is written into stored inputs where that is safe.
        kernel: Returns the function that computes an op, by its kind.
        sizes: Those that are open.
        counted: Which numbers of iterations each function is given, besides.
    """

    program: Program
    groups: Mapping[str, Group]
    device: torch.device
    in_place: InPlace | None
    kernel: Callable[[str], Kernel]
    sizes: Sequence[Size]
    counted: Mapping[str, Sequence[Size]]


class _Pending(NamedTuple):
    """A collective under way: its op, what ends it, and what that takes besides what is pending."""

    op: Op
    end: Callable[..., Tensor]
    rest: tuple[Any, ...]


class Body:
    """The graph of one function while it grows.

    Args:
        context: What it is emitted in.
        function: The function.
        module: Returns the module of a function that is called, by its name.
    """

    def __init__(
        self, context: Context, function: Function, module: Callable[[str], fx.GraphModule]
    ) -> None:
        self.context = context
        self.module = module
        self.function = function
        self.graph = fx.Graph()
        self.nodes: dict[str, fx.Node] = {}
        self.sizes: dict[Expr, fx.Node] = {}
        self.submodules: dict[str, nn.Module] = {}
        self.targets: dict[tuple[str, Loop | None], str] = {}
        self.started = async_collectives(function, self._members, _shape_of)
        self.hosted = hosted(context.program, function)
        self.storage = Storage(context.program, function, self._is_started)
        self.pending: dict[str, _Pending] = {}
        self.right: fx.Node | None = None

    def take(self, sizes: Sequence[Size]) -> None:
        """Adds inputs for sizes that are open."""
        for size in sizes:
            node = self.graph.placeholder(as_identifier(f"size_{size.name}"))
            node.meta["op"] = None
            self.sizes[size] = node

    def unpack(self, names: Sequence[str]) -> None:
        """Adds what takes inputs, and sizes that are open, out of the box that a caller hands over.

        The box has the only references to what only this function reads, so that is dropped after
        its last use here too.
        """
        box = self.graph.placeholder("box")
        box.meta["op"] = None
        for name in names:
            given = Op(CALL, (), (name,))
            self.bind(name, self.create(given, "call_function", unboxed, (box,)), given)
        for size in (*self.context.sizes, *self._counted(self.function.name)):
            given = Op(CALL, (), (f"size_{size.name}",))
            self.sizes[size] = self.create(given, "call_function", unboxed, (box,))

    def size(self, size: IntExpr) -> fx.Node | int:
        """Returns what computes a size, or is one."""
        if not isinstance(size, Binary):
            return self.sizes[size] if isinstance(size, Expr) else size
        if size not in self.sizes:
            args = (self.size(size.lhs), self.size(size.rhs))
            node = self.graph.call_function(ARITHMETIC[size.op], args)
            node.meta["op"] = None
            self.sizes[size] = node
        return self.sizes[size]

    def node(self, name: str) -> fx.Node:
        """Returns the node that holds a value."""
        assert name not in self.pending, f"%{name} is read before it is awaited"
        return self.nodes[name]

    def wait(self, names: Sequence[str]) -> None:
        """Adds the ends of collectives under way, by the names of their results."""
        for name in names:
            op, end, rest = self.pending.pop(name)
            args = (self.nodes[name], *rest)
            self.bind(name, self.create(op, "call_function", end, args), op)

    def bind(self, name: str, node: fx.Node, op: Op | None) -> None:
        """Lets a node hold a value, by its name."""
        node.meta["value"] = self.function.values[name]
        node.meta["op"] = op
        self.nodes[name] = node

    def add(self, at: int, op: Op) -> None:
        """Adds the op at a position."""
        if op.kind == "barrier":
            for name, source in zip(op.results, op.operands, strict=True):
                self.nodes[name] = self.node(source)
        elif op.kind == CALL:
            target = self._submodule(callee_of(op), None)
            operands = (*self._flat(op, "operands"), *self._sizes_for(op))
            box = self.create(op, "call_function", boxed, operands)
            self._results(op, self.create(op, "call_module", target, (box,)))
        elif op.kind == REPEAT:
            target = self._submodule(callee_of(op), _loop(op))
            parts = ("carried", "sliced", "invariant")
            operands = tuple(ref for part in parts for ref in self._flat(op, part))
            operands = (*operands, *self._sizes_for(op))
            box = self.create(op, "call_function", boxed, operands)
            self._results(op, self.create(op, "call_module", target, (box,)))
        elif is_collective(op.kind):
            self._collective(at, op)
        else:
            self._compute(op)

    def add_all(self) -> None:
        """Adds all ops."""
        overlap = plan_overlap(self.function, self.started)
        for at, op in enumerate(self.function.ops):
            self.wait(overlap.before.get(at, ()))
            self.add(at, op)
        self.wait(overlap.before.get(len(self.function.ops), ()))

    def look(self) -> None:
        """Adds the call of the guard, which is told of assumptions that don't hold.

        Where stored inputs are held, the device judges, and nobody is told. Into what `main` calls,
        nobody looks.
        """
        if self.function.name != "main":
            return
        in_place, outputs = self.context.in_place or InPlace(), self.function.outputs
        ports = assumption_ports(self.context.program, self.function)
        if not in_place.looks and not ports:
            return
        assumptions = [Assumption.from_port(port) for port in ports]
        results = (self.node(outputs[0]), *(self.node(port.name) for port in ports))
        seen = Op(GUARD if in_place.held is None else HOLD, (), outputs[:1], phase="update")
        if in_place.held is None:
            self.create(seen, "call_function", looking(assumptions, in_place.guard), results)
        else:
            judge = judging(assumptions, in_place.held)
            self.right = self.create(seen, "call_function", judge, results)

    def _compute(self, op: Op) -> None:
        try:
            function = append if self._appends(op) else self.context.kernel(op.kind)
        except InvalidInputError as error:
            raise InvalidInputError(f"{op.loc}: {error}") from error
        computed = on_host(function) if is_on_host(op) else function
        node = self.create(op, "call_function", computed, *self.arguments(op))
        if len(op.results) == 1 and not _returns_several(function):
            self.bind(op.results[0], node, op)
        else:
            self._results(op, node)

    def _appends(self, op: Op) -> bool:
        """Returns whether an op appends to state, and its result is the new content of that."""
        if op.kind != CONCATENATION or self.context.in_place is None:
            return False
        return (op.results[0], op.operands[0]) in self.function.aliases

    def arguments(self, op: Op) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of an op, leading ones by position: faster than by name."""
        known = signature(op.kind)
        given = {name: self._value(arg) for name, arg in op.args}
        if known.device and self.device.type != "cpu" and not is_on_host(op):
            given["device"] = self.device
        args = []
        for name in known.positional:
            if name not in given:
                break
            args.append(given.pop(name))
        return tuple(args), given

    def _collective(self, at: int, op: Op) -> None:
        function = COLLECTIVES.get(op.kind)
        if function is None:
            raise RuntimeFailure(f"{op.loc}: unknown collective {op.kind}")
        group = self._group(op)
        if group is None:
            raise RuntimeFailure(
                f"{op.loc}: {op.kind} -> %{op.results[0]} runs in group {op.arg('group')!r}, which"
                " the rank is not in; compile again"
            )
        given = {name: self._value(arg) for name, arg in op.args if name not in ("self", "group")}
        tensor, (name,) = self._value(op.arg("self")), op.results
        if self._is_started(op):
            self._start(at, op, tensor, group)
        else:
            kwargs = {**given, "group": group}
            self.bind(name, self.create(op, "call_function", function, (tensor,), kwargs), op)

    def _start(self, at: int, op: Op, tensor: fx.Node, group: Group) -> None:
        """Adds the start of a collective, whose end follows where the plan says."""
        (operand,), (name,) = op.operands, op.results
        start, halves = declared(op.kind, op.loc).start, HALVES[op.kind]
        free = start is not None and start.replaces_operand and self.storage.is_dead(operand, at)
        given, rest = (
            tuple(map(self._sized, each))
            for each in halves.arguments(op, self.function.values[operand], group, free)
        )
        self.nodes[name] = self.create(op, "call_function", halves.start, (tensor, *given))
        self.pending[name] = _Pending(op, halves.end, rest)

    def _sized(self, given: Any) -> Any:
        """Returns an argument of a collective with its sizes computed."""
        if isinstance(given, tuple) and any(isinstance(item, Expr) for item in given):
            return [self.size(item) for item in given]
        return self.size(given) if isinstance(given, Expr) else given

    def _is_started(self, op: Op) -> bool:
        return op.results[0] in self.started

    def _group(self, op: Op) -> Group | None:
        return self.context.groups.get(str(op.arg("group")))

    def _members(self, op: Op) -> int:
        group = self._group(op)
        return 0 if group is None else group.size

    def create(
        self,
        op: Op,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
    ) -> fx.Node:
        """Returns a new node that carries out an op; the others are as torch.fx has them."""
        name = as_identifier(op.results[0])
        node = self.graph.create_node(kind, target, args, kwargs, name=name)
        node.meta["op"] = op
        return node

    def _results(self, op: Op, node: fx.Node) -> None:
        for at, name in enumerate(op.results):
            picked = self.graph.create_node(
                "call_function", operator.getitem, (node, at), name=as_identifier(name)
            )
            self.bind(name, picked, op)

    def _submodule(self, callee: str, loop: Loop | None) -> str:
        key = (callee, loop)
        if key not in self.targets:
            body = self.module(callee)
            # A prefix: modules have attributes like `half`; a number: distinct names may clash.
            target = f"{'call' if loop is None else 'repeat'}{len(self.targets)}"
            self.targets[key] = f"{target}_{as_identifier(callee)}"
            module = Call(body) if loop is None else Repeat(body, loop)
            self.submodules[self.targets[key]] = module
        return self.targets[key]

    def _flat(self, op: Op, name: str) -> tuple[fx.Node, ...]:
        items = op.arg(name, ())
        refs = items if isinstance(items, tuple) else (items,)
        return tuple(self._value(ref) for ref in refs)

    @property
    def device(self) -> torch.device:
        return self.context.device

    def _value(self, arg: Arg) -> Any:
        if isinstance(arg, Ref):
            return self.node(arg.name)
        if isinstance(arg, tuple):
            return [self._value(item) for item in arg]
        return self.size(arg) if isinstance(arg, Expr) else to_torch(arg)

    def _counted(self, function: str) -> Sequence[Size]:
        """Returns which numbers of iterations a function is given."""
        return self.context.counted.get(function, ())

    def _sizes_for(self, op: Op) -> tuple[fx.Node, ...]:
        """Returns the sizes that what an op calls is given by it; a loop adds its number."""
        counted = (size for size in self._counted(callee_of(op)) if size != index_of(op))
        return tuple(self.sizes[size] for size in (*self.context.sizes, *counted))


def _shape_of(value: Value) -> Sequence[IntExpr]:
    return value.shape


def _loop(op: Op) -> Loop:
    """Returns how an op repeats what it calls."""
    trip, carried, sliced = op.arg("trip"), op.arg("carried", ()), op.arg("sliced", ())
    if not isinstance(trip, int) or trip < 1:
        raise RuntimeFailure(f"{op.loc}: repeat -> %{op.results[0]} has trip {trip}; it needs >= 1")
    assert isinstance(carried, tuple)
    assert isinstance(sliced, tuple)
    index = index_of(op)
    return Loop(trip, len(carried), len(sliced), None if index is None else index.least)


def _returns_several(function: Any) -> bool:
    schema = getattr(function, "_schema", None)
    if schema is None:
        return False
    return len(schema.returns) != 1 or not isinstance(schema.returns[0].type, torch.TensorType)


@cache
def as_identifier(name: str) -> str:
    """Returns a Python identifier close to a value's name; fx makes it unique."""
    text = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return text if text[:1].isalpha() else f"v_{text}"
