"""Builds that keep state: every command takes them, as calls that are the first one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import autopar
from tests.runtime.serving.decoder import write_decoder

WORDS = ("--mesh", "2x2", "--strategy", "data:0,tensor:1", "-o", "build")
AGAIN = ("--strategy", "none", "--plan", "plan.yaml", "-o", "again")
STATE = "past_key_values.*=present.*"


def compiled(folder: Path, *words: str) -> tuple[int, str]:
    done = autopar("compile", write_decoder(folder), *WORDS, *words)
    return done.exit_code, done.output


def test_builds_that_keep_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    code, output = compiled(tmp_path, "--state", STATE)
    assert code == 0, output
    assert "kept from call to call (33.3%): past_key_values.0.key" in output
    assert "all_gather" not in output
    for words in (
        ("verify", "build", "--against", "decoder.onnx"),
        ("run", "build", "--virtual", "--random-inputs", 0),
        ("profile", "build"),
        ("explain", "build", "past_key_values.0.key"),
        ("inspect", "build", "--rank", 3),
        ("plan", "build", "-o", "plan.yaml"),
        ("compile", "decoder.onnx", *WORDS[:2], *AGAIN, "--state", STATE),
    ):
        done = autopar(*words)
        assert done.exit_code == 0, (words, done.output)
    assert "values lie alike" in autopar("diff", "build", "again").output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--state", "past"], "--state past: write INPUT=OUTPUT, as 'past.*=present.*'"),
        (["--state", "a=b", "--state", "a=c"], "--state a=c contradicts --state a=b"),
        (["--state", "past.*=present.*"], "there is no input 'past.*'"),
    ],
)
def test_what_can_not_be_meant(tmp_path: Path, words: list[str], message: str) -> None:
    code, output = compiled(tmp_path, *words)
    assert code in (1, 2)
    assert message in " ".join(output.split())
