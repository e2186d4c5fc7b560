"""The commands on a build that trains."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from autopar.ir.program import Op
from autopar.modules import compile as autopar_compile
from tests.cli.command import autopar, rebuilt
from tests.runtime.training.steps import LAYOUTS, Reference, batches, training_build


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


def test_verify_sums_up_gradients_and_new_state(build: Path) -> None:
    done = autopar("verify", build)
    assert done.exit_code == 0, done.output
    rows = [line.split("  ")[1] for line in done.output.splitlines() if line.endswith(" ok")]
    counts = ("gradients (3)", "parameters (3)", "buffers (1)", "exp_avg (3)", "exp_avg_sq (3)")
    assert {row.strip() for row in rows} == {"loss", *counts, "step (3)"}


def test_verify_allows_gradients_that_are_nothing_but_rounding(tmp_path: Path) -> None:
    """A softmax takes no notice of a number added to all its inputs, but Adam moves the number."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.shift = nn.Linear(8, 6), nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(self.up(x) + self.shift, 1)

    model = Shifted()
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    example = (torch.ones(8, 8), torch.ones(8, 6))
    step = autopar_compile(model, example, mesh="4", loss=nn.MSELoss(), optimizer=adam)
    step.save(tmp_path / "build")
    done = autopar("verify", tmp_path / "build")
    assert done.exit_code == 0, done.output


def test_verify_finds_what_is_wrong_with_a_tiny_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a ten millionth of the others, and still no rounding error."""

    class Faint(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.faint = nn.Linear(4, 5), nn.Parameter(torch.ones(4, 5))

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.up(x) + 1e-7 * torch.tanh(x @ self.faint)
            return found

    def straight(op: Op) -> Op:
        if op.kind != "aten.tanh_backward.default":
            return op
        args = (("self", op.arg("grad_output")), ("other", 0.9))
        return replace(op, kind="aten.mul.Tensor", args=args)

    torch.manual_seed(0)
    model = Faint()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    example = (torch.ones(6, 4), torch.ones(6, 5))
    step = autopar_compile(model, example, mesh="2", loss=nn.MSELoss(), optimizer=sgd)
    step.save(tmp_path / "build")
    monkeypatch.chdir(tmp_path)
    rebuilt("wrong", straight)
    assert autopar("verify", "build").exit_code == 0
    done = autopar("verify", "wrong")
    assert done.exit_code == 1
    assert re.search(r"^  grad/faint .* DIFFERENT$", done.output, re.MULTILINE)
    assert not re.search(r"^  grad/up.weight .* DIFFERENT$", done.output, re.MULTILINE)


def test_verify_names_a_wrong_gradient(
    build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(build, tmp_path / "build")
    monkeypatch.chdir(tmp_path)

    def halved(op: Op) -> Op:
        if op.kind != "aten.threshold_backward.default":
            return op
        args = (("self", op.arg("grad_output")), ("other", 0.5))
        return replace(op, kind="aten.mul.Tensor", args=args)

    rebuilt("wrong", halved)
    done = autopar("verify", "wrong")
    assert done.exit_code == 1
    assert re.search(r"^  gradients \(3\) .* DIFFERENT$", done.output, re.MULTILINE)
    assert re.search(r"^  grad/up.weight .* DIFFERENT$", done.output, re.MULTILINE)
    assert not re.search(r"^  parameters .* DIFFERENT$", done.output, re.MULTILINE)


def test_inspect_says_what_the_optimizer_takes(build: Path) -> None:
    done = autopar("inspect", build)
    assert "state    340 B per rank of 628 B of the optimizer (54.1%)\n" in done.output
