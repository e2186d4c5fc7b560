"""Models that can't be compiled: exit code 1, a message that names the place, nothing written."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

from tests.cli.command import BATCH, autopar, process, refusal, two_layers
from tests.frontend.onnx.graphs import FLOAT, graph, model, node

Change = Callable[[ModelProto], object]
OPTIONS = ["--mesh", "2x4", "--dims", f"batch={BATCH}"]


def compile_refused(path: str | Path, options: Sequence[str] = OPTIONS) -> str:
    """Compiles into the current folder, in which nothing may appear."""
    before = sorted(os.listdir())
    text = refusal(autopar("compile", path, *options, "-o", "new"), 1)
    assert sorted(os.listdir()) == before
    return text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "it can't be read: No such file or directory (give the path of an .onnx file)"),
        (b"", "the file is empty (download or export it again)"),
        (two_layers().SerializeToString()[:-99], "damaged or cut short: protobuf can't parse it"),
        (np.random.default_rng(0).bytes(4096), "it isn't an ONNX file"),
        (b"import torch\n", "it isn't an ONNX file"),
    ],
    ids=["missing", "empty", "truncated", "random", "text"],
)
def test_files(here: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (here / "bad.onnx").write_bytes(content)
    text = compile_refused("bad.onnx")
    assert text.startswith("can't import bad.onnx:\n  - ")
    assert message in text


def test_a_folder(here: Path) -> None:
    assert "it is no regular file" in compile_refused("build")


def test_a_missing_file_in_a_process_of_its_own(here: Path) -> None:
    text = refusal(process("compile", "bad.onnx", *OPTIONS), 1)
    assert text == (
        "can't import bad.onnx:\n"
        "  - it can't be read: No such file or directory (give the path of an .onnx file)"
    )


def cycle(proto: ModelProto) -> None:
    proto.graph.node[0].input[0] = "a"


def unknown_op(proto: ModelProto) -> None:
    proto.graph.node[2].op_type = "Relux"


def unknown_domain(proto: ModelProto) -> None:
    proto.graph.node[2].domain = "com.acme"


def negative_dims(proto: ModelProto) -> None:
    proto.graph.initializer[0].dims[:] = [-16, -32]


def too_few_bytes(proto: ModelProto) -> None:
    proto.graph.initializer[0].raw_data = b"1234"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cycle, "the graph has a cycle: first -> bias -> relu -> first"),
        (unknown_op, "node 'relu': there is no operator 'Relux'; did you mean Relu"),
        (unknown_domain, "node 'relu': Relu is of the unknown domain 'com.acme'"),
        (negative_dims, "initializer 'enc.0.weight': negative dims [-16, -32]"),
        (too_few_bytes, "initializer 'enc.0.weight': dims [16, 32] of FLOAT need 2048 bytes"),
    ],
)
def test_graphs(here: Path, change: Change, message: str) -> None:
    proto = two_layers()
    change(proto)
    (here / "bad.onnx").write_bytes(proto.SerializeToString())
    assert message in compile_refused("bad.onnx")


def test_all_problems_are_told_at_once(here: Path) -> None:
    proto = two_layers()
    negative_dims(proto)
    unknown_op(proto)
    (here / "bad.onnx").write_bytes(proto.SerializeToString())
    assert len(compile_refused("bad.onnx").splitlines()) == 3


def test_a_constant_of_many_terabytes(here: Path) -> None:
    shape = {"shape": np.array([2**20, 2**20], np.int64)}
    nodes = [node("ConstantOfShape", "shape", "c", name="huge"), node("Add", "x c", "y")]
    proto = model(graph(nodes, {"x": (FLOAT, [1])}, ["y"], shape))
    (here / "bad.onnx").write_bytes(proto.SerializeToString())
    text = compile_refused("bad.onnx", ["--mesh", "2"])
    assert "node 'huge' (ConstantOfShape, opset 17)" in text
    assert "4398046511104 bytes" in text


def with_external_weight(folder: Path, location: str) -> Path:
    """Writes the small model into a folder, its first weight in another file."""
    proto = two_layers()
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return folder / "model.onnx"


WEIGHT = bytes(16 * 32 * 4)


def above(here: Path) -> str:
    return "../cache/w.bin"


def absolute(here: Path) -> str:
    return str(here / "cache/w.bin")


def symlink(here: Path) -> str:
    (here / "external/link").symlink_to(here / "cache/w.bin")
    return "link"


def hard_link(here: Path) -> str:
    os.link(here / "cache/w.bin", here / "external/hard")
    return "hard"


@pytest.mark.parametrize(
    ("place", "message", "admitted"),
    [
        (above, "leaves the model's folder", "cache"),
        (absolute, "is an absolute path, outside the model's folder", "cache"),
        (symlink, "is a link that leads to", "cache"),
        (hard_link, "is a hard link, so it may really lie elsewhere", "external"),
    ],
)
def test_external_data_elsewhere(
    here: Path, place: Callable[[Path], str], message: str, admitted: str
) -> None:
    for name in ("cache", "external"):
        (here / name).mkdir()
    (here / "cache/w.bin").write_bytes(WEIGHT)
    path = with_external_weight(here / "external", place(here))
    text = compile_refused(path)
    assert "initializer 'enc.0.weight': external data " in text
    assert message in text
    assert f"--allow-external {here.resolve() / admitted}" in text
    done = autopar("compile", path, *OPTIONS, "--allow-external", admitted, "-o", "new", "-q")
    assert (done.exit_code, done.output) == (0, "")


def test_external_data_that_are_too_short(here: Path) -> None:
    path = with_external_weight(here / "external", "w.bin")
    (here / "external/w.bin").write_bytes(WEIGHT[:-1])
    text = compile_refused(path)
    assert "needs bytes 0 to 2048 of external data 'w.bin', which has 2047" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--dims", "bach=8"],
            "--dims: there is no symbolic dimension 'bach'; did you mean batch?",
        ),
        (
            ["--dims", "BATCH=8"],
            "--dims: there is no symbolic dimension 'BATCH'; did you mean batch?",
        ),
        (["--input-shapes", "z:8,16"], "--input-shapes: there is no input 'z'; there are: x"),
        (["--input-shapes", "x:8"], "its shape is [batch, 16], --input-shapes gives 1 sizes"),
        (["--input-shapes", "x:8,17"], "its shape is [batch, 16], --input-shapes gives 17 for 16"),
        (
            ["--dims", "batch=9", "--input-shapes", "x:8,16"],
            "--input-shapes x:8,16 contradicts --dims batch=9",
        ),
        (["--dims", "batch=99999999999999"], "1599999999999984 elements"),
    ],
)
def test_sizes(here: Path, options: list[str], message: str) -> None:
    assert message in compile_refused("model.onnx", ["--mesh", "2x4", *options])


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        (["enc.0.wieght=[-1,0]"], "pattern 'enc.0.wieght' matches no input, parameter or"),
        (["enc.0.wieght=[-1,0]"], "did you mean enc.0.weight"),
        (["0.*t=[0,-1]"], "'0' is in enc.0.weight, enc.0.bias: does the pattern need a '*' first?"),
        (["decoder*=[0,-1]"], "; names are, for example, x, enc.0.weight"),
        (["enc.0.weight=[0]"], "dims_mapping [0] has 1 entry, but the tensor has 2 dimensions"),
        (["enc.0.weight=[0,0]"], "uses mesh axis d0 more than once"),
        (["enc.0.weight=[-1,2]"], "mesh axis 2 is out of range for mesh d0=2"),
        (["enc.0.weight=[-1,tp]"], "mesh has no axis 'tp', only ['d0', 'd1']"),
        (["enc.0.weight=[-2,0]"], "dims_mapping entry -2: use -1 for 'not split', or an axis"),
        (
            ["enc.0.weight=[0,-1]", "enc.*.weight=[-1,0]"],
            "two pins disagree about %enc.0.weight: [16@d0, 32] by --shard 'enc.0.weight=[0,-1]',"
            " [16, 32@d0] by --shard 'enc.*.weight=[-1,0]'",
        ),
    ],
)
def test_pins(here: Path, pins: list[str], message: str) -> None:
    words = [word for pin in pins for word in ("--shard", pin)]
    text = compile_refused("model.onnx", [*OPTIONS, *words])
    assert message in text
    assert f"--shard '{pins[0]}'" in text


def test_output_folders(here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine/notes.txt").touch()
    (here / "build/notes.txt").touch()
    for output, message in {
        "mine": "is not empty and not an autopar build; choose another folder with -o",
        "build": "is an autopar build, but holds other files too: notes.txt; move them",
        "x.npy": "is not a folder; choose another folder with -o",
        "x.npy/build": "x.npy is a file; choose another folder with -o",
        "/proc/build": "can't write /proc/build: no folder can be made in /proc;",
        "/": "/ is not empty and not an autopar build",
    }.items():
        text = refusal(autopar("compile", "no.onnx", "--mesh", "2", "-o", output), 1)
        assert message in text, output


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_folder_without_permission(here: Path) -> None:
    (here / "locked").mkdir(mode=0o500)
    text = refusal(autopar("compile", "no.onnx", "--mesh", "2", "-o", "locked/build"), 1)
    assert "can't write locked/build: Permission denied" in text
