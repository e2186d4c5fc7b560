"""PyTorch's operator database as the judge; `make op-database` runs all of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from autopar.ir.mesh import ProcessMesh
from autopar.runtime.execute.serial import run_serial
from tests.op_database.capture import CAPTURES, NoTensors, capture_backward, capture_forward
from tests.op_database.exclusions import EXCLUDED, UNDEFINED
from tests.op_database.judge import Verdict, differences, judge, judge_serial, random_pins
from tests.op_database.selection import SAMPLES, Call, calls_of, opinfos
from tests.op_database.suite import Record, records_of
from tests.op_database.tally import failed, render
from tests.op_database.uncertainty import uncertainty

OPINFOS = opinfos()
FAST = 16
"""Every n-th OpInfo is judged in each run of the tests."""


def _names() -> list[Any]:
    return [
        pytest.param(name, marks=[] if at % FAST == 0 else [pytest.mark.slow])
        for at, name in enumerate(OPINFOS)
    ]


@pytest.mark.parametrize("name", _names())
def test_all_ranks_compute_what_one_device_does(name: str) -> None:
    records = records_of(OPINFOS[name])
    assert not [str(it) for it in records if it.verdict.outcome in ("wrong", "error")]


def call_of(function: Any, *tensors: Tensor) -> Call:
    return Call("an operator", 0, False, function, tensors)


def test_the_same_samples_are_taken_each_time() -> None:
    first, second = list(calls_of(OPINFOS["addmm"])), list(calls_of(OPINFOS["addmm"]))
    assert [it.number for it in first] == [it.number for it in second]
    for one, other in zip(first, second, strict=True):
        assert all(map(torch.equal, one.tensors, other.tensors))
    assert 0 < sum(not it.writes for it in first) <= SAMPLES


def test_samples_have_something_to_split_where_there_is_anything() -> None:
    shapes = [[tuple(it.shape) for it in call.tensors] for call in calls_of(OPINFOS["add"])]
    assert all(max(max(shape, default=0) for shape in each) > 1 for each in shapes)


def test_pins_split_something_whenever_anything_can_be_split() -> None:
    captured = capture_forward(call_of(torch.add, torch.ones(3, 1), torch.ones(1, 1)))
    mesh = ProcessMesh.of_shape((2, 3))
    for seed in range(30):
        pins = random_pins(captured.program, mesh, str(seed))
        assert any(entry != -1 for pin in pins for entry in pin.dims_mapping)


def test_a_wrong_serial_program_is_found() -> None:
    captured = capture_forward(call_of(torch.sin, torch.ones(3)))
    assert not judge_serial(captured)
    captured.expected["out0"][1] += 0.1
    assert "off by" in judge_serial(captured)


def test_another_shape_or_dtype_is_a_difference_even_without_values() -> None:
    expected = {"out": torch.zeros(2)}
    assert not differences({"out": torch.ones(2)}, expected, 0, False)
    assert "float32[3]" in differences({"out": torch.ones(3)}, expected, 0, False)
    assert "int64[2]" in differences({"out": torch.ones(2).long()}, expected, 0, False)


def test_only_what_cancels_is_uncertain() -> None:
    """The cosine of a large number knows less of its argument; its neighbours gain nothing."""

    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        return [(x + y).sum(), x.sum(), (x * 1e6).cos(), x.long()]

    x, y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-3.0, -2.0, -1.00001])
    captured = capture_forward(call_of(function, x, y))
    expected = run_serial(captured.program, {}, captured.inputs)
    moved = uncertainty(captured.program, captured.inputs, expected)
    eps = torch.finfo(torch.float32).eps
    assert eps < moved["out0"] < 20 * eps
    assert moved["out1"] < 20 * eps
    assert moved["out2"] > 1e-2
    wrong = {**expected, "out0": expected["out0"] + 1e-4, "out1": expected["out1"] + 1e-2}
    found = differences(wrong, expected, 1e-4, True, moved)
    assert "out0" in found
    assert "out1" in found


def test_fallbacks_are_named() -> None:
    captured = capture_forward(call_of(torch.linalg.eigvalsh, torch.eye(4)))
    for seed in range(5):
        verdict = judge(captured, ProcessMesh.of_shape((2,)), str(seed))
        assert verdict.outcome in ("fell back", "moved")
        assert not verdict.missing or "eigh" in verdict.missing[0]


def test_what_python_code_reads_of_values_stays_readable() -> None:
    """`cov` refuses negative weights: it looks at their values."""
    weights = torch.tensor([1, 2, 3])
    call = call_of(lambda x, w: torch.cov(x, fweights=w), torch.rand(2, 3), weights)
    assert not judge_serial(capture_forward(call))


def test_writing_operators_become_functions() -> None:
    call = call_of(lambda x: x.clone().add_(1).mul_(2), torch.rand(3))
    captured = capture_forward(call)
    assert [op.kind for op in captured.program.main.ops] == ["aten.add.Tensor", "aten.mul.Tensor"]
    assert not judge_serial(captured)


def test_random_results_are_those_of_the_serial_program() -> None:
    captured = capture_forward(call_of(torch.nn.functional.dropout, torch.ones(6, 4)))
    assert captured.draws
    assert not judge_serial(captured)
    assert judge(captured, ProcessMesh.of_shape((2, 3)), "a seed").outcome == "split"


def test_gradients_take_the_gradients_of_the_results() -> None:
    captured = capture_backward(call_of(torch.mul, *torch.rand(2, 3).requires_grad_().unbind()))
    assert len(captured.inputs) == 3
    x, y, gradient = captured.inputs.values()
    assert torch.equal(captured.expected["out0"], y * gradient)
    assert torch.equal(captured.expected["out1"], x * gradient)


@pytest.mark.parametrize("direction", CAPTURES)
def test_calls_without_tensors_are_refused(direction: str) -> None:
    with pytest.raises(NoTensors):
        CAPTURES[direction](call_of(lambda x: x.shape, torch.ones(2)))  # type: ignore[index]


def test_nothing_is_in_two_tables() -> None:
    names = [name for each in (*EXCLUDED.values(), UNDEFINED) for name in each]
    assert len(names) == len(set(names))


def test_what_failed_and_what_fell_back_is_told() -> None:
    verdicts = [Verdict("split"), Verdict("fell back", missing=("a.b.c",)), Verdict("wrong", "why")]
    records = [Record("add", at, "forward", (2,), it) for at, it in enumerate(verdicts)]
    text = render(records, ["add", "nonzero"])
    assert "1 of 2 OpInfos, 3 programs, 3 runs, 1 failed" in text
    assert "left out, because the shape of the result depends on values: nonzero" in text
    assert "     1  a.b.c" in text
    assert text.endswith("add[2] forward on [2]: wrong: why")
    assert failed(records) == records[2:]
