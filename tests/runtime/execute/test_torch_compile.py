"""What runs through `torch.compile` says what went wrong as it does without."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo.exc import BackendCompilerFailed

from autopar.runtime.execute.torch_compile import through_torch_compile


def below_nine(x: Tensor) -> tuple[Tensor]:
    torch._assert_async((x < 9).all(), "it is out of range")
    return (x + 1,)


def compiles() -> bool:
    """Whether torch makes code of it by itself that this machine's compiler takes."""
    try:
        torch.compile(fx.symbolic_trace(below_nine))(torch.ones(3))
    except BackendCompilerFailed:
        return False
    return True


def test_the_error_of_an_op_is_raised_and_not_one_of_the_compiler() -> None:
    if not compiles():
        pytest.skip("torch.compile itself fails here")
    compiled = through_torch_compile(fx.symbolic_trace(below_nine), whole=True)
    assert compiled(torch.ones(3))[0].tolist() == [2.0] * 3
    with pytest.raises(RuntimeError, match=r"^it is out of range$"):
        compiled(torch.full((3,), 9.0))
    assert compiled(torch.zeros(3))[0].tolist() == [1.0] * 3
