"""Matrix products and what is built on them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from autopar.frontend.lower.asking import is_sure
from autopar.frontend.lower.open_sizes import is_static
from autopar.frontend.onnx.trace.node import Node, Refused
from autopar.frontend.onnx.trace.values import Translation


def times_matrix(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Multiplies the last dimension of `x` with a matrix.

    One product of two matrices, whatever the strides of `x`: torch.matmul would sometimes repeat
    the matrix for every element of a batch.
    """
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return torch.mm(rows, matrix).reshape([*x.shape[:-1], matrix.shape[1]])


def _matmul(node: Node, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.ndim > 2 and b.ndim == 2:
        return times_matrix(a, b)
    if a.ndim > 3 and not is_static(a) and _are_batches_alike(a, b):
        # As torch.matmul, which asks open sizes for much before it finds that out.
        matrices = [each.reshape(math.prod(each.shape[:-2]), *each.shape[-2:]) for each in (a, b)]
        return torch.bmm(*matrices).reshape(*a.shape[:-1], b.shape[-1])
    return torch.matmul(a, b)


def _are_batches_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether all dimensions but those of matrices are always the same."""
    pairs = zip(a.shape[:-2], b.shape[:-2], strict=False)
    return a.ndim == b.ndim and all(is_sure(one == other) for one, other in pairs)


def _gemm(
    node: Node, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None
) -> torch.Tensor:
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    if a.ndim != 2 or b.ndim != 2:
        raise Refused(f"its operands have {a.ndim} and {b.ndim} dimensions instead of 2")
    left = a.t() if node.flag("transA") else a
    right = b.t() if node.flag("transB") else b
    if not a.dtype.is_floating_point:
        product = torch.matmul(left, right) * int(alpha)
        return product if c is None else product + c * int(beta)
    if c is not None:
        return torch.addmm(c, left, right, alpha=alpha, beta=beta)
    product = torch.mm(left, right)
    return product if alpha == 1.0 else product * alpha


def _einsum(node: Node, *tensors: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.einsum(node.text("equation").replace(" ", ""), *tensors)
    return result


def _det(node: Node, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.linalg.det(x)
    return result


TABLE: Mapping[str, Translation] = {
    "Det": Translation(_det),
    "Einsum": Translation(_einsum, expands=True),
    "Gemm": Translation(_gemm, expands=True),
    "MatMul": Translation(_matmul, expands=True),
}
