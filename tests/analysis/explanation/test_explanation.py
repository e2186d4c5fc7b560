"""`explain`: reasons end where somebody said something; prices are those of what is run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import autopar
from autopar.analysis.explanation import Explanation
from autopar.base.errors import InvalidInputError
from autopar.compiled import CompiledModel
from tests.cli import command


class Layers(nn.Module):
    """Two matrix products with a softmax behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(256, 1024, bias=False)
        self.down = nn.Linear(1024, 256, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.down(torch.relu(self.up(x))), -1)


@pytest.fixture(scope="module")
def layers() -> CompiledModel:
    options = {"mesh": "dp=2,tp=4", "strategy": "data:dp,tensor:tp", "cluster": "h100"}
    return autopar.compile(Layers(), torch.ones(512, 256), **options)


def test_a_chain_leads_from_a_result_to_what_was_pinned(layers: CompiledModel) -> None:
    found = autopar.explain(layers, "output", alternatives=False)
    assert isinstance(found, Explanation)
    assert list(found.reasons) == ["dp"]
    chain = found.reasons["dp"]
    assert chain[0].subject == f"%{found.value.name}"
    assert (chain[-1].subject, chain[-1].kind, chain[-1].detail) == ("%x", "preset", "data:dp")
    assert {reason.kind for reason in chain[:-1]} <= {"implied", "chosen"}
    assert "tests/analysis/explanation/test_explanation.py" in str(found)


def test_each_axis_has_a_chain_of_its_own(layers: CompiledModel) -> None:
    (relu,) = (op for op in layers.serial.main.ops if "relu" in op.kind)
    found = autopar.explain(layers, relu.results[0], alternatives=False)
    assert found.reasons["dp"][-1].subject == "%x"
    assert found.reasons["tp"][-1].subject == "%up.weight"


def test_alternatives_are_completed_anew(layers: CompiledModel) -> None:
    """Swapping columns and rows costs more; the present layout is what the program has."""
    found = autopar.explain(layers, "up.weight")
    prices = {row.text: row.price for row in found.alternatives}
    assert len(prices) == 9
    (present,) = (row for row in found.alternatives if row.present)
    assert present.text == "[1024@tp, 256]"
    assert present.price is not None
    whole = prices["[1024, 256]"]
    assert whole is not None
    assert whole.peak_bytes > present.price.peak_bytes
    seconds = [price.seconds for price in prices.values() if price]
    assert seconds == sorted(seconds)


def test_an_alternative_costs_what_pinning_it_costs(layers: CompiledModel) -> None:
    options = {"mesh": "dp=2,tp=4", "strategy": "data:dp,tensor:tp", "cluster": "h100"}
    inputs = torch.ones(512, 256)
    pinned = autopar.compile(Layers(), inputs, shard={"up.weight": [None, "tp"]}, **options)
    foretold = {row.text: row.price for row in autopar.explain(layers, "up.weight").alternatives}
    assert foretold["[1024, 256@tp]"] == autopar.explain(pinned).price


def test_choices_of_an_op_are_priced(layers: CompiledModel) -> None:
    ops = [op for op in layers.completed.main.ops if "mm" in op.kind]
    found = autopar.explain(layers, ops[0].results[0])
    assert found.rule.endswith("-> m n")
    texts = [row.text for row in found.alternatives]
    assert "m@dp, n@tp" in texts
    assert "alike by every process" in texts
    assert len(texts) == len(set(texts)) == 16


def test_an_op_without_a_name_is_the_one_of_its_result(layers: CompiledModel) -> None:
    (found,) = (op for op in layers.serial.main.ops if "relu" in op.kind)
    assert autopar.explain(layers, f"%{found.results[0]}", alternatives=False).op == found


def test_communication_is_listed_by_line_with_the_most_expensive_first() -> None:
    compiled = autopar.compile(
        Layers(), torch.ones(8, 256), mesh="tp=2", strategy="tensor:tp", cluster="cpu"
    )
    found = autopar.explain(compiled)
    (line,) = found.expenses
    assert (line.kind, line.axes, line.count, line.bytes) == ("all_reduce", ("tp",), 1, 8 * 256 * 4)
    assert line.algorithm == "tree on host"
    assert Path(line.loc.file).name == "test_explanation.py"
    assert found.price.communication_seconds == pytest.approx(line.seconds)
    assert found.price.overlapped_seconds <= found.price.seconds
    assert "all_reduce over tp (tree on host), 8.0 KiB, forward" in str(found)


def test_what_a_build_explains_is_what_was_compiled(layers: CompiledModel, tmp_path: Path) -> None:
    layers.save(tmp_path / "build")
    assert str(autopar.explain(tmp_path / "build")) == str(autopar.explain(layers))
    again = autopar.explain(tmp_path / "build", "up.weight")
    assert str(again) == str(autopar.explain(layers, "up.weight"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("up.wieght", "there is no value 'up.wieght'; did you mean up.weight"),
        ("w", "'w' is in "),
        ("zzz", "`autopar inspect BUILD --serial` shows all names"),
    ],
)
def test_names_that_nothing_has(layers: CompiledModel, name: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        autopar.explain(layers, name)
    assert message in str(error.value)


def test_the_command(tmp_path: Path) -> None:
    build = command.compiled(tmp_path)
    shown = command.autopar("explain", build)
    assert shown.exit_code == 0
    assert "the most expensive first (1 in all)" in shown.output
    assert "model.onnx: second" in shown.output
    weight = command.autopar("explain", build, "enc.0.weight")
    assert "which is preset: tensor:d1" in weight.output
    assert "as it is" in weight.output
    by_node = command.autopar("explain", build, "relu", "--no-alternatives")
    assert by_node.output.startswith("%a: f32[8, 32], made by aten.relu.default at ")
    unknown = command.autopar("explain", build, "enc.2.weight")
    assert unknown.exit_code == 1
    assert "did you mean enc.1.weight" in unknown.output
