"""Reading and writing elements by index: gather, scatter, select, sort."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F

from autopar.frontend.lower.asking import is_sure
from autopar.frontend.onnx.ops.shape.layout import as_axes
from autopar.frontend.onnx.trace.node import Array, Node, Refused
from autopar.frontend.onnx.trace.values import Translation


def _wrapped(node: Node, position: int, index: torch.Tensor, size: int) -> torch.Tensor:
    """Returns indices with the negative ones, which count from the end, made positive."""
    index = index.to(torch.int64)
    content = node.content(position)
    if content is not None and (content.size == 0 or int(content.min()) >= 0):
        return index
    return torch.where(index < 0, index + size, index)


def _gather(node: Node, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    axis = as_axes([node.integer("axis", 0)], x.ndim)[0]
    content = node.content(1)
    if content is not None and content.size:
        taken = _gather_known(x, axis, content)
        if taken is not None:
            return taken
    index = _wrapped(node, 1, indices, x.shape[axis])
    if axis == 0 and x.ndim == 2 and x.dtype.is_floating_point and index.ndim:
        return F.embedding(index, x)
    flat = x.index_select(axis, index.reshape(-1))
    return flat.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def _gather_known(x: torch.Tensor, axis: int, content: Array) -> torch.Tensor | None:
    """Gathers consecutive elements without an index; None if they aren't consecutive."""
    flat = content.reshape(-1).astype(np.int64)
    size = x.shape[axis]
    first = int(flat[0]) % size if -size <= int(flat[0]) < size else -1
    if first < 0 or first + flat.size > size or (np.diff(flat) != 1).any():
        return None
    if content.ndim == 0:
        return x.select(axis, first)
    part = x.narrow(axis, first, flat.size)
    return part.reshape([*x.shape[:axis], *content.shape, *x.shape[axis + 1 :]])


