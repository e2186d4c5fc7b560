"""Runs translations on fake tensors and records what they do as a graph of ATen ops.

One pass tells both shapes and ops. `torch.export` and torch's tracers record the same ops, but they
trace all of a function at once, which would have to be known before any shape is, and do several
times the work per op.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from itertools import islice
from typing import Any
from unittest.mock import patch

import torch
import torch._meta_registrations
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode

from autopar.frontend.lower.open_sizes import OpenArgument
from autopar.frontend.onnx.trace.node import Node
from autopar.frontend.onnx.trace.open_results import OpenResults
from autopar.frontend.onnx.trace.planned_sizes import PlannedSizes
from autopar.frontend.onnx.trace.values import TensorTree, Translate
from autopar.ir.ops import is_known

_ORIGIN = "onnx_node"
"""The key in `node.meta` that holds the ONNX node that an fx node comes from."""


def windows_of_any_size() -> AbstractContextManager[object]:
    """Lets torch say within a block how many windows fit, not asking whether the last one does.

    Before 2.13 its division asks that first of sizes that are open, and rounds down either way.
    """
    return patch.object(torch._meta_registrations, "div_rtn", operator.floordiv)


class _Writes(Exception):
    """An op writes to what it is given."""


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A graph that grows by what translations run, one after the other.

    Args:
        is_open: Whether sizes in shapes may be open; torch is faster where none is.

    Attributes:
        is_open: Whether sizes in shapes may be open.
        graph: ATen ops over placeholders, which stand where they are first read.
        mode: What makes the fake tensors.
        sizes: The open sizes in their shapes.
        constants: The content of placeholders that translations made up.
    """

    def __init__(self, is_open: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.sizes = PlannedSizes()
        shape_env = self.sizes.env if is_open else None
        self.mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shape_env)
        # To compare open sizes with those of earlier calls takes longer than to compute new ones.
        self.mode.cache_enabled = not is_open
        self.is_open = is_open
        self._results = OpenResults(self.mode, self.sizes)
        self.constants: dict[fx.Node, torch.Tensor] = {}
        self._bodies: dict[Any, Callable[..., Any] | None] = dict(decompositions())
        # By identity: `meta` or `constants` keep the tensors.
        self._nodes: dict[int, fx.Node] = {}
        self._origin: Node | None = None

    def run(self, node: Node, translate: Translate, arguments: Sequence[object]) -> TensorTree:
        """Runs a translation and records its ops, without writes.

        Args:
            node: The ONNX node, which `origin_of` tells of the ops.
            translate: The translation.
            arguments: Its inputs: fake tensors for those that are tensors.
        """
        self._origin = self.sizes.node = node
        before = len(self.graph.nodes)
        try:
            return self._run(node, translate, arguments)
        except _Writes:
            # Few translations write, and functionalizing takes longer than all the rest.
            self._forget(len(self.graph.nodes) - before)
            return self._run(node, torch.func.functionalize(translate), arguments)
        finally:
            self.sizes.note_granted()

    def computed(self, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Returns what a function computes of nothing, its ops recorded."""
        with self.mode, enable_python_dispatcher(), self:
            return compute()

    def _run(self, node: Node, translate: Translate, arguments: Sequence[object]) -> TensorTree:
        # Without the Python dispatcher, decompositions in C++ write in place.
        with self.mode, enable_python_dispatcher(), self:
            return translate(node, *arguments)

    def _forget(self, count: int) -> None:
        """Takes back the last nodes."""
        for node in list(islice(reversed(self.graph.nodes), count)):
            tensor = self.constants.pop(node, node.meta["val"])
            if self._nodes.get(id(tensor)) is node:
                del self._nodes[id(tensor)]
            self.graph.erase_node(node)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Records an op, or what it is decomposed to."""
        kwargs = kwargs or {}
        body = self._body(func)
        if body is not None:
            with self:
                result = body(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if func._schema.is_mutable:
            raise _Writes(f"{func} writes to what it is given")
        if func is torch.ops.aten.lift_fresh.default:
            func = torch.ops.aten.lift_fresh_copy.default
        result = self._results.of(func, args, kwargs) if self.is_open else None
        if result is None:
            result = func(*args, **kwargs)
        if isinstance(result, (torch.Tensor, list, tuple)):
            self._record(func, args, kwargs, result)
        return result

    def _body(self, func: Any) -> Callable[..., Any] | None:
        """Returns what computes an op by means of others; None if it stays."""
        if func not in self._bodies:
            self._bodies[func] = func.decompose if _is_composite(func) else None
        return self._bodies[func]

    def _record(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        given = tuple(map(self._operand, args))
        named = {key: self._operand(value) for key, value in kwargs.items()}
        name = func.overloadpacket.__name__.removeprefix("__").removesuffix("__")
        self._note(self.graph.create_node("call_function", func, given, named, name), result)

    def _operand(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if isinstance(value, torch.SymInt):
            return OpenArgument(value)
        return list(map(self._operand, value)) if isinstance(value, (list, tuple)) else value

    def _note(self, node: fx.Node, result: Any) -> None:
        """Says what a node returns; what is within a tuple or list gets nodes of its own."""
        node.meta["val"] = result
        node.meta[_ORIGIN] = self._origin
        if isinstance(result, torch.Tensor):
            self._nodes.setdefault(id(result), node)
            return
        for at, item in enumerate(result):
            if isinstance(item, (torch.Tensor, list, tuple)):
                self._note(self.graph.call_function(operator.getitem, (node, at)), item)

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        """Returns the node of a tensor: a placeholder, unless it was recorded."""
        found = self._nodes.get(id(tensor))
        if found is None:
            found = self.graph.placeholder(f"given_{len(self._nodes)}")
            fake = isinstance(tensor, FakeTensor)
            found.meta["val"] = tensor if fake else stand_in(tensor, self.mode)
            found.meta[_ORIGIN] = self._origin
            if not fake:
                self.constants[found] = tensor
            self._nodes[id(tensor)] = found
        return found

    def finish(self, results: Sequence[fx.Node]) -> None:
        """Makes these the graph's outputs, and drops what they don't need but placeholders."""
        self.graph.output(tuple(results))
        self.graph.eliminate_dead_code()


def _is_composite(func: Any) -> bool:
    """Tells whether an op is defined by others, and has no kernel of its own on CPUs."""
    if func.namespace == "prim":  # These ask for a tensor's device and the like.
        return False
    return func._can_decompose() and not _has_kernel(func)


def _has_kernel(func: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CPU"))


def origin_of(node: fx.Node) -> Node | None:
    """Returns the ONNX node that an fx node comes from; of a constant, the one that made it."""
    origin: Node | None = node.meta.get(_ORIGIN)
    return origin


def stand_in(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """Returns a fake tensor of the shape, strides and dtype of another.

    Much faster than `mode.from_tensor`, which keeps views and gradients too.
    """
    with unset_fake_temporarily():
        shape, strides = tensor.shape, tensor.stride()
        meta = torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta")
        return FakeTensor(mode, meta, torch.device("cpu"))


@cache
def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Returns the core ATen decompositions but those of ops that stay whole.

    These have a rule and a kernel of their own, which is faster than what they are decomposed to,
    as that of silu. What has a rule alone is mostly another spelling: t and transpose are permute.
    Torch looks through all registered ops for its table, which takes longer than a small model.
    """
    table: dict[Any, Any] = dict(torch.export.default_decompositions())
    return {op: body for op, body in table.items() if not _stays_whole(op)}


def _stays_whole(op: torch._ops.OpOverload) -> bool:
    return _has_kernel(op) and is_known(f"{op.namespace}.{op._opname}.{op._overloadname}")
