"""Random programs under random meshes, strategies and pins: all ranks compute what one does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from autopar.pipeline import compile_program, write
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights
from tests.fuzz.programs import Case, random_case
from tests.runtime.execute.targets import run_program
from tests.runtime.job.real import run_ranks

TOLERANCE = 1e-7


def differences(case: Case, folder: Path) -> list[str]:
    """Returns the outputs in which all ranks together differ from one device."""
    expected = run_serial(case.program, case.weights, case.inputs)
    compiled = compile_program(case.program, case.options)
    write_weights(folder / "weights", case.weights)
    with WeightFile(folder / "weights") as file:
        found = VirtualMesh(compiled.deployment, file).run(case.inputs)
    return [
        f"{label}: {found[label]} instead of {tensor}"
        for label, tensor in expected.items()
        if not equal(found[label], tensor)
    ]


def equal(found: Tensor, expected: Tensor) -> bool:
    """Returns whether two tensors are equal up to the order of sums."""
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return False
    if not expected.is_floating_point():
        return torch.equal(found, expected)
    finite = expected[torch.isfinite(expected)]
    scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    return torch.allclose(found, expected, TOLERANCE, TOLERANCE * scale, equal_nan=True)


@pytest.mark.parametrize("first", range(0, 80, 10))
def test_all_ranks_compute_what_one_device_does(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        assert not differences(random_case(seed), tmp_path), f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 4000, 50))
def test_many_more(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 50):
        assert not differences(random_case(seed), tmp_path), f"seed {seed}"


REAL_SEEDS = tuple(range(5000, 5012))


@pytest.mark.slow
@pytest.mark.parametrize("seed", REAL_SEEDS)
def test_real_processes(seed: int, tmp_path: Path) -> None:
    case = random_case(seed)
    expected = run_serial(case.program, case.weights, case.inputs)
    build = tmp_path / "build"
    write(compile_program(case.program, case.options), case.weights, build)
    outcomes = run_ranks(case.options.mesh.size, run_program, [build], case.inputs)
    assert not any(isinstance(outcome, str) for outcome in outcomes), outcomes
    for label, tensor in expected.items():
        assert equal(torch.as_tensor(outcomes[0][0][label]), tensor), label
