"""`shard`, `offload`, `shard_mask`: mark a tensor within a torch model.

A mark is an op of its own, `autopar::shard`, that survives export and joint capture of forward and
backward. Its second argument is the text of a `Mark`, so that no table outside the graph is needed.
Its gradient is marked with the same layout. The op only exists while torch traces: in eager mode
these functions check what they are given and return the tensor itself.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes, is_in_torch_dispatch_mode
from torch.utils._pytree import register_constant

from autopar.annotate.mesh import MeshLike, as_mesh
from autopar.base.errors import AnnotationError
from autopar.ir.dims_mapping import DimMapping
from autopar.ir.mark import Mark, mask_of, partial_of
from autopar.ir.mesh import ProcessMesh


@torch.library.custom_op("autopar::shard", mutates_args=(), schema="(Tensor x, str spec) -> Tensor")
def mark_op(x: torch.Tensor, spec: str) -> torch.Tensor:
    """The mark as an op; `spec` is the text of a `Mark`."""
    _check_spec(tuple(x.shape), spec)
    # An op must not return an alias of its input.
    return x.clone()


@mark_op.register_fake
def _fake(x: torch.Tensor, spec: str) -> torch.Tensor:
    if all(isinstance(size, int) for size in x.shape):
        _check_spec(tuple(x.shape), spec)
    return torch.empty_like(x)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.spec = inputs[1]


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    mark = Mark.parse(ctx.spec)
    # A memory or a mask says nothing about the gradient.
    return grad if mark.dims_mapping is None else mark_op(grad, mark.of_gradient().text()), None


mark_op.register_autograd(_backward, setup_context=_setup_context)
# torch 2.11 takes a mesh for a constant of what it compiles only if it is told so.
register_constant(ProcessMesh)
# A mark whose result nobody uses is still what the user said.
torch.fx.node.has_side_effect(torch.ops.autopar.shard.default)


def shard(
    x: torch.Tensor,
    mesh: MeshLike | None,
    dims_mapping: Sequence[DimMapping],
    *,
    partial: Mapping[int | str, str] | None = None,
) -> torch.Tensor:
    """Marks a tensor with the layout that it shall have; returns the marked tensor.

        x = shard(x, ProcessMesh([[0, 1], [2, 3]], ["dp", "tp"]), ["dp", -1])

    Outside of tracing the result is `x` itself, in a graph it is another tensor; so don't write to
    one of them in place and read the other. The gradient of a marked activation is marked alike;
    that of a parameter lies as suits its use.

    Args:
        x: The tensor: an activation, an input or a parameter. Its value is unchanged.
        mesh: The processes, as a ProcessMesh or a torch DeviceMesh; None for the mesh that the
            model is compiled for.
        dims_mapping: One entry per dimension of `x`: -1 or None (not split), a mesh axis by index
            or name, or a tuple of axes, major to minor.
        partial: Axes over which the tensor stays pending a reduction, with the monoid, as
            `{"tp": "sum"}`.

    Raises:
        AnnotationError: On a wrong length, an unknown axis, or an axis used twice; at this call.
    """
    if not _is_traced(x):
        _check(x.shape, mesh, _hashable(dims_mapping), partial_of(partial))
        return x
    return _marked(x, _shard_spec(mesh, dims_mapping, partial, _place()))


def offload(x: torch.Tensor, device: str) -> torch.Tensor:
    """Marks a tensor to be held in another memory between its uses; returns the marked tensor.

        hidden = offload(hidden, "cpu")

    An activation waits in the host's memory, `cpu`, from its last use in the forward pass until the
    backward pass reads it; a parameter waits there until a phase reads it, and goes back when it
    has been updated. Compiling refuses other memories and tensors, and names the line: leave these
    where they are.

    Args:
        x: The tensor. Its value is unchanged.
        device: The memory, as `cpu` or `disk`.

    Raises:
        AnnotationError: If the device is empty.
    """
    traced = _is_traced(x)
    spec = _offload_spec(device, _place() if traced else "")
    return _marked(x, spec) if traced else x


def shard_mask(x: torch.Tensor, mask: Any) -> torch.Tensor:
    """Marks a tensor to be held by some of the mesh's processes only; returns the marked tensor.

        x = shard_mask(x, [[1, 1, 1], [0, 0, 0]])

    The processes are a box of the mesh: of each axis a set of indices. They hold all of the tensor,
    what follows from it runs there, and other processes don't hold it; as with a mark on a slice,
    `shard(x, mesh["dp", 0], [-1, -1])`. Nothing is split along an axis of which there are some
    indices only: all of them compute the same. Compiling refuses other masks, and names the line
    and the nearest box.

    Args:
        x: The tensor. Its value is unchanged.
        mask: Nested lists or an array in the shape of the mesh: 1 for a process that holds the
            tensor, 0 for one that doesn't.

    Raises:
        AnnotationError: If the mask is ragged, or holds something else or only zeros.
    """
    traced = _is_traced(x)
    spec = _mask_spec(mask, _place() if traced else "")
    return _marked(x, spec) if traced else x


def chunk(x: torch.Tensor, dim: int, parts: int) -> torch.Tensor:
    """Marks a tensor to be computed in parts, one after another; returns the marked tensor.

        logits = chunk(self.head(hidden), 0, 8)

    Not the tensor alone: what is as large around it, forward and backward, is computed part by
    part, as far as its ops allow that, so that it is never there as a whole. What is summed over
    the parts, as a loss or the gradient of a weight, is added up.

    Args:
        x: The tensor. Its value is unchanged.
        dim: The dimension that is cut.
        parts: How many parts. The last one may be smaller.

    Raises:
        AnnotationError: If there is no such dimension, or not so many elements; at this call.
    """
    traced = _is_traced(x)
    spec = _chunk_spec(x.ndim, dim, parts, _place() if traced else "")
    return _marked(x, spec) if traced else x


def _is_traced(x: object) -> bool:
    """Whether an op on a tensor ends up in a graph, or is watched by someone."""
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode():
        return True
    return not isinstance(x, torch.Tensor)


def _marked(x: torch.Tensor, spec: str) -> torch.Tensor:
    marked: torch.Tensor = mark_op(x, spec)
    return marked


# What follows depends on no tensor, so a tracer may take the result for a constant.


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _shard_spec(
    mesh: MeshLike | None,
    dims_mapping: Sequence[DimMapping],
    partial: Mapping[int | str, str] | None,
    place: str,
) -> str:
    return Mark(_known(mesh), _hashable(dims_mapping), partial_of(partial), place=place).text()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _offload_spec(device: str, place: str) -> str:
    if not device:
        raise AnnotationError("offload: name the memory that shall hold the tensor, as 'cpu'")
    return Mark(offload=device, place=place).text()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _chunk_spec(rank: int, dim: int, parts: int, place: str) -> str:
    if type(dim) is not int or not -rank <= dim < rank:
        raise AnnotationError(f"chunk: dim={dim!r} is no dimension of a tensor of {rank}")
    if type(parts) is not int or parts < 1:
        raise AnnotationError(f"chunk: parts={parts!r} is no number of parts; give 1 or more")
    return Mark(chunk=(dim % rank, parts), place=place).text()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _mask_spec(mask: Any, place: str) -> str:
    return Mark(mask=mask_of(mask), place=place).text()


def _place() -> str:
    """Returns the user's line that is being traced; "" where the tracer knows it."""
    if torch.compiler.is_dynamo_compiling():
        return ""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


_BETWEEN = (f"{__package__}.", "torch.")
"""Modules with functions between the user's line and the mark."""


def _hashable(dims_mapping: Sequence[DimMapping]) -> tuple[DimMapping, ...]:
    return tuple(tuple(entry) if isinstance(entry, list) else entry for entry in dims_mapping)


@lru_cache(maxsize=64)
def _known(mesh: MeshLike | None) -> ProcessMesh | None:
    # A DeviceMesh holds its ranks as a tensor, which is to be read and not to be traced.
    with _disable_current_modes():
        return None if mesh is None else as_mesh(mesh)


@lru_cache(maxsize=1024)
def _check(
    shape: tuple[int, ...],
    mesh: MeshLike | None,
    dims_mapping: tuple[DimMapping, ...],
    partial: tuple[tuple[int | str, str], ...],
) -> None:
    Mark(_known(mesh), dims_mapping, partial).check(shape)


@lru_cache(maxsize=1024)
def _check_spec(shape: tuple[int, ...], spec: str) -> None:
    Mark.parse(spec).check(shape)
