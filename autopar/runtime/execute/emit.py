"""The one emitter: a concrete function becomes an fx graph, whose generated code runs it.

Every executor runs the graph made here: serial runs and real ranks call the generated code, which
drops each value after its last use; the virtual mesh steps through the nodes and stops at
collectives. `call` and `repeat` become submodules, emitted once per callee.

Each node carries in `meta`:
    op      the op that it carries out (also on the nodes that pick one of several results)
    value   the name of the value that it holds, where it holds one
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from autopar.base.errors import InvalidInputError, RuntimeFailure
from autopar.ir import emitted
from autopar.ir.assumptions import Assumption, assumption_ports
from autopar.ir.memory.joining import runs
from autopar.ir.memory.storage import Storage
from autopar.ir.memory.updates import Mutation, Writes, plan_writes
from autopar.ir.program import Arg, Function, Op, Program, Ref
from autopar.runtime.collectives.async_collectives import (
    can_start,
    end_broadcast,
    end_gather,
    end_scatter,
    end_sum,
    start_broadcast,
    start_gather,
    start_scatter,
    start_sum,
)
from autopar.runtime.collectives.communication import COLLECTIVES
from autopar.runtime.collectives.groups import Group
from autopar.runtime.execute.control import Call, Repeat
from autopar.runtime.execute.updates import InPlace
from autopar.runtime.kernels.joining import joined
from autopar.runtime.kernels.table import TORCH_DTYPES, kernel, signature, to_torch
from autopar.runtime.ports.assumptions import looking

GUARD = "guard"
"""The kind of the op on the node that calls a guard."""


def emit(
    program: Program,
    groups: Mapping[str, Group],
    device: torch.device | str = "cpu",
    in_place: InPlace | None = None,
) -> fx.GraphModule:
    """Returns a module that computes `main` of a concrete program.

    It takes the inputs of `main` by position and returns a tuple of its outputs.

    Args:
        program: A program without rank expressions (see `specialize`).
        groups: The rank's process groups, by the names that collectives use.
        device: Where ops that create tensors create them.
        in_place: Whether new content is written into stored inputs where that is safe; by default
            the inputs stay as they are.

    Raises:
        InvalidInputError: If there is no kernel for an op.
        RuntimeFailure: If a collective names a group that the rank isn't in.
    """
    return _Emitter(program, groups, torch.device(device), in_place).module("main")


class _Emitter:
    def __init__(
        self,
        program: Program,
        groups: Mapping[str, Group],
        device: torch.device,
        in_place: InPlace | None,
    ) -> None:
        self.program = program
        self.groups = groups
        self.device = device
        self.in_place = in_place
        self.modules: dict[str, fx.GraphModule] = {}

    def module(self, name: str) -> fx.GraphModule:
        """Returns the module of a function, emitted the first time."""
        if name not in self.modules:
            function = self.program.functions.get(name)
            if function is None:
                raise RuntimeFailure(f"program {self.program.name!r} has no function {name!r}")
            self.modules[name] = self._emit(function)
        return self.modules[name]

    def _emit(self, function: Function) -> fx.GraphModule:
        body = _Body(self, function)
        # fx makes names of nodes unique, but not those of the arguments that are made of them.
        distinct: set[str] = set()
        for name in function.inputs:
            identifier = _identifier(name)
            while identifier in distinct:
                identifier += "_"
            distinct.add(identifier)
            body.bind(name, body.graph.placeholder(identifier), None)
        if self.in_place is not None and function.name == "main":
            guarded = self.in_place.guard is not None
            body.add_in_place(plan_writes(self.program, body.storage, guarded=guarded))
        else:
            for at, op in enumerate(function.ops):
                body.add(at, op)
            body.end()
            body.look()
        body.graph.output(tuple(map(body.node, function.outputs)))
        try:
            return fx.GraphModule(
                body.submodules, body.graph, class_name=_identifier(function.name)
            )
        except SyntaxError as error:  # As of an argument that is called as a keyword of Python.
            raise RuntimeFailure(
                f"program {self.program.name!r}: {function.name} can't be written as code: {error}"
            ) from error


class _Started(NamedTuple):
    """A collective under way: its op, what ends it, and what that takes besides what is pending."""

    op: Op
    end: Callable[..., Tensor]
    rest: tuple[Any, ...]


class _Body:
    """The graph of one function while it grows."""

    def __init__(self, emitter: _Emitter, function: Function) -> None:
        self.emitter = emitter
        self.function = function
        self.graph = fx.Graph()
        self.nodes: dict[str, fx.Node] = {}
        self.submodules: dict[str, nn.Module] = {}
        self.targets: dict[tuple[str, tuple[int, int, int] | None], str] = {}
        self.awaited = frozenset(name for op in function.ops for name in op.operands)
        self.storage = Storage(emitter.program, function, self._can_start)
        self.started: dict[str, _Started] = {}

    def node(self, name: str) -> fx.Node:
        """Returns the node that holds a value, which is read now: what was started is awaited."""
        if name in self.started:
            op, end, rest = self.started.pop(name)
            args = (self.nodes[name], *rest)
            self.bind(name, self._node(op, "call_function", end, args), op)
        return self.nodes[name]

    def bind(self, name: str, node: fx.Node, op: Op | None) -> None:
        node.meta["value"] = self.function.values[name]
        node.meta["op"] = op
        self.nodes[name] = node

    def add(self, at: int, op: Op) -> None:
        """Adds the op at a position."""
        if op.kind == "barrier":
            for name, source in zip(op.results, op.operands, strict=True):
                self.nodes[name] = self.node(source)
        elif op.kind == "call":
            target = self._submodule(str(op.arg("callee")), None)
            self._results(op, self._node(op, "call_module", target, self._flat(op, "operands")))
        elif op.kind == "repeat":
            target = self._submodule(str(op.arg("body")), _repeat(op))
            parts = ("carried", "sliced", "invariant")
            operands = tuple(ref for part in parts for ref in self._flat(op, part))
            self._results(op, self._node(op, "call_module", target, operands))
        elif op.kind.startswith("comm."):
            self._collective(at, op)
        else:
            self._compute(op)

    def end(self) -> None:
        """Awaits what no op reads: a collective ends before its memory is freed."""
        for name in tuple(self.started):
            self.node(name)

    def add_in_place(self, writes: Writes) -> None:
        """Adds all ops, and writes new content over the old one."""
        ops = self.function.ops
        self._write(writes, -1)
        for run in runs(self.function, writes):
            if run.start in writes.mutations:
                self._mutate([ops[at] for at in run], [writes.mutations[at] for at in run])
            else:
                self.add(run.start, ops[run.start])
            self._write(writes, run[-1])
        self.end()
        self._write(writes, len(ops))

    def _mutate(self, ops: Sequence[Op], mutations: Sequence[Mutation]) -> None:
        """Adds ops in the form that writes their results into operands."""
        clone = torch.ops.aten.clone.default
        dense = {"memory_format": torch.contiguous_format}
        before = {name: self.node(name) for mutation in mutations for name in mutation.copied}
        for name, node in before.items():
            copied = Op(*emitted.clone(), (name,), phase="update")
            self.nodes[name] = self._node(copied, "call_function", clone, (node,), dense)
        function, op = joined(ops)
        self._node(op, "call_function", function, *self._arguments(op))
        for mutation in mutations:
            for result, operand in mutation.results.items():
                self.nodes[result] = self.nodes[operand]
        self.nodes.update(before)

    def _write(self, writes: Writes, at: int) -> None:
        """Adds what is written after an op, and before that a look at what decides about it."""
        if at == writes.guard:
            self.look()
        for output, source in writes.after.get(at, ()):
            written = Op(*emitted.overwrite(), (output,), phase="update")
            args = (self.node(source), self.node(output))
            self.nodes[output] = self._node(
                written, "call_function", torch.ops.aten.copy_.default, args
            )

    def look(self) -> None:
        """Adds the call of the guard, which is told of assumptions that don't hold."""
        in_place, outputs = self.emitter.in_place, self.function.outputs
        guard = None if in_place is None else in_place.guard
        ports = assumption_ports(self.emitter.program, self.function)
        if guard is not None or ports:
            seen = Op(GUARD, (), outputs[:1], phase="update")
            results = (self.node(outputs[0]), *(self.node(port.name) for port in ports))
            target = looking([Assumption.of(port) for port in ports], guard)
            self._node(seen, "call_function", target, results)

    def _compute(self, op: Op) -> None:
        try:
            function = kernel(op.kind)
        except InvalidInputError as error:
            raise InvalidInputError(f"{op.loc}: {error}") from error
        node = self._node(op, "call_function", function, *self._arguments(op))
        if len(op.results) == 1 and not _returns_several(function):
            self.bind(op.results[0], node, op)
        else:
            self._results(op, node)

    def _arguments(self, op: Op) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Leading arguments go by position, which is faster than by name."""
        known = signature(op.kind)
        given = {name: self._value(arg) for name, arg in op.args}
        if known.device and self.device.type != "cpu":
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
        if self._can_start(op):
            self._start(at, op, tensor, group)
        else:
            kwargs = {**given, "group": group}
            self.bind(name, self._node(op, "call_function", function, (tensor,), kwargs), op)

    def _start(self, at: int, op: Op, tensor: fx.Node, group: Group) -> None:
        """Adds the start of a collective, which ends where its result is read first.

        What is scattered takes the memory of whole gradients, and what is broadcast that of a copy:
        one at a time is under way.
        """
        (operand,), (name,) = op.operands, op.results
        value, dim, size = self.function.values[operand], op.arg("dim"), op.arg("size")
        start: Callable[..., Tensor]
        end: Callable[..., Tensor]
        args: tuple[Any, ...]
        rest: tuple[Any, ...]
        if op.kind == "comm.all_gather":
            start, args = start_gather, (tensor, dim, size, group)
            end, rest = end_gather, (dim, size, TORCH_DTYPES[value.dtype], group)
        elif op.kind == "comm.reduce_scatter":
            for other in [n for n, each in self.started.items() if each.end is end_scatter]:
                self.node(other)
            start, args = start_scatter, (tensor, dim, group)
            end, rest = end_scatter, (dim, value.shape, group)
        elif op.kind == "comm.broadcast":
            for other in [n for n, each in self.started.items() if each.end is end_broadcast]:
                self.node(other)
            start, args = start_broadcast, (tensor, op.arg("source"), group)
            end, rest = end_broadcast, (TORCH_DTYPES[value.dtype],)
        else:
            start, args = start_sum, (tensor, group, self.storage.is_dead(operand, at))
            end, rest = end_sum, (len(value.shape), group)
        self.nodes[name] = self._node(op, "call_function", start, args)
        self.started[name] = _Started(op, end, rest)

    def _group(self, op: Op) -> Group | None:
        return self.emitter.groups.get(str(op.arg("group")))

    def _can_start(self, op: Op) -> bool:
        """Whether an op is a collective that runs beside others."""
        group = self._group(op)
        value = self.function.values[op.results[0]]
        if group is None or 0 in value.shape:
            return False
        # What no op reads is awaited at the end; until then, others than these keep what they send.
        if op.kind not in ("comm.all_reduce", "comm.broadcast") and value.name not in self.awaited:
            return False
        return can_start(op.kind, op.arg("monoid"), TORCH_DTYPES[value.dtype], group)

    def _node(
        self,
        op: Op,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
    ) -> fx.Node:
        name = _identifier(op.results[0])
        node = self.graph.create_node(kind, target, args, kwargs, name=name)
        node.meta["op"] = op
        return node

    def _results(self, op: Op, node: fx.Node) -> None:
        for at, name in enumerate(op.results):
            picked = self.graph.create_node(
                "call_function", operator.getitem, (node, at), name=_identifier(name)
            )
            self.bind(name, picked, op)

    def _submodule(self, callee: str, repeat: tuple[int, int, int] | None) -> str:
        key = (callee, repeat)
        if key not in self.targets:
            body = self.emitter.module(callee)
            # A prefix: modules have attributes like `half`; a number: distinct names may clash.
            target = f"{'call' if repeat is None else 'repeat'}{len(self.targets)}"
            self.targets[key] = f"{target}_{_identifier(callee)}"
            module = Call(body) if repeat is None else Repeat(body, *repeat)
            self.submodules[self.targets[key]] = module
        return self.targets[key]

    def _flat(self, op: Op, name: str) -> tuple[fx.Node, ...]:
        items = op.arg(name, ())
        refs = items if isinstance(items, tuple) else (items,)
        return tuple(self._value(ref) for ref in refs)

    @property
    def device(self) -> torch.device:
        return self.emitter.device

    def _value(self, arg: Arg) -> Any:
        if isinstance(arg, Ref):
            return self.node(arg.name)
        if isinstance(arg, tuple):
            return [self._value(item) for item in arg]
        return to_torch(arg)


def _repeat(op: Op) -> tuple[int, int, int]:
    """Returns (trip, number of carried, number of sliced operands)."""
    trip, carried, sliced = op.arg("trip"), op.arg("carried", ()), op.arg("sliced", ())
    if not isinstance(trip, int) or trip < 1:
        raise RuntimeFailure(f"{op.loc}: repeat -> %{op.results[0]} has trip {trip}; it needs >= 1")
    assert isinstance(carried, tuple)
    assert isinstance(sliced, tuple)
    return trip, len(carried), len(sliced)


def _returns_several(function: Any) -> bool:
    schema = getattr(function, "_schema", None)
    if schema is None:
        return False
    return len(schema.returns) != 1 or not isinstance(schema.returns[0].type, torch.TensorType)


@cache
def _identifier(name: str) -> str:
    """Returns a Python identifier close to a value's name; fx makes it unique."""
    text = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return text if text[:1].isalpha() else f"v_{text}"
