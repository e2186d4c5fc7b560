"""What `inspect` shows of a build: a summary, programs, single files."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from autopar.analysis.reports.inspection import show_program
from autopar.analysis.reports.summary import (
    Summary,
    human_bytes,
    human_flops,
    render_summary,
    summarize,
)
from autopar.base.errors import Loc
from autopar.cli import main
from autopar.ir.builds.files import read_build
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.expr.at_rank import program_at
from autopar.ir.text import parse_program
from tests.cli.command import WORDS, autopar

SUMMARY = """\
model: 8 ranks (d0=2 x d1=4)
ops      5 per rank, 4 in the serial program
weights  1.0 KiB per rank of 4.1 KiB (25.0%)
compute  2.05 KFLOP per rank of 16.4 KFLOP (12.5%)
time     1.001 ms predicted, one op after another
layouts  8 values: 3 preset, 5 implied

collective  group  count  bytes per rank
all_reduce  d1         1           256 B

replicated for lack of a rule: nothing
"""

RANK_5 = """\
# rank 5 of 8: process 5 at d0=1, d1=1
# group d1: ranks 4, 5, 6, 7
# left out of names: enc.
program "model" executable

func main {
  input     %x: f32[4, 16] box [8[4; 4], 16]
  parameter %0.weight: f32[16, 8] box [16, 32[8; 8]]
  parameter %0.bias: f32[8] box [32[8; 8]]
  parameter %1.weight: f32[8, 16] box [32[8; 8], 16]
  %h: f32[4, 8]    = aten.mm.default(self=%x, mat2=%0.weight)
  %hb: f32[4, 8]   = aten.add.Tensor(self=%h, other=%0.bias)
  %a: f32[4, 8]    = aten.relu.default(self=%hb)
  %y.1: f32[4, 16] = aten.mm.default(self=%a, mat2=%1.weight)
  %y: f32[4, 16]   = comm.all_reduce(self=%y.1, monoid="sum", group="d1")
  return %y box [8[4; 4], 16]
}
"""


def shown(*words: object) -> str:
    done = autopar("inspect", *words)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    return done.stdout


def shown_json(*words: object) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(shown(*words, "--format", "json"), parse_constant=refuse)


def test_summary(here: Path) -> None:
    assert shown("build") == SUMMARY


def test_compile_ends_with_the_summary(here: Path) -> None:
    done = autopar("compile", "model.onnx", *WORDS)
    assert (done.exit_code, done.stdout, done.stderr) == (0, SUMMARY, "")


def test_a_searched_plan_is_named(here: Path) -> None:
    words = ["--mesh", "2x4", "--dims", "batch=8", "--time-limit", "60"]
    done = autopar("compile", "model.onnx", *words)
    lines = done.stdout.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("plan     d0: "))
    assert "predicted" in lines[at + 1]
    assert any("the best preset tried, " in line for line in lines[at:])
    assert "search (" not in done.stdout


def test_summary_as_json(here: Path) -> None:
    found = shown_json("build")
    assert found.keys() == {field.name for field in fields(Summary)}
    assert (found["axes"], found["weight_bytes"]) == ({"d0": 2, "d1": 4}, 4224)
    assert found["collectives"] == [{"kind": "all_reduce", "group": "d1", "count": 1, "bytes": 256}]
    assert [entry["category"] for entry in found["report"]] == ["search", "origins"]


def test_summary_of_a_mesh_that_does_not_divide_and_of_many_remarks(here: Path) -> None:
    locs = [Loc("model.onnx", name=f"relu{at} (Relu)") for at in range(12)]
    remarks = [ReportEntry("replicated", "my.op", "no rule", loc, 2048) for loc in locs]
    summary = replace(
        summarize(here / "build"),
        weight_bytes_min=528,
        report=(*remarks, ReportEntry("ignored", "configuration 'pair'", "2 devices")),
    )
    lines = render_summary(summary).splitlines()
    assert lines[2].endswith("(25.0%), 528 B on the rank with least")
    at = lines.index("replicated for lack of a rule (12):")
    assert lines[at + 1] == "  my.op: no rule (2.0 KiB) [model.onnx: relu0 (Relu)]"
    assert lines[at + 11] == "  ... and 2 more (autopar inspect --format json lists all)"
    assert lines[at + 12 :] == ["ignored (1):", "  configuration 'pair': 2 devices"]


def test_summary_without_communication(here: Path) -> None:
    summary = replace(summarize(here / "build"), collectives=(), flops_serial=0)
    assert "\n\nno communication\n\n" in render_summary(summary)
    assert "compute" not in render_summary(summary)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (2**51, "2048.0 TiB")],
)
def test_human_bytes(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 FLOP"), (1500, "1.5 KFLOP"), (2e9, "2 GFLOP"), (3e18, "3e+03 PFLOP")]
)
def test_human_flops(count: float, text: str) -> None:
    assert human_flops(count) == text


def test_rank_in_brief(here: Path) -> None:
    assert shown("build", "--rank", 5, "--brief") == RANK_5


def test_collectives_stand_out_on_a_terminal(here: Path) -> None:
    words = ["inspect", "build", "--rank", "5", "--brief"]
    done = CliRunner().invoke(main, words, color=True)
    colored = [line for line in done.stdout.splitlines() if "\x1b" in line]
    assert [click.unstyle(line) for line in colored] == [
        '  %y: f32[4, 16]   = comm.all_reduce(self=%y.1, monoid="sum", group="d1")'
    ]


def test_rank_s_program_parses(here: Path) -> None:
    """The text is all of the program, and lines aren't wrapped."""
    deployment = read_build("build").deployment
    for rank in (0, 7):
        resolved = program_at(deployment.program_of(rank), deployment.coords_of(rank))
        assert parse_program(shown("build", "--rank", rank)) == resolved


