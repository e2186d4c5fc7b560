"""Captures a call of an operator, or its gradient, as a serial program.

The call is traced into a functional graph of ATen ops as they are: composite ops that PyTorch
itself takes apart are taken apart, fused ones stay fused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from autopar.frontend.lower.exported import GraphInput, GraphOutput, Lowering
from autopar.frontend.lower.fx import lower
from autopar.ir.program import SEED, Program
from tests.op_database.selection import Call

Run = Callable[..., list[Tensor]]
Direction = Literal["forward", "in-place", "backward"]


class NoTensors(Exception):
    """A call that has no tensors to distribute: why."""


@dataclass(frozen=True)
class Captured:
    """A serial program with its inputs and what eager PyTorch makes of them.

    Attributes:
        program: The program.
        inputs: Its inputs by label.
        expected: Its outputs by label.
        run: The function that was captured.
        tensors: Its operands, which are the first inputs. Constants follow.
    """

    program: Program
    inputs: dict[str, Tensor]
    expected: dict[str, Tensor]
    run: Run
    tensors: Sequence[Tensor]

    @property
    def draws(self) -> bool:
        """Whether the program draws random numbers, so that only its ranks can be compared."""
        return any(port.role == SEED for port in self.program.signature.inputs)


@dataclass(frozen=True)
class Traced:
    """A graph and the tensors that are its inputs."""

    graph: fx.Graph
    tensors: tuple[Tensor, ...]


def capture_forward(call: Call) -> Captured:
    """Returns a call as a program.

    Raises:
        NoTensors: If the call returns no dense tensor.
        Exception: Whatever tracing or lowering raises.
    """

    def run(*tensors: Tensor) -> list[Tensor]:
        return _dense(call.function(*tensors))

    return _captured(run, [it.detach() for it in call.tensors])


def capture_backward(call: Call) -> Captured:
    """Returns the gradients of a call by its inputs as a program.

    The gradients of the results are inputs of the program too.

    Raises:
        NoTensors: If there is nothing to differentiate.
        Exception: Whatever tracing or lowering raises.
    """
    differentiated = [it.requires_grad for it in call.tensors]
    count = len(differentiated)

    def differentiable(*tensors: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        inputs = [it.detach() for it in tensors]
        wanted = [it for it, by in zip(inputs, differentiated, strict=True) if by]
        for it in wanted:
            it.requires_grad_()
        return [it for it in _dense(call.function(*inputs)) if it.requires_grad], wanted

    def run(*tensors: Tensor) -> list[Tensor]:
        results, wanted = differentiable(*tensors[:count])
        found = torch.autograd.grad(results, wanted, tensors[count:], allow_unused=True)
        return [it for it in found if it is not None]

    results, _ = differentiable(*call.tensors)
    if not results:
        raise NoTensors("no result depends on an input differentiably")
    generator = torch.Generator().manual_seed(call.number)
    cotangents = [torch.randn(it.shape, generator=generator, dtype=it.dtype) for it in results]
    return _captured(run, [*(it.detach() for it in call.tensors), *cotangents])


def _dense(found: Any) -> list[Tensor]:
    """Returns the tensors of a result.

    Raises:
        NoTensors: If there are none, or some are not dense.
    """
    tensors = [it for it in pytree.tree_leaves(found) if isinstance(it, Tensor)]
    if not tensors:
        raise NoTensors("it returns no tensor")
    for tensor in tensors:
        if tensor.layout != torch.strided:
            raise NoTensors(f"it returns a tensor of layout {tensor.layout}")
    return tensors


def _captured(run: Run, tensors: Sequence[Tensor]) -> Captured:
    with ReadValues() as read:
        expected = [it.detach() for it in run(*(it.clone() for it in tensors))]
    if not expected:
        raise NoTensors("no gradients")
    traced = trace(run, tensors, read.answers)
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    inputs = {node: GraphInput(f"x{at}", "input") for at, node in enumerate(placeholders)}
    outputs = [
        GraphOutput(node, f"out{at}")
        for at, node in enumerate(traced.graph.output_node().args[0])  # type: ignore[arg-type]
    ]
    program = lower(traced.graph, Lowering(inputs, outputs))
    arrays = {f"x{at}": it for at, it in enumerate(traced.tensors)}
    labelled = {f"out{at}": it for at, it in enumerate(expected)}
    return Captured(program, arrays, labelled, run, tensors)


CAPTURES: Mapping[Direction, Callable[[Call], Captured]] = {
    "forward": capture_forward,
    "in-place": capture_forward,
    "backward": capture_backward,
}


class ReadValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what Python code reads of tensors, or answers with what was recorded.

    Some operators check their operands' values in Python, which a traced tensor doesn't have.
    """

    def __init__(self, answers: Sequence[object] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.answers: list[object] = []
        self.replayed = None if answers is None else iter(answers)

    @property
    def is_exhausted(self) -> bool:
        """Whether every recorded answer was given."""
        return self.replayed is not None and next(self.replayed, self) is self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func not in READING:
            return func(*args, **(kwargs or {}))
        if self.replayed is not None:
            return next(self.replayed)
        self.answers.append(func(*args, **(kwargs or {})))
        return self.answers[-1]


READING = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
"""Ops that return a number of Python."""


def trace(run: Run, tensors: Sequence[Tensor], answers: Sequence[object]) -> Traced:
    """Returns the functional graph of a function.

    It is traced without values where PyTorch can.

    Args:
        run: The function.
        tensors: Its operands.
        answers: What it reads of values.

    Raises:
        Exception: Whatever tracing with values raises.
    """

    replayed: list[ReadValues] = []

    def answered(*given: Tensor) -> list[Tensor]:
        replayed.append(ReadValues(answers))
        with replayed[-1]:
            return run(*given)

    try:
        traced = _trace(answered, tensors, "fake")
        # Without values, some operators skip a check and read less.
        if _is_static(traced) and replayed[-1].is_exhausted:
            return traced
    except Exception:  # whatever it is, the attempt with values has the better message
        pass
    return _trace(answered, tensors, "real")


def _is_static(traced: Traced) -> bool:
    return all(
        isinstance(size, int)
        for node in traced.graph.nodes
        for it in pytree.tree_leaves(node.meta.get("val"))
        if isinstance(it, Tensor)
        for size in it.shape
    )


def _trace(run: Run, tensors: Sequence[Tensor], mode: Any) -> Traced:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module: fx.GraphModule = make_fx(run, tracing_mode=mode)(*(it.clone() for it in tensors))
        if any(_writes(node) for node in module.graph.nodes):
            functional = torch.func.functionalize(module)
            module = make_fx(functional, tracing_mode=mode)(*(it.clone() for it in tensors))
    return _with_constants(Traced(module.graph, tuple(tensors)), module)


def _writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _with_constants(traced: Traced, module: fx.GraphModule) -> Traced:
    """Makes inputs of the constants that a graph reads."""
    graph, tensors = traced.graph, list(traced.tensors)
    inputs: dict[str, fx.Node] = {}
    placed = [node for node in graph.nodes if node.op == "placeholder"]
    first = next(iter(graph.nodes))
    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        name = str(node.target)
        if name not in inputs:
            with graph.inserting_after(placed[-1]) if placed else graph.inserting_before(first):
                placed.append(graph.placeholder(name))
            inputs[name] = placed[-1]
            tensors.append(getattr(module, name).detach().clone())
            inputs[name].meta["val"] = tensors[-1]
        node.replace_all_uses_with(inputs[name])
        graph.erase_node(node)
    return replace(traced, tensors=tuple(tensors))
