"""The migration page: its example runs, and it names only what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autopar import annotate
from autopar.annotate import ProcessMesh, paddle
from autopar.completion.presets.strategy import parse_strategy

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")
MESH = ProcessMesh([[0, 1], [2, 3]], ["dp", "tp"])


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```(python)?\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    made: dict[str, object] = {"__name__": "example"}
    for example in (text for language, text in blocks if language):
        exec(compile(example, "example.py", "exec"), made)
    (printed,) = (text for language, text in blocks if not language)
    assert capsys.readouterr().out == printed
    weights = []
    for name in ("by_marks", "by_names", "by_preset"):
        values = made[name].serial.main.values  # type: ignore[attr-defined]
        weights.append([str(values[each].dist) for each in ("x", "up.weight", "down.weight")])
    assert weights == [["[8@dp, 16]", "[64@tp, 16]", "[16, 64@tp]"]] * 3


def test_all_names_exist() -> None:
    for module, name in (("annotate", annotate), ("paddle", paddle)):
        used = set(re.findall(rf"\b{module}\.(\w+)\(", PAGE))
        assert used
        assert [each for each in used if not hasattr(name, each)] == []
    assert all(hasattr(MESH, name) for name in ("topology", "process_group", "ndim", "parent"))


def test_all_strategies_are_known() -> None:
    texts = re.findall(r'strategy="([^"]+)"', PAGE)
    assert len(texts) >= 3
    assert all(parse_strategy(text, MESH) for text in texts)
