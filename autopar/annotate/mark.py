"""`shard`: marks a tensor within a torch model with a layout.

The mark is an op of its own, `autopar::shard`, that survives export and joint capture of forward
and backward. Its second argument holds the mesh and the mapping as text, so that no table outside
the graph is needed. In eager mode it copies its input and has no other effect; its gradient is
marked with the same layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from autopar.annotate.spec import ShardSpec, spec_text
from autopar.ir.layout import DimMapping
from autopar.ir.mesh import ProcessMesh


@torch.library.custom_op("autopar::shard", mutates_args=(), schema="(Tensor x, str spec) -> Tensor")
def shard_op(x: torch.Tensor, spec: str) -> torch.Tensor:
    """The mark as an op; `spec` is the text of a `ShardSpec`."""
    _check(tuple(x.shape), spec)
    # An op must not return an alias of its input.
    return x.clone()


@shard_op.register_fake
def _fake(x: torch.Tensor, spec: str) -> torch.Tensor:
    if all(isinstance(size, int) for size in x.shape):
        _check(tuple(x.shape), spec)
    return torch.empty_like(x)


@lru_cache(maxsize=1024)
def _check(shape: tuple[int, ...], spec: str) -> None:
    ShardSpec.parse(spec).layout(shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.spec = inputs[1]


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return shard_op(grad, ctx.spec), None


shard_op.register_autograd(_backward, setup_context=_setup_context)


def shard(x: torch.Tensor, mesh: ProcessMesh, dims_mapping: Sequence[DimMapping]) -> torch.Tensor:
    """Marks a tensor with the layout that it shall have; returns the marked tensor.

        x = shard(x, ProcessMesh([[0, 1], [2, 3]], ["dp", "tp"]), ["dp", -1])

    Args:
        x: The tensor. Its value is unchanged.
        mesh: The processes.
        dims_mapping: One entry per dimension of `x`: -1 (not split), a mesh axis by index or name,
            or a tuple of axes, major to minor.

    Raises:
        AnnotationError: On a wrong length, an unknown axis, or an axis used twice; at this call.
    """
    marked: torch.Tensor = shard_op(x, spec_text(mesh, dims_mapping))
    return marked
