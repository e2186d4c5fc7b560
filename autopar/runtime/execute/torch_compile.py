"""Runs what is emitted through `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from autopar.ir.collectives import REDISTRIBUTE, TRANSFER
from autopar.ir.emitted import WINDOW
from autopar.ir.expr.expression import Expr
from autopar.ir.memory.transfers import is_on_host
from autopar.ir.program import Op
from autopar.runtime.execute.body import GUARD
from autopar.runtime.execute.control import Call, Repeat
from autopar.runtime.kernels.growing import append
from autopar.runtime.kernels.table import is_fused_step


def through_torch_compile(module: fx.GraphModule, whole: bool) -> Callable[..., tuple[Tensor, ...]]:
    """Returns a module that runs through `torch.compile`, each function that is called once.

    Calls and loops run between graphs: torch would write out all iterations.

    Args:
        module: What `emit` returned.
        whole: Whether it must be one graph, unless a guard looks at a value, state grows, or
            windows depend on open sizes. Fused steps of optimizers are kernels already, that torch
            can't trace: they too run between graphs.
    """
    for each in module.modules():
        if isinstance(each, fx.GraphModule):
            for node in each.graph.nodes:
                op = node.meta.get("op")
                ends_graph = node.target is append or (op is not None and _ends_graph(op))
                whole &= not ends_graph
                if ends_graph or (op is not None and is_fused_step(op.kind)):
                    node.target = torch.compiler.disable(node.target)  # type: ignore[no-untyped-call]
            each.recompile()
    calls = [each for each in module.modules() if isinstance(each, (Call, Repeat))]
    for body in dict.fromkeys(call.body for call in calls):
        run = _between_graphs(_telling(torch.compile(body, fullgraph=whole and not _calls(body))))
        for call in calls:
            call.run = run if call.body is body else call.run
    for call in calls:
        setattr(call, "forward", _between_graphs(call.forward))  # noqa: B010
    # What calls functions many times does little besides.
    if any(isinstance(each, Call) for each in _calls(module)):
        return module.forward
    return _telling(torch.compile(module, fullgraph=whole and not calls))


def _between_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that isn't part of a graph, though what it calls may be one."""
    between = torch.compiler.disable(function, recursive=False)  # type: ignore[no-untyped-call]
    return cast(Callable[..., Any], between)


def _calls(module: fx.GraphModule) -> list[nn.Module]:
    """Returns what a module calls, and repeats."""
    return [each for each in module.children() if isinstance(each, (Call, Repeat))]


def _ends_graph(op: Op) -> bool:
    """Returns whether an op runs between graphs.

    Of how many pieces a window consists depends on sizes: each number would be a graph of its own.
    """
    is_windowed = op.kind in (REDISTRIBUTE, TRANSFER, WINDOW)
    apart = op.kind == GUARD or is_on_host(op)
    return apart or (is_windowed and any(isinstance(arg, Expr) for _, arg in op.args))


def _telling(compiled: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """Returns what raises the errors of ops as they are.

    While one goes up out of what must be one graph, torch refuses to trace the code that it passes,
    and raises that in its place: a rank that waited for another one would seem to have failed.
    """
    # It loads torch's compiler, which is wanted here alone.
    from torch._dynamo.exc import Unsupported

    def run(*arguments: Any) -> tuple[Tensor, ...]:
        try:
            return compiled(*arguments)
        except Unsupported as error:
            hidden = error.__cause__ or error.__context__
            if isinstance(hidden, RuntimeError):
                raise hidden from None
            raise

    return run
