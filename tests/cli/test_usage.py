"""Options that can't be right whatever the model: exit code 2, and nothing is written."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from autopar.pipeline.passes import PASSES
from tests.cli.command import autopar, process, refusal

SIZES = "write 2x4 or dp=2,tp=4"
BUILTIN = "a100, b200, cpu, h100"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mesh", "2x"], f"mesh '2x': a size is missing; {SIZES}"),
        (["--mesh", "x4"], f"mesh 'x4': a size is missing; {SIZES}"),
        (["--mesh", "2x4x"], f"mesh '2x4x': a size is missing; {SIZES}"),
        (["--mesh", ""], "mesh '': a size is missing"),
        (["--mesh", "0x4"], "mesh '0x4': an axis of 0 processes holds nothing; use 1 or more"),
        (["--mesh", "2x-4"], f"mesh '2x-4': '-4' is not a number; {SIZES}"),
        (["--mesh", "two"], f"mesh 'two': 'two' is not a number; {SIZES}"),
        (["--mesh", "dp=2,tp"], "mesh 'dp=2,tp': a size is missing"),
        (["--mesh", "dp=2,dp=4"], "mesh 'dp=2,dp=4': mesh axis names must differ"),
        (["--mesh", "99999x99999"], "has 9999800001 processes, more than 1048576"),
        (["--dims", "batch"], "--dims batch: write NAME=SIZE, as batch=8"),
        (["--dims", "=8"], "--dims =8: write NAME=SIZE"),
        (["--dims", "batch=8,"], "--dims batch=8,: write NAME=SIZE"),
        (["--dims", "batch=8,x"], "--dims batch=8,x: write NAME=SIZE"),
        (["--dims", "b=1,b=2"], "--dims b=1,b=2 contradicts --dims b=1"),
        (["--dims", "batch=-8"], "--dims batch=-8: write NAME=SIZE"),
        (["--dims", "batch=8:4"], "--dims batch=8:4: '8:4': no size is at least 8 and at most 4"),
        (["--dims", "batch=eight"], "--dims batch=eight: write NAME=SIZE"),
        (["--dims", "b=1", "--dims", "b=2"], "--dims b=2 contradicts --dims b=1"),
        (["--input-shapes", "x8,16"], "--input-shapes x8,16: write NAME:SIZES, as ids:8,128"),
        (["--input-shapes", "x:8,,16"], "--input-shapes x:8,,16: write NAME:SIZES"),
        (
            ["--input-shapes", "x:8,16", "--input-shapes", "x:7,16"],
            "--input-shapes x:7,16 contradicts --input-shapes x:8,16",
        ),
        (["--pipeline", "pp"], "pipeline='pp': the mesh has no such axis; its axes are"),
        (["--stages", "3,1"], "stages='3,1' is for a pipeline; say along which axis"),
        (["--pipeline", "d0", "--stages", "3,2"], "3 + 2 are 5 indices, but axis 'd0' of"),
        (["--pipeline", "d0", "--stages", "3;1"], "stages='3;1': give how many indices of the"),
        (["--shard", "w"], "--shard 'w': write PATTERN=[entry,...], as 'encoder.*.weight=[-1,tp]'"),
        (["--shard", "=[0]"], "--shard '=[0]': write PATTERN=[entry,...]"),
        (["--shard", "w=[0"], "--shard 'w=[0': dims_mapping '[0': expected ',' or ']', got the"),
        (["--shard", "w=[0 1]"], "dims_mapping '[0 1]': expected ',' or ']', got 1; write"),
        (["--shard", "w=[(0,1]"], "dims_mapping '[(0,1]': expected ',' or ')', got ]"),
        (["--strategy", "dta:0"], "strategy 'dta:0': no preset 'dta'"),
        (["--strategy", "dta:0"], "did you mean data?"),
        (["--strategy", "aut"], "or auto alone; did you mean auto"),
        (["--strategy", "data:0,auto:1"], "auto stands alone; what search is to leave as it is"),
        (["--strategy", "data:2"], "strategy 'data:2': mesh axis 2 is out of range for mesh d"),
        (["--strategy", "data:tp"], "strategy 'data:tp': mesh has no axis 'tp'"),
        (["--strategy", "data:0,fsdp:0"], "strategy 'data:0,fsdp:0' gives axis d0 to two presets"),
        (["--strategy", ","], "strategy ',' is empty; write auto, or replicate, data, tensor, "),
        (["--cluster", "h10"], "no built-in cluster 'h10'; did you mean h100"),
        (["--cluster", "mine"], f"no built-in cluster 'mine'; there are {BUILTIN}"),
        (["--placement", "best"], "placement 'best' is none of identity, auto, a list of process"),
        (["--placement", "0,1,2"], "process 3, 4, 5, 6, 7 is missing"),
        (["--placement", "0,1,2,3,4,5,6,6"], "process 6 appears more than once; process 7 is"),
        (["--placement", "0,1,2,3,4,5,6,9"], "the mesh has no process 9; process 7 is missing"),
        (["--print-after", "complet"], "no such pass, only annotate, complete, legalize"),
        (["--print-after", "complet"], "did you mean complete"),
        (["--no-such-option"], "No such option"),
        (["--devices", "8"], "--mesh says how many processes; leave out --devices"),
        (["--time-limit", "nan"], "--time-limit nan: a search takes no less than 0 seconds"),
        (["--time-limit", "-1"], "--time-limit -1.0: a search takes no less than 0 seconds"),
        (["--time-limit", "soon"], "'soon' is not a valid float"),
        (["--effort", "0"], "--effort 0.0: give how many times the usual work a search may do"),
        (["--effort", "inf"], "--effort inf: give how many times the usual work"),
        (["--activations", "x=save"], "No such option"),
        (["--memory", "0"], "memory '0': a device holds more than nothing"),
        (["--memory", "-1"], "memory '-1': write a number and a unit, as 24GiB or 80GB"),
        (["--memory", "24 gigs"], "memory '24 gigs': write a number and a unit"),
    ],
)
def test_compile(here: Path, options: list[str], message: str) -> None:
    before = sorted(os.listdir(here))
    mesh = [] if "--mesh" in options else ["--mesh", "2x4"]
    text = refusal(autopar("compile", "model.onnx", *mesh, *options, "-o", "new"), 2)
    assert message in text
    assert text.endswith("\nsee autopar compile --help")
    assert sorted(os.listdir(here)) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compile"], "Missing argument 'MODEL'"),
        (["compile", "model.onnx"], "give --mesh, or --devices to search the shape of a mesh"),
        (["complie", "model.onnx"], "No such command 'complie'"),
        (["inspect", "build", "--rank", "one"], "'one' is not a valid integer"),
        (["inspect", "build", "--format", "xml"], "'xml' is not one of 'text', 'json', 'dot'"),
        (["inspect", "build", "--rank", "1", "--serial"], "a rank's program is not --serial"),
        (["inspect", "build", "--brief"], "the summary has no programs for --brief"),
        (["inspect", "build/serial.pb", "--rank", "1"], "is a single file; it has no --rank"),
        (["run", "build", "--backend", "mpi"], "'mpi' is not one of 'auto', 'gloo', 'nccl'"),
        (["run", "build", "--timeout", "-1"], "'-1' is not a number above 0"),
        (["run", "build", "--timeout", "nan"], "'nan' is not a number above 0"),
        (["run", "build", "--random-inputs", "x"], "'x' is not a valid integer"),
        (["run", "build", "--virtual", "--torch-compile"], "which rules out --torch-compile"),
        (
            ["run", "build", "--virtual", "--timeout", "9", "--backend", "gloo"],
            "with --virtual no processes are started, which rules out --backend and --timeout",
        ),
        (["verify", "build", "--seed", "9" * 23], "has more than 64 bits"),
        (["run", "build", "--random-inputs", "9" * 23], "has more than 64 bits"),
        (["run", "build", "--seed", f"-{'9' * 23}"], "has more than 64 bits"),
        (["verify", "build", "--tolerance", "0"], "'0' is not a number above 0"),
        (["verify", "build", "--tolerance", "inf"], "'inf' is not a number above 0"),
    ],
)
def test_other_commands(here: Path, words: list[str], message: str) -> None:
    assert message in refusal(autopar(*words), 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shrad: {x: [0, -1]}\n", "notes.yaml:1: unknown key 'shrad'"),
        ("shard:\n  x: 5\n", "notes.yaml:2: dims_mapping '5': it must be a list in brackets"),
        ("mesh: 4\n", "notes.yaml is for d0=4, but --mesh says"),
        ("shard: [\n", "can't read the annotations in notes.yaml:2: while parsing a flow"),
        ("\nmesh: {dp: 2}\n", "notes.yaml:2: mesh: write 2x4 or dp=2,tp=4"),
        ("mesh: 2y4\n", "notes.yaml:1: mesh '2y4': "),
        ("strategy: fast\n", "notes.yaml: strategy 'fast': no preset 'fast'"),
    ],
)
def test_annotation_files(here: Path, text: str, message: str) -> None:
    (here / "notes.yaml").write_text(text)
    words = ["--mesh", "2x4", "--plan", "notes.yaml"]
    assert message in refusal(autopar("compile", "model.onnx", *words), 1)


@pytest.mark.parametrize("mesh", ["dp=2,tp=2", "4"])
def test_a_file_for_a_mesh_that_is_searched(here: Path, mesh: str) -> None:
    (here / "notes.yaml").write_text(f"mesh: {mesh}\n")
    words = ["--devices", "4", "--plan", "notes.yaml"]
    text = refusal(autopar("compile", "model.onnx", *words), 1)
    assert "so the shape of the mesh isn't searched; give this mesh" in text
    assert "--mesh says" not in text


def test_files_of_another_kind(here: Path) -> None:
    words = ["compile", "model.onnx", "--mesh", "2x4"]
    text = refusal(autopar(*words, "--plan", "model.onnx"), 1)
    assert "model.onnx is not a YAML file of annotations" in text
    text = refusal(autopar(*words, "--cluster", "model.onnx"), 1)
    assert "model.onnx is not a cluster file" in text


def test_a_cluster_file_with_mistakes(here: Path) -> None:
    (here / "mine.yaml").write_text("devices: many\n")
    words = ["--mesh", "2x4", "--cluster", "mine.yaml"]
    text = refusal(autopar("compile", "model.onnx", *words), 1)
    assert "cluster file mine.yaml:\n  - unknown key 'devices'" in text


def test_in_a_process_of_its_own(here: Path) -> None:
    text = refusal(process("compile", "model.onnx", "--mesh", "2x"), 2)
    assert text == f"mesh '2x': a size is missing; {SIZES}\nsee autopar compile --help"


def test_the_passes_that_help_names_are_some() -> None:
    shown = " ".join(autopar("compile", "--help").output.split())
    (text,) = re.findall(r"Print the program after a pass, as (.*?);", shown)
    assert {*text.split(" or ")} < {*PASSES}
