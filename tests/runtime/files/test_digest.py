"""Digests: of the content, whatever holds it."""

from __future__ import annotations

import pytest
import torch

from autopar.runtime.agree.agreement import device_digest
from autopar.runtime.files.digest import digest_bytes, digest_tensors, tensor_bytes


def test_parts_count_as_one_after_another() -> None:
    assert digest_bytes(b"ab", b"c") == digest_bytes(b"abc") != digest_bytes(b"acb")
    assert digest_bytes(b"") == digest_bytes() == 0x2D06800538D394C2  # as xxh3 is defined


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64]
)
def test_a_flipped_bit_changes_the_digest(dtype: torch.dtype) -> None:
    tensor = torch.zeros(7, 3).to(dtype)
    before = digest_tensors([tensor])
    assert digest_tensors([tensor.clone()]) == before
    tensor.view(torch.uint8)[6, -1] = 1
    assert digest_tensors([tensor]) != before


def test_strides_do_not_count() -> None:
    tensor = torch.arange(12.0).reshape(3, 4)
    assert digest_tensors([tensor.T]) == digest_tensors([tensor.T.contiguous()])
    assert digest_tensors([tensor.T]) != digest_tensors([tensor])
    assert bytes(tensor_bytes(torch.tensor(1, dtype=torch.int16))) == b"\1\0"
    assert len(tensor_bytes(torch.empty(0, 4))) == 0


@pytest.mark.parametrize("size", [0, 1, 3])
def test_one_element_may_have_any_stride(size: int) -> None:
    """As one of an index that was expanded from nothing has 0."""
    spread = torch.tensor(7).expand(size)
    same = torch.full((size,), 7)
    assert bytes(tensor_bytes(spread)) == bytes(tensor_bytes(same))
    assert device_digest(spread) == device_digest(same)