def test_serial_program(here: Path) -> None:
    text = shown("build", "--serial")
    assert parse_program(text) == read_build("build").serial
    assert '%enc.0.weight: f32[16, 32@d1] ~preset("tensor:d1") loc(' in text
    brief = shown("build", "--serial", "--brief")
    assert "%0.weight: f32[16, 32@d1] ~preset\n" in brief
    assert "loc(" not in brief


def test_names_that_would_collide_keep_their_scope() -> None:
    text = """
    program "p" serial
    func main {
      parameter %a.w: f32[2]
      input     %w: f32[2]
      %y: f32[2] = aten.add.Tensor(self=%a.w, other=%w)
      return %y
    }
    """
    assert "%a.w" in show_program(parse_program(text), "text", brief=True)


def test_rank_as_json(here: Path) -> None:
    main = shown_json("build", "--rank", 5)["functions"]["main"]
    assert [op["kind"] for op in main["ops"]][4] == "comm.all_reduce"
    assert main["ops"][4]["args"] == {"self": "%y.1", "monoid": "sum", "group": "d1"}
    assert main["ops"][0]["loc"] == "model.onnx: first (MatMul)"
    assert main["inputs"][1]["shape"] == [16, 8]


def test_numbers_that_json_lacks() -> None:
    text = """
    program "p" serial
    func main {
      input %x: f32[2]
      %y: f32[2] = aten.clamp.default(self=%x, min=-inf, max=inf)
      return %y
    }
    """
    shown = json.loads(show_program(parse_program(text), "json"))
    assert shown["functions"]["main"]["ops"][0]["args"] == {
        "self": "%x",
        "min": "-inf",
        "max": "inf",
    }


@pytest.mark.parametrize("words", [["build"], ["build", "--rank", "3"], ["build/programs/0.pb"]])
def test_graphs(here: Path, words: list[str]) -> None:
    """Statements of Graphviz's language, and edges between nodes that exist."""
    lines = shown(*words, "--format", "dot").splitlines()
    assert (lines[0], lines[-1]) == ("digraph program {", "}")
    label = r'"(?:[^"\\]|\\.)*"'
    statement = rf"(\w+)(?: -> (\w+))?(?: \[\w+=(?:{label}|\w+)(?:, \w+=(?:{label}|\w+))*\])?;"
    parsed = [re.fullmatch(statement, line.strip()) for line in lines[1:-1]]
    assert all(parsed)
    nodes = {match[1] for match in parsed if match and not match[2]}
    edges = [(match[1], match[2]) for match in parsed if match and match[2]]
    assert {node for edge in edges for node in edge} <= nodes
    assert len(edges) >= 8


def test_labels_of_graphs_are_quoted() -> None:
    text = """
    program "p" serial
    func main {
      input %"say \\"é\\"": f32[2]
      %y: f32[2] = aten.relu.default(self=%"say \\"é\\"")
      return %y
    }
    """
    assert r'in0 [label="say \"é\"", shape=ellipse];' in show_program(parse_program(text), "dot")


def test_single_files(here: Path) -> None:
    build = read_build("build")
    assert parse_program(shown("build/serial.pb")) == build.serial
    assert parse_program(shown("build/programs/0.pb")) == build.deployment.programs[0]
    assert "  5        0        5   1   1" in shown("build/ranks.pb")
    manifest = shown("build/manifest.pb")
    for file in build.manifest.files:
        assert f"{file.sha256[:16]}  {file.bytes:>12}  {file.path}" in manifest


def test_single_files_as_json(here: Path) -> None:
    ranks = shown_json("build/ranks.pb")
    assert ranks["ranks"][5] == {
        "rank": 5,
        "program": 0,
        "process_id": 5,
        "coords": {"d0": 1, "d1": 1},
    }
    assert ranks["groups"] == {"d1": [[0, 1, 2, 3], [4, 5, 6, 7]]}
    assert shown_json("build/manifest.pb")["model"] == "model"
    assert shown_json("build/serial.pb")["level"] == "serial"


def test_print_after(here: Path) -> None:
    words = ["--mesh", "2", "--dims", "batch=8", "-q", "--print-after", "complete"]
    done = autopar("compile", "model.onnx", *words, "--print-after", "strip")
    programs = re.split(r"(?m)^(?=program )", done.stdout)
    assert [parse_program(text).level for text in programs[1:]] == ["serial", "executable"]


def test_entries_of_equal_layers_are_folded(here: Path) -> None:
    def entry(subject: str, line: int, size: int) -> ReportEntry:
        return ReportEntry("reshard", subject, "[8@d0] -> [8]: all_gather", Loc("m.py", line), size)

    layers = [entry(f"net.layers.{at}.weight", 3, 8) for at in range(12)]
    report = (*layers, entry("net.head.weight", 9, 16))
    summary = replace(summarize(here / "build"), report=report)
    lines = render_summary(summary).splitlines()
    assert "resharded, because two ops need different layouts (13):" in lines
    assert "  net.layers.*.weight (x12): [8@d0] -> [8]: all_gather (96 B) [m.py:3]" in lines
    assert "  net.head.weight: [8@d0] -> [8]: all_gather (16 B) [m.py:9]" in lines
