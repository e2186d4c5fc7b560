"""The table of presets is what search, docs and help say of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from autopar.cli import main
from autopar.completion.presets.preset import Preset
from autopar.completion.presets.table import BY_NAME, INCUMBENTS, KEEPING, PRESETS, preset_of
from autopar.completion.search.incumbents import leanest, strategies
from autopar.ir.mesh import ProcessMesh

DOCS = Path(__file__).parents[3] / "docs" / "training.md"
MESH = ProcessMesh([[0, 1], [2, 3]], ["dp", "tp"])


def test_no_word_means_two_presets() -> None:
    assert len(BY_NAME) == sum(1 + len(preset.aliases) for preset in PRESETS)


@pytest.mark.parametrize("preset", PRESETS, ids=str)
def test_the_tutorial_lists_each_with_what_it_splits(preset: Preset) -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {frozenset(re.findall("`([^`]+)`", names)): splits for names, splits in rows}
    assert listed[frozenset((preset.name, *preset.aliases))] == preset.splits


def test_help_names_presets() -> None:
    text = CliRunner().invoke(main, ["compile", "--help"], terminal_width=1000).output
    (listed,) = re.findall(r"what each mesh axis splits: (.*?)\. An axis", text)
    assert all(word.split()[0] in BY_NAME for word in re.sub(r"\([^)]*\)", "", listed).split(", "))


@pytest.mark.parametrize("preset", PRESETS, ids=str)
def test_what_a_preset_stands_beside_is_one(preset: Preset) -> None:
    assert not preset.beside or preset.beside in BY_NAME


def test_search_tries_the_usual_ones_first() -> None:
    assert len({preset.incumbent for preset in INCUMBENTS}) == len(INCUMBENTS)
    assert list(strategies(MESH["dp", 0]))[:6] == [
        "data:tp",
        "replicate:tp",
        "tensor:tp",
        "zero1:tp",
        "fsdp:tp",
        "tensor:tp,sequence:tp",
    ]


def test_the_leanest_keep_all_split_along_all_axes_but_one() -> None:
    assert list(leanest(MESH)) == ["fsdp:dp,fsdp:tp", "tensor:dp,fsdp:tp", "fsdp:dp,tensor:tp"]
    assert [preset.name for preset in KEEPING] == ["fsdp", "zero2", "zero1"]


@pytest.mark.parametrize(
    ("product", "name"),
    [("nothing", "replicate"), ("batch", "data"), ("sequence", "context"), ("weight", "tensor")],
)
def test_plans_are_called_after_what_they_split(product: str, name: str) -> None:
    assert preset_of(product).name == name  # type: ignore[arg-type]
