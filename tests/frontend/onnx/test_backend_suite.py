"""onnx's backend suite: every case is right, or refused for a reason that is listed here."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from autopar.frontend.onnx import import_onnx
from autopar.frontend.onnx.problems import ModelError
from autopar.ir.errors import InvalidInputError
from autopar.runtime.serial import run_serial
from tests.frontend.onnx.backend_cases import Case, as_tensor, cases, difference, freeze, run_steps

SAMPLE = 160

REASONS = (
    "depends on the program's inputs",
    "has no place in a program",
    "is a sequence",
    "its condition is only known at run time, and it returns no plain tensors",
    "decode images",
    "texts are turned into numbers",
    "strings",
    "STRING",
    "ai.onnx.ml.",
    "ai.onnx.preview.training.",
)
"""Why cases are refused."""


@pytest.fixture(scope="module")
def suite() -> list[Case]:
    return sorted(cases(), key=lambda case: case.name)


def test_sample(suite: list[Case], tmp_path: Path) -> None:
    right, wrong = 0, []
    for case in random.Random(0).sample(suite, SAMPLE):
        try:
            found = difference(case, run_steps(*freeze(case, tmp_path)))
        except ModelError as error:
            found = "" if any(reason in str(error) for reason in REASONS) else str(error)
        else:
            right += not found
        if found:
            wrong.append(f"{case.name}: {found}")
    assert not wrong, "\n".join(wrong)
    assert right > 0.9 * SAMPLE


@pytest.mark.slow
def test_whole_suite_through_programs(suite: list[Case], tmp_path: Path) -> None:
    torch.set_num_threads(1)
    right, wrong = 0, []
    for case in suite:
        try:
            path, free = freeze(case, tmp_path)
            result = import_onnx(path, input_shapes={n: a.shape for n, a in free.items()})
            arrays = {name: as_tensor(array) for name, array in free.items()}
            found = difference(case, run_serial(result.program, result.weights, arrays))
        except InvalidInputError as error:
            found = "" if any(reason in str(error) for reason in REASONS) else str(error)
        else:
            right += not found
        if found:
            wrong.append(f"{case.name}: {found}")
    assert not wrong, "\n".join(wrong)
    assert right > 1600
