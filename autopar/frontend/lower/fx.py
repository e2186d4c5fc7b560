"""Lowers an exported fx graph of ATen ops to a serial program.

What is particular to torch ends here: devices and memory formats, strides (values are contiguous),
aliases and copies, assertions, results in tuples, defaults that are spelled out. Whoever exported
the graph says what its placeholders and outputs are, what its values are called and where its ops
come from.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from autopar.base.errors import UNKNOWN, InvalidInputError, Loc
from autopar.frontend.lower.activations import Noted
from autopar.frontend.lower.arguments import given_arguments, output_mask
from autopar.frontend.lower.contents import with_contents
from autopar.frontend.lower.dropout import is_resting
from autopar.frontend.lower.explicit_writes import make_writes_explicit
from autopar.frontend.lower.exported import GraphInput, GraphOutput, Lowering
from autopar.frontend.lower.functionalized import (
    Surroundings,
    Unwritable,
    is_functionalized,
    lower_functionalized,
)
from autopar.frontend.lower.lists import singles
from autopar.frontend.lower.marks import Marks, check_complete, read_marks, stage_of
from autopar.frontend.lower.open_sizes import OpenArgument, is_same_shape
from autopar.frontend.lower.random import draw_by_counter
from autopar.frontend.lower.spelling import IR_DTYPES, RENAMED, RENAMED_ARGUMENTS, SIZES, kind_of
from autopar.frontend.lower.symbols import Unexpressed
from autopar.frontend.lower.writes import lost_writes
from autopar.ir.chunks import chunked_op
from autopar.ir.expr.expression import IntExpr
from autopar.ir.program import (
    ASSUMPTION,
    WRITTEN,
    Arg,
    DType,
    Function,
    Lifetime,
    Op,
    Port,
    Program,
    Ref,
    Signature,
    Value,
)

_Path = tuple[int, ...]
"""Where a part of a result is: its position, and within a list that position's."""

_COPIES = ("aten.alias", "aten.detach", "aten.clone", "aten.lift_fresh_copy", "aten.contiguous")
"""Ops whose result is their operand, for values that nobody writes to."""

_RESHAPING = ("aten.view", "aten._unsafe_view", "aten.reshape", "aten.expand", "aten._to_copy")
"""Ops that are no-ops if shape and dtype stay."""


def lower(graph: fx.Graph, lowering: Lowering) -> Program:
    """Returns the program that a functional graph of ATen overloads computes.

    Batch norms in training are replaced in the graph by ops that return the running statistics.

    Raises:
        InvalidInputError: If the graph has something in it that is no ATen op on dense tensors
            of static shape. Names all such nodes.
        AnnotationError: If a mark within the graph doesn't fit its tensor or the mesh.
    """
    last = make_writes_explicit(graph)
    outputs = [replace(out, node=last.get(out.node, out.node)) for out in lowering.outputs]
    return _Lowerer(graph, replace(lowering, outputs=outputs)).run()


