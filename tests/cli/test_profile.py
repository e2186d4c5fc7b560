"""What `profile` shows of a model and of a build."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import WORDS, autopar, refusal

PRODUCTS = 2 * 2 * 8 * 16 * 32


def shown(*words: str) -> str:
    done = autopar("profile", *words)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    return done.stdout


def test_a_build_and_its_model_cost_the_same(here: Path) -> None:
    of_build = shown("build", "--json", "build.json")
    lines = of_build.splitlines()
    assert lines[0] == "model: rank 0 of 8 (d0=2 x d1=4), on cpu"
    assert lines[1].startswith(f"compute  {PRODUCTS / 8000:.3g} KFLOP; ")
    assert any("comm.all_reduce" in line for line in lines)
    assert shown("model.onnx", *WORDS) == of_build
    (found,) = json.loads((here / "build.json").read_text())
    assert found["flops"] == PRODUCTS // 8
    assert len(found["nodes"]) == 5


def test_flops_are_those_of_inspect(here: Path) -> None:
    """Both count products only, as torch's counter does."""
    inspected = autopar("inspect", "build", "--format", "json")
    found = json.loads(inspected.stdout)
    assert (found["flops_serial"], found["flops_max"]) == (PRODUCTS, PRODUCTS // 8)


def test_a_model_on_one_device(here: Path) -> None:
    found = shown("model.onnx", "--dims", "batch=8", "--cluster", "h100", "--top", "1")
    lines = found.splitlines()
    assert lines[0] == "model, on h100"
    assert lines[1].startswith(f"compute  {PRODUCTS / 1000:.3g} KFLOP; ")
    assert "links" not in found


@pytest.mark.parametrize("words", [["profile", "build", "--json"], ["plan", "build", "-o"]])
@pytest.mark.parametrize(
    ("place", "why"), [("no/file", "there is no folder no"), ("build", "it is a folder")]
)
def test_files_that_cannot_be_written(here: Path, words: list[str], place: str, why: str) -> None:
    before = sorted(here.iterdir())
    message = refusal(autopar(*words, place), 1)
    assert message == f"can't write {place}: {why}; choose another file"
    assert sorted(here.iterdir()) == before


def test_options_that_do_not_fit(here: Path) -> None:
    done = autopar("profile", "build", "--mesh", "2x4")
    assert (done.exit_code, "rules out --mesh" in done.stderr) == (2, True)
    done = autopar("profile", "model.onnx", "--strategy", "data:0")
    assert (done.exit_code, "rules out --strategy" in done.stderr) == (2, True)


def test_a_minus_is_standard_output(here: Path) -> None:
    """Nothing else is written there, so that a pipe reads JSON or YAML."""
    (found,) = json.loads(shown("build", "--json", "-"))
    assert found["flops"] == PRODUCTS // 8
    plan = autopar("plan", "build", "-o", "-")
    assert (plan.exit_code, plan.stdout) == (0, autopar("plan", "build").stdout)
    assert not (here / "-").exists()


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["compile", "model.onnx", *WORDS, "-o", "-"], 2, "a build is a folder; name one"),
        (["run", "build", "--random-inputs", "0", "--output", "-"], 1, "must end in .npz"),
    ],
)
def test_what_standard_output_is_not_for(here: Path, words: list[str], code: int, why: str) -> None:
    assert why in refusal(autopar(*words), code)
    assert not (here / "-").exists()
