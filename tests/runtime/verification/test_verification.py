"""Verification: right programs pass, and the first value that is off is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autopar.ir.text import parse_program
from autopar.runtime.api import verify
from autopar.runtime.verification.verification import Verification, compare, compare_outputs
from tests.end_to_end.test_chunks import Attention, compiled
from tests.runtime.programs import MLP, MLP_SERIAL, build, deploy


def verify_mlp(folder: Path, text: str, per_op: bool = False) -> Verification:
    torch.manual_seed(0)
    weights = {"w1": torch.randn(6, 8), "w2": torch.randn(8, 5)}
    deployment = deploy({"dp": 2, "tp": 3}, text, tp=["tp"])
    path = build(folder / "b", deployment, weights, MLP_SERIAL)
    return verify(path, {"x": torch.randn(8, 6)}, per_op=per_op)


@pytest.mark.parametrize("per_op", [False, True])
def test_a_right_program_passes(tmp_path: Path, per_op: bool) -> None:
    result = verify_mlp(tmp_path, MLP, per_op)
    assert result.ok
    # %p is pending: compared after its reduction. %p.1 is no value of the serial program.
    assert [value.name for value in result.values] == ["h", "r", "p", "y"]
    assert result.uncompared == ()
    assert max(value.relative for value in result.values) < 1e-6


def test_the_first_value_that_is_off_is_named(tmp_path: Path) -> None:
    wrong = MLP.replace('aten.relu.default(self=%h) loc("mlp.py", 3)', "aten.neg.default(self=%h)")
    assert wrong != MLP
    result = verify_mlp(tmp_path, wrong)
    assert not result.ok
    assert result.first is not None
    assert (result.first.name, result.first.ranks) == ("r", (0, 1, 2, 3, 4, 5))
    assert str(result.first).startswith("%r = aten.relu.default (mlp.py:3) is off by ")
    assert not result.outputs["out"].ok


def test_forced_mode_judges_each_op_alone(tmp_path: Path) -> None:
    wrong = MLP.replace('aten.relu.default(self=%h) loc("mlp.py", 3)', "aten.neg.default(self=%h)")
    result = verify_mlp(tmp_path, wrong, per_op=True)
    assert [value.name for value in result.values if not value.ok] == ["r"]
    assert result.outputs["out"].ok


def test_only_the_ranks_that_are_off_are_named(tmp_path: Path) -> None:
    relu = "%y: f32[4, 5] = aten.relu.default(self=%p.1)"
    off = "%p.2: f32[4, 5] = aten.relu.default(self=%p.1)\n"
    off += "  %y: f32[4, 5] = aten.add.Scalar(self=%p.2, other=dp)"
    assert relu in MLP
    result = verify_mlp(tmp_path, MLP.replace(relu, off))
    assert result.first is not None
    assert (result.first.name, result.first.ranks) == ("y", (3, 4, 5))
    assert result.first.error == pytest.approx(1.0)


def test_a_missing_reduction_is_found_at_the_output(tmp_path: Path) -> None:
    reduced = 'comm.all_reduce(self=%p, monoid="sum", group="tp")'
    assert reduced in MLP
    wrong = MLP.replace(reduced, "aten.alias.default(self=%p)")
    result = verify_mlp(tmp_path, wrong)
    assert result.first is not None
    assert result.first.name == "y"


@pytest.mark.parametrize(
    ("found", "expected", "ok"),
    [
        ([1.0, 100.0], [1.0005, 100.0], True),
        ([1.0, 100.0], [1.1, 100.0], False),
        ([float("nan"), float("inf")], [float("nan"), float("inf")], True),
        ([float("nan"), 1.0], [1.0, 1.0], False),
        ([1.0, float("inf")], [1.0, 1.0], False),
        ([0.0], [0.0], True),
        ([1e-9], [0.0], False),
        ([3, 4], [4, 4], False),
        ([True, False], [True, True], False),
        ([], [], True),
    ],
)
def test_what_counts_as_equal(found: list[float], expected: list[float], ok: bool) -> None:
    assert compare(torch.tensor(found), torch.tensor(expected), 1e-5)[2] == ok


def test_other_shapes_and_dtypes_are_never_equal() -> None:
    assert not compare(torch.ones(2), torch.ones(1, 2), 1.0)[2]
    assert not compare(torch.ones(2), torch.ones(2, dtype=torch.float64), 1.0)[2]


@pytest.mark.parametrize(("found", "ok"), [([3, 4], True), ([2, 4], True), ([1, 4], False)])
def test_quantized_numbers_may_be_off_by_one(found: list[int], ok: bool) -> None:
    quantized = [torch.tensor(numbers, dtype=torch.uint8) for numbers in (found, [3, 4])]
    assert compare(quantized[0], quantized[1], 1e-5)[2] == ok


def test_a_cast_of_halves_is_judged_as_halves() -> None:
    program = parse_program(
        """
        program "p" serial
        func main {
          input %x: f16[4]
          %w: f32[4] = aten._to_copy.default(self=%x, dtype=f32)
          %h: f16[4] = aten.relu.default(self=%x)
          %y: f32[4] = aten._to_copy.default(self=%h, dtype=f32)
          return %w, %y
        }
        """
    )
    found = {"w": torch.ones(4), "y": torch.ones(4)}
    off = {label: tensor + 5e-4 for label, tensor in found.items()}
    judged = compare_outputs(off, found, 1e-4, program)
    assert {label: difference.ok for label, difference in judged.items()} == {"w": False, "y": True}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gradient_that_is_zero_but_for_rounding_passes(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    """That of a bias of keys, which is put together of what two heads have."""
    torch.manual_seed(0)
    model, batch = Attention().to(dtype), (torch.randn(4, 7, 8).to(dtype),) * 2
    step = compiled(model, batch, "2", chunks={"soft": (1, 2)}, strategy="tensor:0")
    step.save(tmp_path)
    result = verify(tmp_path, batch)
    assert result.ok
    parameters = [name for name, _ in model.named_parameters()]
    assert sorted(result.gradients) == sorted(f"grad/{name}" for name in parameters)