def _gather_elements(node: Node, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    axis = as_axes([node.integer("axis", 0)], x.ndim)[0]
    return torch.gather(x, axis, _wrapped(node, 1, indices, x.shape[axis]))


def _gather_nd(node: Node, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    batch = node.integer("batch_dims", 0)
    if not 0 <= batch < indices.ndim or x.shape[:batch] != indices.shape[:batch]:
        raise Refused(f"batch_dims {batch} doesn't fit {list(x.shape)} and {list(indices.shape)}")
    columns = _columns(node, x.shape[batch:], indices, 1)
    outer = [
        torch.arange(size).reshape([-1 if at == axis else 1 for at in range(indices.ndim - 1)])
        for axis, size in enumerate(x.shape[:batch])
    ]
    return x[(*outer, *columns)]


def _columns(
    node: Node, shape: tuple[int, ...], indices: torch.Tensor, position: int
) -> list[torch.Tensor]:
    """Returns the index of each dimension from indices that hold them in their last one."""
    depth = indices.shape[-1]
    if depth > len(shape):
        raise Refused(f"indices of {depth} dimensions into a tensor of {len(shape)}")
    content = node.content(position)
    columns = []
    for at in range(depth):
        column = indices.select(-1, at).to(torch.int64)
        if content is None or (content.size and int(content[..., at].min()) < 0):
            column = torch.where(column < 0, column + shape[at], column)
        columns.append(column)
    return columns


def _scatter_elements(
    node: Node, x: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor
) -> torch.Tensor:
    axis = as_axes([node.integer("axis", 0)], x.ndim)[0]
    index = _wrapped(node, 1, indices, x.shape[axis])
    how = node.text("reduction", "none")
    if how == "none":
        return torch.scatter(x, axis, index, updates)
    return torch.scatter_reduce(x, axis, index, updates, _reduction(how))


def _reduction(name: str) -> str:
    names = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    if name not in names:
        raise Refused(f"reduction {name!r} isn't supported")
    return names[name]


def _scatter_nd(
    node: Node, x: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor
) -> torch.Tensor:
    how = node.text("reduction", "none")
    columns = _columns(node, x.shape, indices, 1)
    if how in ("none", "add"):
        return torch.index_put(x, tuple(columns), updates, accumulate=how == "add")
    depth = len(columns)
    flat = torch.zeros_like(columns[0])
    for column, size in zip(columns, x.shape, strict=False):
        flat = flat * size + column
    rows = x.reshape(math.prod(x.shape[:depth]), -1)
    new = updates.reshape(-1, rows.shape[1])
    index = flat.reshape(-1, 1).expand(new.shape)
    return torch.scatter_reduce(rows, 0, index, new, _reduction(how)).reshape(x.shape)


def _tensor_scatter(
    node: Node, past: torch.Tensor, update: torch.Tensor, at: torch.Tensor | None = None
) -> torch.Tensor:
    axis = as_axes([node.integer("axis", -2)], past.ndim)[0]
    if axis == 0:
        raise Refused("it writes along its batch axis")
    count, size = update.shape[axis], past.shape[axis]
    index = torch.arange(count).reshape(1, count)
    start = torch.zeros(past.shape[0], dtype=torch.int64) if at is None else at.to(torch.int64)
    index = start.reshape(-1, 1) + index
    if node.text("mode", "linear") == "circular":
        index = index % size
    shape = [1] * past.ndim
    shape[0], shape[axis] = past.shape[0], count
    return torch.scatter(past, axis, index.reshape(shape).expand(update.shape), update)


def _compress(node: Node, x: torch.Tensor, condition: Array) -> torch.Tensor:
    kept = torch.tensor(np.flatnonzero(condition).tolist(), dtype=torch.int64)
    if not node.has("axis"):
        return x.reshape(-1).index_select(0, kept)
    return x.index_select(as_axes([node.integer("axis")], x.ndim)[0], kept)


def _non_zero(node: Node, x: Array) -> torch.Tensor:
    found = np.nonzero(x) if x.ndim else np.nonzero(x.reshape(1))[:0]
    if not x.ndim:
        return torch.zeros((0, int(bool(x))), dtype=torch.int64)
    return torch.tensor(np.stack(found).tolist(), dtype=torch.int64).reshape(x.ndim, -1)


def _unique(node: Node, x: Array) -> tuple[torch.Tensor, ...]:
    axis = node.integer("axis") if node.has("axis") else None
    source = x if axis is not None else x.reshape(-1)
    values, first, inverse, counts = np.unique(
        source, return_index=True, return_inverse=True, return_counts=True, axis=axis or 0
    )
    inverse = inverse.reshape(-1)
    if not node.flag("sorted", True):
        order = np.argsort(first)
        values = np.take(values, order, axis=axis or 0)
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        first, inverse, counts = first[order], rank[inverse], counts[order]
    indices = (
        torch.from_numpy(np.ascontiguousarray(a).astype(np.int64)) for a in (first, inverse, counts)
    )
    return torch.from_numpy(np.ascontiguousarray(values)), *indices


def _top_k(node: Node, x: torch.Tensor, k: Array) -> tuple[torch.Tensor, torch.Tensor]:
    axis = as_axes([node.integer("axis", -1)], x.ndim)[0]
    count, size = k.reshape(-1)[0], x.shape[axis]
    if not isinstance(count, torch.SymInt):
        count = int(count)
    if is_sure(count < 0) or is_sure(count > size):
        raise Refused(f"the top {count} of {size} elements")
    largest = node.flag("largest", True)
    # torch.topk breaks ties as it likes; ONNX wants the lower index first.
    values, indices = torch.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, count), indices.narrow(axis, 0, count)


TABLE: Mapping[str, Translation] = {
    "Compress": Translation(_compress, static=(1,)),
    "Gather": Translation(_gather, expands=True),
    "GatherElements": Translation(_gather_elements),
    "GatherND": Translation(_gather_nd, expands=True),
    "NonZero": Translation(_non_zero, static=(0,)),
    "Scatter": Translation(_scatter_elements),
    "ScatterElements": Translation(_scatter_elements),
    "ScatterND": Translation(_scatter_nd),
    "TensorScatter": Translation(_tensor_scatter),
    "TopK": Translation(_top_k, static=(1,)),
    "Unique": Translation(_unique, static=(0,)),
}
