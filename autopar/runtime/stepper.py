"""Steps through an emitted graph and stops at every collective.

The virtual mesh runs all ranks in one process: each rank is a generator made here, which yields
what it wants to communicate and is resumed with the answer. It walks the same graph whose
generated code the real ranks run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from autopar.ir.errors import AutoparError, RuntimeFailure
from autopar.ir.program import Op, Value
from autopar.runtime.communication import ENDS
from autopar.runtime.control import Call, Repeat
from autopar.runtime.kernels import IR_DTYPES

Scope = tuple[str, ...]
"""Where a value was computed: one entry per enclosing call or iteration; () in `main`."""

Trace = Callable[[Scope, Value, Tensor], Tensor]
"""Is shown each value as it is computed and returns the one to go on with."""


@dataclass(frozen=True)
class Request:
    """A collective that a rank waits at.

    Attributes:
        op: The collective.
        tensor: What the rank contributes.
    """

    op: Op
    tensor: Tensor


Steps = Generator[Request, Tensor, tuple[Tensor, ...]]


def step(
    module: fx.GraphModule, inputs: tuple[Any, ...], trace: Trace | None, scope: Scope = ()
) -> Steps:
    """Runs an emitted function; yields at each collective and is sent its result.

    Values are dropped after their last use. A value whose shape or dtype isn't what the program
    says is an error at its op.

    Args:
        module: What `emit` returned, or the module of a callee.
        inputs: The function's inputs.
        trace: Shown every computed value, if given.
        scope: Where this function was called.

    Raises:
        RuntimeFailure: If an op fails or its result isn't as declared.
    """
    values: dict[fx.Node, Any] = {}
    last_uses = _last_uses(module)
    fresh = iter(inputs)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(fresh)
            continue
        args = fx.node.map_arg(node.args, values.__getitem__)
        if node.op == "output":
            return tuple(args[0])
        values[node] = yield from _run(module, node, args, values, trace, scope)
        if "value" in node.meta:
            # Of what nobody reads, PyTorch itself predicts some shapes wrong.
            if node.users:
                _check(node, values[node])
            if trace is not None:
                values[node] = trace(scope, node.meta["value"], values[node])
        for dead in last_uses.get(node, ()):
            del values[dead]
    raise RuntimeFailure("the program has no outputs")


def _run(
    module: fx.GraphModule,
    node: fx.Node,
    args: tuple[Any, ...],
    values: dict[fx.Node, Any],
    trace: Trace | None,
    scope: Scope,
) -> Generator[Request, Tensor, Any]:
    op = node.meta["op"]
    if node.op == "call_module":
        callee = module.get_submodule(str(node.target))
        within = (*scope, op.results[0])
        if isinstance(callee, Repeat):
            return (yield from _repeat(callee, args, trace, within))
        assert isinstance(callee, Call)
        return (yield from step(callee.body, args, trace, within))
    if node.target in ENDS:
        return args[0]
    if op.kind.startswith("comm."):
        return (yield Request(op, args[0]))
    kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
    try:
        assert callable(node.target)
        return node.target(*args, **kwargs)
    except AutoparError:
        raise
    except Exception as error:
        raise RuntimeFailure(describe_failure(op, error)) from error


def _repeat(loop: Repeat, operands: tuple[Tensor, ...], trace: Trace | None, scope: Scope) -> Steps:
    state = operands[: loop.carried]
    collected: list[tuple[Tensor, ...]] = []
    for iteration in range(loop.trip):
        inputs = loop.arguments(iteration, state, operands)
        within = (*scope[:-1], f"{scope[-1]}[{iteration}]")
        produced = yield from step(loop.body, inputs, trace, within)
        state = produced[: loop.carried]
        collected.append(produced[loop.carried :])
    return loop.results(state, collected)


def describe_op(op: Op) -> str:
    """Returns an op as error messages name it: what, which value, where it comes from."""
    return f"{op.kind} -> %{', %'.join(op.results)} ({op.loc})"


def describe_failure(op: Op, error: BaseException) -> str:
    """Returns the message of an op that failed."""
    return f"{describe_op(op)}: {reason_of(error)}"


def reason_of(error: BaseException) -> str:
    """Returns the first line of an error, or its type if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _check(node: fx.Node, tensor: Any) -> None:
    value: Value = node.meta["value"]
    op: Op = node.meta["op"]
    if not isinstance(tensor, Tensor):
        raise RuntimeFailure(f"{describe_op(op)} computed a {type(tensor).__name__}, not a tensor")
    dtype = IR_DTYPES.get(tensor.dtype, str(tensor.dtype))
    if (dtype, tuple(tensor.shape)) != (value.dtype, value.shape):
        raise RuntimeFailure(
            f"{describe_op(op)} computed {dtype}{list(tensor.shape)}, the program says"
            f" {value.dtype}{list(value.shape)}"
        )


def _last_uses(module: fx.GraphModule) -> dict[fx.Node, list[fx.Node]]:
    cached = module.meta.get("last_uses")
    if cached is not None:
        return cached  # type: ignore[no-any-return]
    found: dict[fx.Node, list[fx.Node]] = {}
    seen: set[fx.Node] = set()
    for node in reversed(module.graph.nodes):
        for used in dict.fromkeys((*node.all_input_nodes, node)):
            if used not in seen and node.op != "output":
                found.setdefault(node, []).append(used)
            seen.add(used)
    module.meta["last_uses"] = found
    return found
