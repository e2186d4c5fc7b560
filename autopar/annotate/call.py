"""`shard_op`: marks the operands and results of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

import torch

from autopar.annotate.mark import shard
from autopar.annotate.mesh import MeshLike
from autopar.base.errors import AnnotationError, near_misses
from autopar.ir.dims_mapping import DimMapping

Key = str | int
"""An operand by position or parameter, or a result, of a call."""

DimsMappings = Mapping[Key, Sequence[DimMapping]]

RESULT = "result"


class ShardedCall:
    """A function with marks on its operands and results; see `shard_op`.

    An object and not a closure, so that a copy of a model calls the copy's layer.
    """

    def __init__(self, fn: Callable[..., Any], mesh: MeshLike | None, wanted: DimsMappings) -> None:
        self.fn = fn
        self.mesh = mesh
        self.names = _names(fn)
        self.of_results = {key: entry for key, entry in wanted.items() if _is_result(key)}
        self.of_operands = {key: entry for key, entry in wanted.items() if not _is_result(key)}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        operands: dict[Key, Any] = dict(enumerate(args))
        operands.update(kwargs)
        position = {name: at for at, name in enumerate(self.names) if at < len(args)}
        wanted = {position.get(str(key), key): each for key, each in self.of_operands.items()}
        _check("operand", wanted, [*operands, *position])
        if len(wanted) < len(self.of_operands):
            given = ", ".join(map(repr, self.of_operands))
            raise AnnotationError(f"shard_op: two of {given} are the same operand; leave one out")
        marked = _marked(operands, self.mesh, wanted)
        positional = (marked[at] for at in range(len(args)))
        results = self.fn(*positional, **{key: marked[key] for key in kwargs})
        return _results(results, self.mesh, self.of_results)


def shard_op(
    fn: Callable[..., Any], mesh: MeshLike | None, dims_mapping_by_tensor: DimsMappings
) -> ShardedCall:
    """Returns a function that calls `fn` with marked operands and returns marked results.

        matmul = shard_op(torch.matmul, mesh, {0: ["dp", -1], "result": ["dp", "tp"]})
        y = matmul(x, weight)

    Args:
        fn: Any function of tensors, or a layer.
        mesh: The processes; see `shard`.
        dims_mapping_by_tensor: A dims_mapping per tensor: of an operand by its position in the
            call or by its parameter's name (builtin functions have none), of the result as
            `"result"`, of one of several as `"result.1"`.

    Raises:
        AnnotationError: At the call, if there is no such tensor, or a dims_mapping doesn't fit.
    """
    return ShardedCall(fn, mesh, dims_mapping_by_tensor)


def _results(results: Any, mesh: MeshLike | None, wanted: DimsMappings) -> Any:
    """Returns a call's results, marked."""
    parts: dict[Key, Any] = {}
    if isinstance(results, torch.Tensor):
        parts[RESULT] = results
    elif isinstance(results, (list, tuple)):
        parts.update((f"{RESULT}.{at}", part) for at, part in enumerate(results))
    _check("result", wanted, list(parts))
    marked = list(_marked(parts, mesh, wanted).values())
    if not wanted or isinstance(results, torch.Tensor):
        return marked[0] if wanted else results
    return getattr(type(results), "_make", type(results))(marked)


def _names(fn: Callable[..., Any]) -> list[str]:
    """Returns the names of the parameters that a call may give by position, if they are known."""
    try:
        known = signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)
    except (TypeError, ValueError):
        return []
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in known.parameters.values() if parameter.kind in kinds]


def _is_result(key: Key) -> bool:
    return isinstance(key, str) and key.partition(".")[0] == RESULT


def _check(what: str, wanted: DimsMappings, there: Sequence[Key]) -> None:
    for key in wanted:
        if key not in there:
            known = [str(each) for each in there]
            raise AnnotationError(
                f"shard_op: the call has no {what} {key!r}, only {', '.join(known) or 'none'}"
                f"{near_misses(str(key), known)}"
            )


def _marked(
    tensors: Mapping[Key, Any], mesh: MeshLike | None, dims_mappings: DimsMappings
) -> dict[Key, Any]:
    return {
        key: shard(tensor, mesh, dims_mappings[key]) if key in dims_mappings else tensor
        for key, tensor in tensors.items()
    }
