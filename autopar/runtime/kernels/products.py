"""Matrix products of 16-bit values that are added to a total of 32 bits."""

from __future__ import annotations

import torch
from torch import Tensor

from autopar.ir.ops.products.matmul import rows_at_once
from autopar.runtime.kernels.naming import own


def add_product(self: Tensor, mat1: Tensor, mat2: Tensor) -> Tensor:
    """Returns a total to which a product is added, which isn't rounded to 16 bits before.

    Args:
        self: The total, [m, n].
        mat1: The left factor, [m, k].
        mat2: The right factor, [k, n].
    """
    return add_product_(self.clone(), mat1, mat2)


def add_product_(self: Tensor, mat1: Tensor, mat2: Tensor) -> Tensor:
    """Adds a product to a total in place.

    A CPU's kernels round their results to 16 bits, but no sums within. So what rounding has left of
    a product is what a second one adds to it. That takes half as long as a product of 32 bits, and
    is done for a few rows at once, which stay in the cache.
    """
    if self.is_cuda:
        self += torch.mm(mat1, mat2, out_dtype=self.dtype)
        return self
    rows = rows_at_once(*self.shape)
    for at in range(0, len(self), rows):
        part, left = self[at : at + rows], mat1[at : at + rows]
        product = left @ mat2
        part += product
        part += torch.addmm(product, left, mat2, beta=-1)
    return self


PRODUCTS = own(add_product=add_product)
"""The kernels by the kind of op."""
