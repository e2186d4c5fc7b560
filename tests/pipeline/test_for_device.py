"""Programs for a device: ops of another one are replaced, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, scaled_dot_product_attention

import autopar
from autopar.analysis.reports.summary import render_summary, summarize
from autopar.base.errors import InvalidInputError
from autopar.ir.builds.files import read_build
from autopar.ir.devices import CPU, CUDA
from autopar.ir.expr.expression import Expr
from autopar.ir.ops.on_devices import NEUTRAL
from autopar.ir.text import parse_program, print_program
from autopar.pipeline import CompileOptions
from autopar.pipeline.for_device import for_device
from autopar.runtime.verification.on_fake_device import obstacles

OWN, BACKWARD = NEUTRAL
HEADS = "f32[2, 3, 4, 8]"

PROGRAM = f"""
program "attended" serial

func main {{
  input     %q: {HEADS}
  input     %dy: {HEADS}
  %y: {HEADS}, %lse: f32[2, 3, 4] = {OWN}(query=%q, key=%q, value=%q, is_causal=true)
  %dq: {HEADS}, %dk: {HEADS}, %dv: {HEADS} = {BACKWARD}(grad_out=%dy, query=%q, key=%q,\
 value=%q, out=%y, logsumexp=%lse, dropout_p=0.0, is_causal=true)
  return %dq, %dk, %dv
}}
"""


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(24, 72)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.project(x).unflatten(-1, (3, 6, 4)).permute(2, 0, 3, 1, 4)
        out = scaled_dot_product_attention(*heads, is_causal=True)
        return out.transpose(1, 2).flatten(-2)


def test_ops_of_the_cpus_own_are_replaced() -> None:
    program = parse_program(PROGRAM)
    found = for_device(program, CUDA)
    expected = PROGRAM.replace(BACKWARD, "autopar.attention_backward")
    expected = expected.replace(OWN, "autopar.attention")
    assert print_program(found) == print_program(parse_program(expected))
    assert for_device(program, CPU) is program


def test_ops_that_nothing_replaces_are_refused_by_name() -> None:
    op = 'aten.histogram.bin_ct(self=%x, bins=5) loc("m.py", 7)'
    text = PROGRAM[: PROGRAM.index("{")] + (
        f"{{\n  input     %x: f32[9]\n  %y: f32[5], %edges: f32[6] = {op}\n  return %y\n}}\n"
    )
    with pytest.raises(InvalidInputError) as refused:
        for_device(parse_program(text), CUDA)
    assert str(refused.value) == (
        "attended can't be compiled for cuda: only the CPU has kernels for\n"
        "  aten.histogram.bin_ct at m.py:7\n"
        "write the model without them, or compile it with device='cpu'"
    )


@pytest.mark.parametrize(
    ("said", "device"),
    [
        ({}, CPU),
        ({"cluster": "h100"}, CUDA),
        ({"cluster": "torus"}, CPU),
        ({"cluster": "mi300x", "device": CPU}, CPU),
        ({"device": CUDA}, CUDA),
    ],
)
def test_the_device_is_what_the_cluster_has(said: dict[str, str], device: str) -> None:
    assert CompileOptions.from_arguments(mesh="2", **said).device == device  # type: ignore[arg-type]


def test_there_is_no_other_device() -> None:
    with pytest.raises(InvalidInputError, match="device='tpu': give 'cpu' or 'cuda'"):
        CompileOptions.from_arguments(mesh="2", device="tpu")


@pytest.mark.parametrize("mesh", ["1", "3", "a=3,b=2"])
def test_a_step_for_gpus_trains_as_one_for_cpus(mesh: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Attending()
    batch = torch.randn(5, 7, 24), torch.randn(5, 7, 24)
    losses = {}
    for device in (CPU, CUDA):
        made = autopar.compile(
            model,
            batch,
            loss=mse_loss,
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
            mesh=mesh,
            device=device,
        )
        made.save(tmp_path / device)
        assert read_build(tmp_path / device).manifest.device == device
        kinds = {op.kind for op in made.partitioned.main.ops}
        assert (OWN in kinds, "autopar.attention" in kinds) == (device == CPU, device == CUDA)
        with autopar.load(tmp_path / device, virtual=True) as trainer:
            losses[device] = [trainer.step(batch).item() for _ in range(3)]
    torch.testing.assert_close(losses[CUDA], losses[CPU], rtol=1e-6, atol=0)


def test_processes_without_gpus_refuse_a_build_for_them(tmp_path: Path) -> None:
    autopar.compile(Attending(), torch.randn(2, 3, 24), mesh=1, device=CUDA).save(tmp_path / "b")
    with pytest.raises(autopar.AutoparError, match="was compiled for cuda, but this rank computes"):
        autopar.load(tmp_path / "b", backend="gloo")


def test_a_summary_says_what_a_program_is_for(tmp_path: Path) -> None:
    for device in (CPU, CUDA):
        made = autopar.compile(Attending(), torch.randn(2, 3, 24), mesh=2, device=device)
        made.save(tmp_path / "b")
        assert made.summary() == render_summary(summarize(tmp_path / "b"))
        assert ("device   cuda" in made.summary().splitlines()) == (device == CUDA)


@pytest.mark.parametrize(
    ("cluster", "device", "said"),
    [
        (None, CUDA, "figures  those of cluster cpu, which has no cuda: times"),
        ("h100", CPU, "figures  those of cluster h100, which has no cpu: times"),
        ("h100", CUDA, ""),
        (None, None, ""),
    ],
)
def test_a_summary_says_whose_figures_it_has(
    cluster: str | None, device: str | None, said: str
) -> None:
    made = autopar.compile(
        Attending(), torch.randn(2, 3, 24), mesh=2, device=device, cluster=cluster or "cpu"
    )
    found = [line for line in made.summary().splitlines() if line.startswith("figures")]
    assert [line.startswith(said) for line in found] == [True] * bool(said)


ROWS, HEAD_ROWS = (-1, -1, "a", -1), (-1, "a", "b", -1)


@pytest.mark.parametrize(
    ("mesh", "pins"),
    [
        ("a=3", dict.fromkeys(("getitem", "getitem_3", "getitem_5"), ROWS)),
        ("a=2,b=3", dict.fromkeys(("getitem", "getitem_3", "getitem_5"), HEAD_ROWS)),
    ],
)
def test_queries_of_causal_attention_are_split(
    mesh: str, pins: dict[str, tuple[object, ...]], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Attending()
    batch = torch.randn(2, 11, 24), torch.randn(2, 11, 24)
    losses = []
    for said in ({"mesh": 1}, {"mesh": mesh, "shard": pins}):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        given: Any = {"loss": mse_loss, "optimizer": optimizer, "strategy": "none", **said}
        made = autopar.compile(model, batch, device=CUDA, **given)
        made.save(tmp_path / "build")
        with autopar.load(tmp_path / "build", virtual=True) as trainer:
            losses.append([trainer.step(batch).item() for _ in range(3)])
    firsts = [op.arg("first") for op in made.partitioned.main.ops if "attention" in op.kind]
    assert any(isinstance(first, Expr) for first in firsts)
    assert "aten.triu.default" not in {op.kind for op in made.partitioned.main.ops}
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=0)
    assert obstacles(made.deployment) == ()
