"""Modules whose sizes stay open: what their code decides by a size narrows it, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch import Captured, capture
from autopar.ir.expr.expression import shape_str
from autopar.ir.used_sizes import used_sizes

Code = Callable[[Tensor], Tensor]

TABLE = torch.arange(12.0)


class Runs(nn.Module):
    """A module that is a function."""

    def __init__(self, code: Code) -> None:
        super().__init__()
        self.code = code

    def forward(self, x: Tensor) -> Tensor:
        return self.code(x)


def captured(code: Code, size: Any = "batch") -> Captured:
    return capture(Runs(code), torch.ones(6, 8), dynamic={"x": {0: size}})


def ranges(found: Captured) -> dict[str, tuple[int, int]]:
    return {size.name: (size.least, size.most) for size in used_sizes(found.program)}


def alone_is_twice(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] == 1 else x


def told_apart(x: Tensor) -> Tensor:
    return x if x.shape[0] == 1 else x.expand(x.shape[0], -1)


def causal(x: Tensor) -> Tensor:
    rows = x.view(1, 1, x.shape[0], 8)
    is_causal = x.shape[0] > 1 and x.ndim == 2
    return F.scaled_dot_product_attention(rows, rows, rows, is_causal=is_causal)


def masked(x: Tensor) -> Tensor:
    rows = x.view(1, 1, x.shape[0], 8)
    kept = (x[:, 0] > 0)[None, None, None]
    return F.scaled_dot_product_attention(rows, rows, rows, attn_mask=kept)


ANY = 2**31 - 1


@pytest.mark.parametrize(
    ("code", "least", "most"),
    [
        (lambda x: x.mean(0), 0, ANY),
        (lambda x: x.view(-1, 4), 0, ANY),
        (lambda x: x / x.shape[0], 0, ANY),
        (alone_is_twice, 2, ANY),
        (lambda x: x.squeeze(0), 2, ANY),
        (lambda x: x.squeeze(), 2, ANY),
        (lambda x: torch.squeeze_copy(x, 0), 2, ANY),
        (lambda x: x.sum_to_size(1, 8), 2, ANY),
        (lambda x: x[-1], 1, ANY),
        (lambda x: x[1], 2, ANY),
        (lambda x: x if x.numel() else x + 1, 1, ANY),
        (lambda x: x + TABLE[: x.shape[0], None], 0, 12),
        (lambda x: x if x.shape[0] <= 32 else x[:32], 0, 32),
        (lambda x: torch.stack([x[at] for at in range(3)]), 3, ANY),
    ],
)
def test_what_code_decides_by_a_size_narrows_it(code: Code, least: int, most: int) -> None:
    found = captured(code)
    assert ranges(found) == {"batch": (least, most)}
    bounds = [f"at least {least}"] * (least > 0) + [f"at most {most}"] * (most < ANY)
    said = [entry for entry in found.report if entry.category == "narrowed"]
    assert [entry.detail for entry in said] == bounds
    assert all(entry.loc.file == __file__ for entry in said)


def test_what_code_decides_by_a_rest_narrows_a_size_to_multiples() -> None:
    found = captured(lambda x: x[::2] if x.shape[0] % 3 else x)
    (size,) = used_sizes(found.program)
    (said,) = (entry for entry in found.report if entry.category == "narrowed")
    assert (size.step, said.detail, said.loc.file) == (3, "a multiple of 3", __file__)


@pytest.mark.parametrize(
    ("code", "size", "why"),
    [
        (alone_is_twice, "batch=1:64", r"size of batch, whether batch == 1; .* as 'batch=2:64'"),
        (causal, "batch=0:64", r"whether batch > 1; .* as 'batch=2:64'"),
        (lambda x: x.squeeze(0), "batch=1:", r"whether batch == 1; .* as 'batch=2:'"),
        (lambda x: x[len(x) :], "batch", "this line does depends on the size of batch;"),
        (lambda x: x * x.shape[0] ** -0.5, "batch", "a number that depends on an open size and"),
        (lambda x: x[::2] if x.shape[0] % 2 else x, "batch=:64", r"whether Mod\(batch, 2\) != 0"),
        (lambda x: x[:1].expand(x.shape[0], 8), "batch", "whether batch <= 1"),
        (lambda x: x.sum_to_size(1, 8), "batch=1:9", "whether 1 != batch; .* as 'batch=2:9'"),
    ],
)
def test_what_is_not_said_by_a_range_is_refused(code: Code, size: str, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why) as refused:
        captured(code, size)
    assert str(refused.value).startswith(__file__)


@pytest.mark.parametrize(
    ("code", "size", "least"),
    [
        (told_apart, "batch", 1),
        (told_apart, "batch=0:64", 0),
        (causal, "batch=1:64", 1),
        (masked, "batch", 1),
        (masked, "batch=1:64", 1),
    ],
)
def test_sizes_are_told_apart_that_make_no_difference(code: Code, size: str, least: int) -> None:
    assert ranges(captured(code, size))["batch"][0] == least


def test_a_range_that_decides_is_kept() -> None:
    found = captured(alone_is_twice, "batch=2:64")
    assert ranges(found) == {"batch": (2, 64)}
    assert not found.report


def test_values_that_follow_from_open_sizes_are_no_constants() -> None:
    found = captured(lambda x: x * torch.arange(x.shape[0])[:, None])
    (output,) = found.program.signature.outputs
    assert shape_str(output.shape) == "[$batch, 8]"
    assert not found.weights


def test_what_is_asked_of_an_open_size_is_an_assumption() -> None:
    found = captured(lambda x: x * torch.arange(x.shape[0]).sum().item())
    (assumed,) = (port for port in found.program.signature.outputs if port.role == "assumption")
    assert dict(assumed.options)["expected"] == 15
