"""`diff`: what lies otherwise, and what that changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import autopar
from autopar.base.errors import InvalidInputError
from autopar.compiled import CompiledModel
from tests.cli import command


def compiled(strategy: str, mesh: str = "tp=4") -> CompiledModel:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    return autopar.compile(layers, torch.ones(32, 64), mesh=mesh, strategy=strategy)


def test_equal_programs_lie_alike() -> None:
    found = autopar.diff(compiled("tensor:tp"), compiled("tensor:tp"))
    assert found.layouts == ()
    assert found.prices[0] == found.prices[1]
    assert str(found).endswith(f"all {found.values} values lie alike")


def test_layouts_collectives_and_seconds() -> None:
    found = autopar.diff(compiled("tensor:tp"), compiled("data:tp"))
    changed = {each.name: (each.first, each.second) for each in found.layouts}
    assert changed["0.weight"] == ("[256@tp, 64]", "[256, 64]")
    assert changed["input"] == ("[32, 64]", "[32@tp, 64]")
    (total,) = found.collectives[0]
    assert (total.kind, total.count, total.bytes) == ("all_reduce", 1, 32 * 64 * 4)
    assert found.collectives[1] == ()
    assert found.prices[0].communication_seconds > found.prices[1].communication_seconds == 0
    assert found.prices[0].peak_bytes < found.prices[1].peak_bytes
    text = str(found)
    assert "all_reduce over tp 1 x, 8.0 KiB -" in " ".join(text.split())
    assert "%0.weight" in text


SHOWN = """\
first against second: tp=4, predicted for h100

                                   first     second
  seconds, one after another       8.07 us   56.1 ns
  seconds, sums beside other work  8.07 us   56.1 ns
  seconds of communication         8.04 us   0 s
  communicated                     8.0 KiB   0 B
  peak memory                      88.5 KiB  147.2 KiB

  collective          first         second
  all_reduce over tp  1 x, 8.0 KiB  -

9 of 10 values in both lie otherwise
  %0.weight   [256@tp, 64]  [256, 64]
  %0.bias     [256@tp]      [256]
  %2.weight   [64, 256@tp]  [64, 256]
  %input      [32, 64]      [32@tp, 64]
  %0.t        [64, 256@tp]  [64, 256]
  %0.addmm    [32, 256@tp]  [32@tp, 256]
  %1.relu     [32, 256@tp]  [32@tp, 256]
  %2.t_1      [256@tp, 64]  [256, 64]
  %2.addmm_1  [32, 64]      [32@tp, 64]"""


def test_how_it_reads() -> None:
    found = autopar.diff(compiled("tensor:tp"), compiled("data:tp"), cluster="h100")
    assert str(found) == SHOWN
    assert max(map(len, str(found).splitlines())) <= 80


def test_different_models_are_said_to_be() -> None:
    other = autopar.compile(nn.Linear(64, 64), torch.ones(32, 64), mesh="tp=4", strategy="data:tp")
    text = str(autopar.diff(compiled("data:tp"), other))
    assert text.startswith("these are different models: Sequential and Linear\n")
    assert "different models" not in str(autopar.diff(other, other))


def test_other_meshes_and_another_cluster() -> None:
    found = autopar.diff(
        compiled("data:dp,tensor:tp", "dp=2,tp=2"), compiled("tensor:tp"), cluster="h100"
    )
    assert "against tp=4, predicted for h100" in str(found)


def test_the_command(tmp_path: Path) -> None:
    build = command.compiled(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    shown = command.autopar("diff", build, command.compiled(other, "--strategy", "data:0"))
    assert shown.exit_code == 0, shown.output
    assert "%enc.0.weight [16, 32@d1] [16, 32]" in " ".join(shown.output.split())
    missing = command.autopar("diff", build, tmp_path / "none")
    assert missing.exit_code == 1
    assert "none doesn't exist" in missing.output


def test_what_is_no_build(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError):
        autopar.diff(tmp_path, tmp_path)
