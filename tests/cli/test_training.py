"""The commands on a build that trains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autopar.ir.build import read_build
from tests.cli.command import autopar
from tests.runtime.training import LAYOUTS, Reference, batches, training_build


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training") / "build"
    return training_build(folder, LAYOUTS[5], fetch=["up.weight"])


@pytest.mark.parametrize("how", [["--virtual"], []])
def test_run_does_one_step(build: Path, tmp_path: Path, how: list[str]) -> None:
    x, target = batches(1)[0]
    np.savez(tmp_path / "batch.npz", x=x.numpy(), target=target.numpy())
    done = autopar("run", build, "--input", tmp_path / "batch.npz", *how)
    loss = Reference.of_seed().step((x, target))
    assert (done.exit_code, done.output) == (
        0,
        f"loss: float32[] {loss:g}\ngrad/up.weight: float32[8, 4]\n",
    )


def test_run_shows_new_state_if_asked(build: Path, tmp_path: Path) -> None:
    words = ["--virtual", "--random-inputs", 0, "--updates", "--output", tmp_path / "out.npz"]
    done = autopar("run", build, *words)
    assert "step/up.weight: float32[] 1\n" in done.output
    with np.load(tmp_path / "out.npz") as outputs:
        assert outputs["exp_avg/down.weight"].shape == (5, 8)


def test_verify_compares_new_state_too(build: Path) -> None:
    done = autopar("verify", build)
    assert done.exit_code == 0, done.output
    compared = [line.split()[0] for line in done.output.splitlines() if line.endswith(" ok")]
    ports = read_build(build).serial.signature.outputs
    assert compared == [port.label for port in ports]
    assert {"loss", "up.weight", "mean", "exp_avg/up.weight"} <= set(compared)


def test_inspect_says_what_the_optimizer_takes(build: Path) -> None:
    done = autopar("inspect", build)
    assert "state    340 B per rank of 628 B of the optimizer (54.1%)\n" in done.output
