"""Runs of programs whose sizes are open: on all ranks, and on one device, at many sizes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import torch

from autopar.ir.deployment import Deployment
from autopar.ir.expr.at_sizes import at_sizes
from autopar.ir.program import Program
from autopar.ir.used_sizes import used_sizes
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.ports.open_inputs import deployment_at
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights
from tests.partition.test_random_programs import arrays

SIZES = (0, 1, 2, 5, 7, 12)
TRIES = 4
WEIGHTS = ("w", "table")


def some_sizes(program: Program, seed: int) -> list[dict[str, int]]:
    """Draws sizes, the smallest ones first."""
    rng = random.Random(seed)
    sizes = used_sizes(program)
    least = {size.name: size.least for size in sizes}
    drawn = [{s.name: max(rng.choice(SIZES), s.least) for s in sizes} for _ in range(TRIES)]
    return [least, dict.fromkeys(least, 1), *drawn]


def assert_same(
    found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor], what: object
) -> None:
    for name, expected in wanted.items():
        assert found[name].shape == expected.shape, (what, name)
        scale = max([1.0, *expected.abs().flatten().tolist()])
        assert torch.allclose(found[name], expected, rtol=0, atol=1e-4 * scale), (what, name)


def check_at_sizes(program: Program, deployment: Deployment, seed: int, folder: Path) -> None:
    """Checks that all ranks compute what one device does, at sizes drawn by a seed.

    Args:
        program: A program of `random_program` whose sizes are open.
        deployment: What the ranks run.
        seed: What sizes and tensors follow from.
        folder: Where weights are written.
    """
    weights: dict[str, torch.Tensor] = {}
    for sizes in some_sizes(program, seed):
        serial = at_sizes(program, sizes)
        given = arrays(serial, seed)
        drawn = {name: given.pop(name) for name in WEIGHTS}
        if not weights:
            weights = drawn
            write_weights(folder / "weights", weights)
        wanted = run_serial(serial, weights, given)
        with WeightFile(folder / "weights") as file:
            found = VirtualMesh(deployment_at(deployment, sizes), file).run(given)
        assert_same(found, wanted, sizes)
