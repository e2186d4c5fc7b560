"""Code that goes another way for compilers, which fails."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autopar
from autopar import ProcessMesh, runtime
from autopar.base.errors import InvalidInputError
from autopar.frontend.torch import capture


class Masked(nn.Module):
    """Leaves a mask out that masks nothing, except where it is compiled."""

    def __init__(self, *, fails: bool = True, asks: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.fails = fails
        self.asks = asks

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        compiled = torch.compiler.is_compiling()
        h = self.layer(x)
        if compiled:
            return h * (mask.unsqueeze(-1) if not self.fails else mask[:, :3])
        if self.asks and mask.all():
            return h
        return h * mask.reshape(-1, 2)


def batch() -> dict[str, Tensor]:
    return {"x": torch.randn(6, 4), "mask": torch.ones(6, dtype=torch.bool)}


def test_the_eager_way_is_captured_where_that_for_compilers_fails(tmp_path: Path) -> None:
    model, example = Masked(), batch()
    autopar.compile(model, example, mesh=ProcessMesh([0, 1], ["a"])).save(tmp_path / "build")
    found = runtime.run(tmp_path / "build", example, virtual=True)["output"]
    torch.testing.assert_close(found, model(**example))
    example["mask"][0] = False
    with pytest.raises(InvalidInputError, match=r"test_ways.py:\d+: .*mask.all"):
        runtime.run(tmp_path / "build", example, virtual=True)


def test_the_way_for_compilers_is_captured_where_it_works() -> None:
    model = Masked(fails=False)
    program = capture(model, batch()).program
    assert [op.kind for op in program.main.ops][-1] == "aten.mul.Tensor"


def test_what_fails_both_ways_is_told_of_that_for_compilers() -> None:
    with pytest.raises(InvalidInputError, match=r"test_ways.py:\d+: can't trace .* IndexError"):
        capture(Masked(asks=False), batch())


def test_parallel_modules_go_the_eager_way_too() -> None:
    model, example = Masked(), batch()
    module = autopar.parallelize(model, (example["x"], example["mask"]), mesh="1")
    torch.testing.assert_close(module(*example.values()), model(*example.values()))
    example["mask"][0] = False
    with pytest.raises(InvalidInputError, match=r"test_ways.py:\d+"):
        module(*example.values())