class _Lowerer:
    """One run of `lower`."""

    def __init__(self, graph: fx.Graph, lowering: Lowering) -> None:
        self.lowering = lowering
        self.graph = graph
        self.problems: list[str] = []
        self.noted = Noted()
        self.values: dict[str, Value] = {}
        self.refs: dict[fx.Node, str | tuple[str, ...]] = {}
        self.same: dict[fx.Node, fx.Node] = {}
        self.names = dict(lowering.names)
        self.inputs: dict[fx.Node, GraphInput] = {}
        self.absent: set[fx.Node] = set()
        self.chunks: Mapping[fx.Node, tuple[int, int]] = {}

    def run(self) -> Program:
        self._find_copies()
        marks = self._marks()
        self.same.update(marks.same)
        self.chunks = marks.chunks
        check_complete((self._origin(out.node) for out in self.lowering.outputs), marks.pins)
        self._name_origins()
        live = self._live()
        self._raise_if_any()
        needed = set(live)
        self.inputs = {
            node: given
            for node, given in self.lowering.inputs.items()
            if given.kept or node in needed
        }
        for node, given in self.inputs.items():
            self._add_value(node, self._unique(given.name), node.meta["val"], given.role, given.loc)
        self._name_results(live)
        ops = tuple(
            op
            for node in live
            if node.op == "call_function" and node.target is not operator.getitem
            for op in self._placed(node)
        )
        self._raise_if_any()
        self.values |= marks.pinned(self.values, self.refs)
        inputs = tuple(self._one(node) for node in self.inputs)
        outputs = tuple(self._one(self._origin(out.node)) for out in self.lowering.outputs)
        updates = [
            None if out.updates is None else self._one(out.updates) for out in self.lowering.outputs
        ]
        main = with_contents(Function("main", inputs, outputs, self.values, ops), updates)
        program = Program(
            {"main": main},
            self._signature(main),
            marks.mesh,
            name=self.lowering.name,
            relations=self.lowering.sizes.relations,
        )
        return draw_by_counter(program)

    def _raise_if_any(self) -> None:
        if self.problems:
            raise InvalidInputError("\n".join(["can't lower the exported graph:", *self.problems]))

    def _find_copies(self) -> None:
        for node in self.graph.nodes:
            if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
                continue
            source, packet = node.args[0], kind_of(node).rpartition(".")[0]
            same = packet in _COPIES or (packet in _RESHAPING and _same_type(node, source))
            if same or is_resting(node):
                self.same[node] = source

    def _marks(self) -> Marks:
        known = self.lowering
        parameters = [node for node, given in known.inputs.items() if given.role == "parameter"]
        return read_marks(
            self.graph, self.same, parameters, known.mesh, known.locate, self._shape_of
        )

    def _shape_of(self, node: fx.Node) -> tuple[IntExpr, ...]:
        return self._shape(node.meta["val"], node.name)

    def _name_origins(self) -> None:
        """Names what is computed as its copies are named."""
        for node in reversed(self.graph.nodes):
            if node in self.same and node in self.names:
                self.names.setdefault(self.same[node], self.names[node])

    def _origin(self, node: fx.Node) -> fx.Node:
        """Returns the node whose result `node` holds, copies seen through."""
        while node in self.same:
            node = self.same[node]
        return node

    def _live(self) -> list[fx.Node]:
        """Returns the nodes that the outputs need, in order."""
        needed: set[fx.Node] = set()
        pending = [self._origin(out.node) for out in self.lowering.outputs]
        while pending:
            node = pending.pop()
            if node not in needed:
                needed.add(node)
                pending.extend(self._origin(source) for source in node.all_input_nodes)
        for node in needed:
            if node.op == "placeholder" and node not in self.lowering.inputs:
                self.problems.append(f"  - {node.name}: a placeholder that nobody accounts for")
            elif node.op not in ("placeholder", "call_function"):
                self.problems.append(f"  - {node.name}: a node of kind {node.op}")
        for node in lost_writes(self.graph, needed):
            self._refuse_write(node)
        return [node for node in self.graph.nodes if node in needed]

    def _refuse_write(self, node: fx.Node) -> None:
        self.problems.append(
            f"  - {self.lowering.locate(node)}: {kind_of(node)} writes to its operand;"
            " functionalize the graph, as run_decompositions() of an exported program does"
        )

    def _name_results(self, live: Sequence[fx.Node]) -> None:
        """Gives every result a value. The picks of a tuple name the parts of it."""
        picks: dict[fx.Node, dict[_Path, fx.Node]] = {}
        for node in live:
            if node.target is operator.getitem:
                whole, path = self._picked(node)
                picks.setdefault(whole, {})[path] = node
        for node in live:
            if node.op != "call_function" or node.target is operator.getitem:
                continue
            result = node.meta.get("val")
            if isinstance(result, torch.Tensor):
                self._add_value(node, self._unique(self._wanted(node)), result)
            elif isinstance(result, (tuple, list)):
                self._add_parts(node, result, picks.get(node, {}))
            else:
                where = self.lowering.locate(node)
                self.problems.append(f"  - {where}: {kind_of(node)} returns no tensor")

    def _picked(self, node: fx.Node) -> tuple[fx.Node, _Path]:
        """Returns what a pick picks from, and from where. Lists may be parts of tuples."""
        path: _Path = ()
        while node.target is operator.getitem:
            whole, position = node.args
            assert isinstance(whole, fx.Node)
            assert isinstance(position, int)
            node, path = self._origin(whole), (position, *path)
        return node, path

    def _add_parts(
        self, node: fx.Node, parts: Sequence[object], picks: Mapping[_Path, fx.Node]
    ) -> None:
        names = []
        mask = output_mask(node)
        for path, part in _leaves(parts):
            pick = picks.get(path)
            position = ".".join(map(str, path))
            # Fake tensors may have results that kernels leave out.
            if part is None or (mask and not mask[path[0]]):
                # The kernel leaves out what its caller didn't ask for.
                if pick is not None:
                    self.absent.add(pick)
                continue
            wanted = self._wanted(pick) if pick is not None else f"{node.name}.{position}"
            name = self._unique(wanted)
            names.append(name)
            if not isinstance(part, torch.Tensor):
                self.problems.append(f"  - {node.name}: result {position} is no tensor")
                continue
            self._add_value(pick, name, part)
        self.refs[node] = tuple(names)

    def _wanted(self, node: fx.Node) -> str:
        return self.names.get(node, node.name)

    def _unique(self, name: str) -> str:
        if name not in self.values:
            return name
        count = 1
        while f"{name}.{count}" in self.values:
            count += 1
        return f"{name}.{count}"

    def _add_value(
        self,
        node: fx.Node | None,
        name: str,
        tensor: torch.Tensor,
        role: str = "activation",
        loc: Loc = UNKNOWN,
    ) -> None:
        dtype = IR_DTYPES.get(tensor.dtype)
        sizes = self._shape(tensor, name)
        if dtype is None:
            self.problems.append(f"  - {name}: dtype {tensor.dtype} has no place in a program")
        self.values[name] = Value(name, dtype or "f32", sizes, role, loc=loc)
        if node is not None:
            self.refs[node] = name

    def _shape(self, tensor: torch.Tensor, name: str) -> tuple[IntExpr, ...]:
        try:
            return tuple(self.lowering.sizes.expr(size) for size in tensor.shape)
        except Unexpressed:
            self.problems.append(f"  - {name}: shape {tuple(tensor.shape)} isn't static")
            return (0,) * tensor.ndim

    def _one(self, node: fx.Node) -> str:
        name = self.refs[node]
        if isinstance(name, tuple):
            raise InvalidInputError(f"{node.name}: a tuple where a tensor is needed")
        return name

    def _placed(self, node: fx.Node) -> Sequence[Op]:
        place, stage = self.lowering.when(node), stage_of(node)
        ops = self._ops(node)
        if place != Lifetime("forward") or stage:
            ops = [replace(op, stage=stage, **place._asdict()) for op in ops]
        if node in self.chunks:
            ops = [*ops[:-1], chunked_op(ops[-1], *self.chunks[node])]
        return [self.noted.op(node, op) for op in ops]

    def _ops(self, node: fx.Node) -> Sequence[Op]:
        if not is_functionalized(node):
            return singles(self._op(node))
        loc = self.lowering.locate(node)
        results = self.refs[node]
        names = (results,) if isinstance(results, str) else results
        place = f"{loc}: argument"
        arg = lambda value, name: self._arg(value, f"{place} {name} of {node.args[0]}")  # noqa: E731
        try:
            return lower_functionalized(node, Surroundings(names, arg, self._resized, loc))
        except Unwritable as problem:
            self.problems.append(f"  - {loc}: {node.args[0]}: {problem}")
            return []

    def _resized(self, name: str, like: str, dim: int, size: int) -> str:
        """Adds a value like another one but for the size of a dimension."""
        value = self.values[like]
        shape = (*value.shape[:dim], size, *value.shape[dim:][1:])
        name = self._unique(name)
        self.values[name] = Value(name, value.dtype, shape)
        return name

    def _op(self, node: fx.Node) -> Op:
        loc = self.lowering.locate(node)
        results = self.refs.get(node, ())
        names = (results,) if isinstance(results, str) else results
        kind = kind_of(node)
        if not isinstance(node.target, torch._ops.OpOverload):
            self.problems.append(f"  - {loc}: {kind} is no ATen op")
            return Op(kind, (), names, loc=loc)
        if node.target._schema.is_mutable:
            self._refuse_write(node)
        renamed = RENAMED.get(kind, kind)
        args: list[tuple[str, Arg]] = []
        for key, value in given_arguments(node, node.target):
            name = RENAMED_ARGUMENTS.get(f"{kind}.{key}", key)
            if name is None:
                continue
            if name == SIZES.get(renamed):
                args.append((name, self.values[names[0]].shape))
            else:
                args.append((name, self._arg(value, f"{loc}: argument {key} of {kind}")))
        if kind.startswith("aten.new_") and not any(name == "dtype" for name, _ in args):
            args.append(("dtype", DType(self.values[names[0]].dtype)))
        return Op(renamed, tuple(args), names, loc=loc)

    def _arg(self, value: Any, where: str) -> Arg:
        if isinstance(value, fx.Node):
            if value in self.absent:
                return None
            return Ref(self._one(self._origin(value)))
        if isinstance(value, (list, tuple)):
            return tuple(self._arg(item, where) for item in value)
        if isinstance(value, (torch.SymInt, OpenArgument)):
            size = value.size if isinstance(value, OpenArgument) else value
            return self._open(size, where)
        if isinstance(value, torch.dtype) and value in IR_DTYPES:
            return DType(IR_DTYPES[value])
        if value is None or isinstance(value, (bool, int, float, complex, str)):
            return value
        self.problems.append(f"  - {where} is {value!r}, which has no place in a program")
        return None

    def _open(self, size: torch.SymInt, where: str) -> Arg:
        try:
            return self.lowering.sizes.expr(size)
        except Unexpressed as problem:
            self.problems.append(f"  - {where}: {problem}")
            return None

    def _signature(self, main: Function) -> Signature:
        inputs = tuple(
            replace(
                _port(main.values[name], given.label),
                fill=given.fill,
                aliases=given.aliases,
                options=given.options,
            )
            for name, given in zip(main.inputs, self.inputs.values(), strict=True)
        )
        outputs = tuple(
            _output(main.values[name], out)
            for name, out in zip(main.outputs, self.lowering.outputs, strict=True)
        )
        return Signature(inputs, outputs)


def _output(value: Value, output: GraphOutput) -> Port:
    port = _port(value, output.label)
    if output.written:
        return replace(port, role=WRITTEN)
    if output.assumed is None:
        return port
    return replace(port, role=ASSUMPTION, options=output.assumed.to_options())


def _port(value: Value, label: str) -> Port:
    return Port(value.name, label or value.name, value.dtype, value.global_shape, value.role)


def _leaves(parts: Sequence[object], path: _Path = ()) -> Iterator[tuple[_Path, object]]:
    """Yields what a tuple holds, lists among its parts opened, and where."""
    for position, part in enumerate(parts):
        if isinstance(part, (tuple, list)):
            yield from _leaves(part, (*path, position))
        else:
            yield (*path, position), part


def _same_type(node: fx.Node, source: fx.Node) -> bool:
    mine, other = node.meta.get("val"), source.meta.get("val")
    if not isinstance(mine, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return is_same_shape(mine, other) and mine.dtype == other.dtype
