"""Kernels give the same on operands of any strides, as a permute or a slice leaves them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autopar.ir.ops import RULES
from autopar.ir.ops.dense import DENSE, DENSE_ROWS, STRICT
from autopar.ir.ops.products.attention import ATTENTION, FLASH
from autopar.ir.ops.products.attention_backward import ATTENTION_BACKWARD, FLASH_BACKWARD
from autopar.ir.ops.table import dense, dense_rows
from tests.ops.sample import compute
from tests.ops.samples import RUN, samples_by_kind
from tests.ops.split_run_combine import assert_equal


def every_second(tensor: Tensor) -> Tensor:
    """Returns an equal tensor whose elements lie two apart, with others between."""
    return torch.stack([tensor, torch.ones_like(tensor)], -1)[..., 0]


def last_first(tensor: Tensor) -> Tensor:
    """Returns an equal tensor that is a transposed one."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.ndim else tensor


def wider(tensor: Tensor) -> Tensor:
    """Returns an equal tensor whose rows lie apart."""
    if not tensor.ndim:
        return tensor
    return torch.cat([tensor, tensor], -1).narrow(-1, 0, tensor.shape[-1])


@pytest.mark.parametrize("kind", RUN)
def test_strides_change_nothing(kind: str) -> None:
    for sample in samples_by_kind()[kind]:
        for strided in (every_second, last_first, wider):
            found = compute(kind, sample.ir_args, [strided(t) for t in sample.tensors])
            for at, (result, whole) in enumerate(zip(found, sample.results, strict=True)):
                assert_equal(result, whole, f"{sample}, {strided.__name__}, result {at}")


def test_rows_say_which_kernels_want_dense_operands() -> None:
    plain = RULES["aten.mm.default"]
    assert dense(plain) != dense_rows(plain) != plain
    assert "aten._pdist_forward.default" in DENSE
    assert {FLASH, FLASH_BACKWARD, ATTENTION, ATTENTION_BACKWARD} == DENSE_ROWS
    assert "aten.mm.default" not in STRICT
