"""Collectives by definition, of dtypes of which torch computes little."""

from __future__ import annotations

import pytest
import torch

from autopar.ir.rules.numbering import Numbering
from autopar.ir.rules.redistribution import Redistribution
from autopar.ir.rules.window import Window
from autopar.runtime.collectives.reference import window_of


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint64, torch.float8_e5m2, torch.bool])
def test_windows_of_vectors(dtype: torch.dtype) -> None:
    whole = torch.tensor([0, 1, 2, 0, 1, 2]).to(dtype)
    exchange = Redistribution(6, 3, 4, 2, Window("r", 1, 1), Numbering((2,), (0,), (0,)))
    found = window_of(whole, 0, exchange, 1)
    assert found.dtype == dtype
    assert torch.equal(found.to(torch.float32), whole[3:5].to(torch.float32))
