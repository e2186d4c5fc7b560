"""Files that can't be used end every command with 1 and a message that names them; 2 is for words.

What a file is, and by which command it is read, makes no difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.cli.command import autopar, refusal

COMPILE = ("compile", "model.onnx", "--mesh", "2x4", "--dims", "batch=8", "-o", "new")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "compile": ("compile", "{}", "--mesh", "2x4", "-o", "new"),
    "compile --plan": (*COMPILE, "--plan", "{}"),
    "compile --cluster": (*COMPILE, "--cluster", "{}"),
    "profile": ("profile", "{}"),
    "profile --plan": ("profile", "model.onnx", "--mesh", "8", "--plan", "{}"),
    "profile --cluster": ("profile", "model.onnx", "--cluster", "{}"),
    "profile, a build, --cluster": ("profile", "build", "--cluster", "{}"),
    "inspect": ("inspect", "{}"),
    "explain": ("explain", "{}"),
    "explain --cluster": ("explain", "build", "--cluster", "{}"),
    "diff": ("diff", "build", "{}"),
    "diff --cluster": ("diff", "build", "build", "--cluster", "{}"),
    "plan": ("plan", "{}"),
    "run": ("run", "{}", "--random-inputs", "0"),
    "run --input": ("run", "build", "--virtual", "--input", "x={}"),
    "verify": ("verify", "{}"),
    "verify --against": ("verify", "build", "--against", "{}"),
}


def _binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 8)


KINDS: Mapping[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "a folder": lambda path: path.mkdir(),
    "empty": lambda path: path.write_bytes(b""),
    "binary": _binary,
    "a text": lambda path: path.write_text("good morning\n"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_bad_files(here: Path, command: str, kind: str) -> None:
    words = COMMANDS[command]
    named = "what" if "{}" in words[:3] else "what.yaml"
    name = f"{named}.npy" if "--input" in words else named
    KINDS[kind](here / name)
    before = sorted(os.listdir(here))
    if "--plan" in command and kind == "empty":
        return  # it says nothing, which is fine
    text = refusal(autopar(*(word.format(name) for word in words)), 1)
    assert "what" in text
    assert "--help" not in text
    assert sorted(os.listdir(here)) == before


@pytest.mark.parametrize("words", [("explain", "build"), ("diff", "build", "build"), COMPILE])
def test_a_name_that_is_none_is_wrong_usage(here: Path, words: tuple[str, ...]) -> None:
    text = refusal(autopar(*words, "--cluster", "h10"), 2)
    assert "no built-in cluster 'h10'; did you mean h100" in text
