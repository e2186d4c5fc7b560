"""What is said of chunks that a user wants: what they save and take, and what isn't in parts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar import annotate
from autopar.base.units import human_bytes, human_seconds
from autopar.compiled import CompiledModel
from autopar.cost import peak_rank_timeline
from tests.cli.command import WORDS, two_layers
from tests.cli.command import autopar as command

ROWS, WIDTH, CLASSES = 40, 8, 2000


class Head(nn.Module):
    """A perceptron, scores of many classes, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.pre, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.head(torch.relu(self.pre(x))), target)


class Marked(Head):
    """The same with scores that the model marks."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        scores = annotate.chunk(self.head(torch.relu(self.pre(x))), 0, 4)
        return F.cross_entropy(scores, target)


def compiled(
    chunks: Any, mesh: str = "1", module: nn.Module | None = None, rows: int = ROWS, **said: Any
) -> CompiledModel:
    module = module or Head()
    x = torch.zeros(rows, WIDTH, dtype=next(module.parameters()).dtype)
    batch = x, torch.zeros(rows, dtype=torch.int64)
    return autopar.compile(
        module,
        batch,
        mesh=mesh,
        training_step=lambda each, given: each(*given),
        optimizer=torch.optim.SGD(module.parameters(), 0.1),
        chunks=chunks,
        **said,
    )


def remarks(step: CompiledModel) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in step.report:
        if entry.category == "chunk":
            found.setdefault(entry.subject, []).append(entry.detail)
    return found


def test_figures_are_those_of_the_programs_without_and_with() -> None:
    whole, step = compiled({}), compiled({"head": 8})
    before, after = (peak_rank_timeline(each.partitioned).peak_bytes for each in (whole, step))
    more = step.price().seconds - whole.price().seconds
    (effect,) = remarks(step)["chunks['head']"]
    held = f"{human_bytes(before)} -> {human_bytes(after)}"
    assert effect == f"one device holds {held}, in {human_seconds(more)} more"
    (loop,) = remarks(step)["head"]
    assert re.fullmatch(
        r"\d+ ops in 8 parts over dimension 0 of %head\.addmm_1, one after another", loop
    )


@pytest.mark.parametrize("mesh", ["3", "2x2"])
def test_a_mesh_changes_no_figure_of_one_device(mesh: str) -> None:
    alone = remarks(compiled({"head": 8}))["chunks['head']"]
    assert remarks(compiled({"head": 8}, mesh))["chunks['head']"] == alone


@pytest.mark.parametrize(
    ("wanted", "parts"),
    [(1_000_000, "40 parts instead of 1000000"), (7, "7 parts over"), (12, "10")],
)
def test_parts_are_those_that_there_are(wanted: int, parts: str) -> None:
    """40 rows are in no 12 parts of whole rows, that are alike: 4 rows each make 10."""
    (loop,) = remarks(compiled({"head": wanted}))["head"]
    assert f"ops in {parts}" in loop
    assert ("instead of" in loop) == (wanted != 7)


def test_of_what_a_limit_decides_no_number_was_asked_for() -> None:
    """Of 16 parts there are 14, of 3 rows each."""
    ((loop,),) = remarks(compiled(None, memory="260KiB")).values()
    assert "ops in 14 parts over dimension 0" in loop


def test_a_pattern_cuts_what_can_be_cut() -> None:
    """The loss has no dimension; scores follow from what is in front of them."""
    step = compiled({"*": 8})
    found = remarks(step)
    effect, left = found["chunks['*']"]
    assert "->" in effect
    assert re.match(r"\d of \d+ modules and values that match aren't in 8 parts: ", left)
    assert "'loss': it has no dimension of two or more elements" in left
    assert peak_rank_timeline(step.partitioned).peak_bytes < (
        peak_rank_timeline(compiled({}).partitioned).peak_bytes
    )


def test_a_pattern_is_refused_if_nothing_can_be_cut() -> None:
    with pytest.raises(autopar.AutoparError, match=r"chunks\['\*'\]: none of \d+ modules and"):
        compiled({"*": (7, 4)})


def test_what_a_model_marks_is_told_apart_from_pins() -> None:
    found = remarks(compiled({"pre": 4}, module=Marked()))
    places = [name for name, details in found.items() if "one device holds" in details[0]]
    mark, *others = places
    assert mark.endswith(": annotate.chunk")
    assert others in ([], ["chunks['pre']"])


def test_a_peak_that_rises_is_pointed_out() -> None:
    """Gradients of weights of 16 bits are added up in 32, which is more than scores of 2 rows."""

    def step(chunks: Any) -> CompiledModel:
        return compiled(chunks, module=Head().bfloat16(), rows=2)

    whole, parts = step({}), step({"head": 2})
    peaks = [peak_rank_timeline(each.partitioned).peak_bytes for each in (whole, parts)]
    (effect,) = remarks(parts)["chunks['head']"]
    assert peaks[1] > peaks[0]
    assert "holds more in parts than as a whole" in effect
    assert "leave it out" in effect


def test_what_a_limit_chooses_has_one_remark() -> None:
    limit = peak_rank_timeline(compiled({}).partitioned).peak_bytes // 2
    step = compiled(None, memory=limit)
    assert step.options.chunks
    assert not [each for details in remarks(step).values() for each in details if "->" in each]
    assert [entry for entry in step.report if entry.subject == "chunks"]


def test_the_command_says_it_too(tmp_path: Path) -> None:
    onnx.save(two_layers(), tmp_path / "model.onnx")
    words = [*WORDS, "--chunks", "*=8", "-o", str(tmp_path / "build")]
    done = command("compile", str(tmp_path / "model.onnx"), *words)
    assert done.exit_code == 0, done.output
    assert "--chunks *=8: one device holds" in done.stdout


def test_parts_of_microbatches_that_save_nothing_are_warned_of() -> None:
    """A microbatch of few rows isn't smaller in parts."""
    wide = Head()
    wide.pre, wide.head = nn.Linear(WIDTH, 256), nn.Linear(256, CLASSES)
    step = compiled({"head": 8}, module=wide, rows=4, accumulate=2)
    (effect,) = (each.detail for each in step.report if each.subject == "chunks['head']")
    assert effect.startswith("one device holds as much in parts as as a whole, in one of 2 micro")
    assert effect.endswith("or leave it out")
    with pytest.raises(autopar.AutoparError, match=r", in one of 4 microbatches; name another"):
        compiled({"head": 8}, rows=4, accumulate=4)
