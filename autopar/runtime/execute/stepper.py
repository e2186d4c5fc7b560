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

from autopar.base.errors import AutoparError, RuntimeFailure
from autopar.ir.collectives import is_collective
from autopar.ir.program import Op, Value
from autopar.runtime.collectives.async_collectives import ENDS
from autopar.runtime.collectives.races import Flights
from autopar.runtime.execute.control import Call, Choice, Iterations, Repeat, unboxed
from autopar.runtime.execute.describe import describe_failure, describe_op
from autopar.runtime.kernels.table import IR_DTYPES

Scope = tuple[str, ...]
"""Where a value was computed: one entry per enclosing call or iteration; () in `main`."""


def iteration_scope(loop: str, iteration: int) -> str:
    """Returns the entry of a scope for an iteration of a loop, which is called as its result."""
    return f"{loop}[{iteration}]"


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


def step(module: fx.GraphModule, inputs: tuple[Any, ...], trace: Trace | None = None) -> Steps:
    """Runs an emitted function; yields at each collective and is sent its result.

    Values are dropped after their last use. A value whose shape or dtype isn't what the program
    says is an error at its op.

    Args:
        module: What `emit` returned.
        inputs: The function's inputs.
        trace: Shown every computed value, if given. Since it may put other tensors in their places,
            races are only looked for without it.

    Raises:
        RuntimeFailure: If an op fails, its result isn't as declared, or there is a race.
    """
    return _Walk(trace).steps(module, inputs, ())


class _Walk:
    """A run of a function, and of all that it calls."""

    def __init__(self, trace: Trace | None) -> None:
        self.trace = trace
        self.flights = Flights() if trace is None else None

    def steps(self, module: fx.GraphModule, inputs: tuple[Any, ...], scope: Scope) -> Steps:
        """Runs a function that was called somewhere."""
        values: dict[fx.Node, Any] = {}
        last_uses = _last_uses(module)
        fresh = iter(inputs)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(fresh)
                continue
            if node.target is unboxed:
                values[node] = unboxed(values[node.args[0]])
                continue
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            if node.op == "output":
                return tuple(args[0])
            if self.flights is not None:
                self.flights.before(node, values)
            values[node] = yield from self._run(module, node, args, kwargs, scope)
            if self.flights is not None:
                self.flights.after(node)
            if "value" in node.meta:
                # Of what nobody reads, PyTorch itself predicts some shapes wrong.
                if node.users:
                    _check(node, values[node])
                if self.trace is not None:
                    values[node] = self.trace(scope, node.meta["value"], values[node])
            for dead in last_uses.get(node, ()):
                del values[dead]
        raise RuntimeFailure("the program has no outputs")

    def _run(
        self,
        module: fx.GraphModule,
        node: fx.Node,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        scope: Scope,
    ) -> Generator[Request, Tensor, Any]:
        op = node.meta["op"]
        if op is None:  # It computes a size.
            assert callable(node.target)
            return node.target(*args)
        if node.op == "call_module":
            callee = module.get_submodule(str(node.target))
            if isinstance(callee, Choice):
                return _computed(op, callee.forward, args, kwargs)
            within = (*scope, op.results[0])
            if isinstance(callee, Repeat):
                return (yield from self._repeat(callee, args[0], within))
            assert isinstance(callee, Call)
            return (yield from self.steps(callee.body, args, within))
        if node.target in ENDS:
            return self.flights.end(node, args[0]) if self.flights is not None else args[0]
        if is_collective(op.kind):
            return (yield Request(op, args[0]))
        return _computed(op, node.target, args, kwargs)

    def _repeat(self, loop: Repeat, box: list[Tensor], scope: Scope) -> Steps:
        run = Iterations(loop.loop, box)
        for iteration in range(loop.loop.trip):
            within = (*scope[:-1], iteration_scope(scope[-1], iteration))
            given = run.box(iteration)
            run.add((yield from self.steps(loop.body, (given,), within)))
        return run.results()


def _computed(op: Op, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except AutoparError:
        raise
    except Exception as error:
        raise RuntimeFailure(describe_failure(op, error)) from error


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
