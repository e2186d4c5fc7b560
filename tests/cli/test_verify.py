"""`verify` on builds that are right, and on ones that are wrong in known places."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed import HashStore  # type: ignore[attr-defined]

from autopar.ir.expr.expression import Coord, add
from autopar.ir.program import Op
from autopar.runtime.checkpoint.checkpoint import write_checkpoint
from autopar.runtime.checkpoint.files import rectangles_of
from autopar.runtime.checkpoint.series import Place
from autopar.runtime.job.messages import Messages
from autopar.runtime.ports.boxes import whole_box
from autopar.runtime.state.state import Content, Held, Piece
from tests.cli.command import autopar, process, rebuilt, refusal, renamed, two_layers
from tests.frontend.onnx.graphs import FLOAT, graph, model, node

BOX = whole_box((4, 4))
RELU_IS_NEG = renamed("aten.relu.default", "aten.neg.default")


def test_a_right_build(here: Path) -> None:
    done = autopar("verify", "build", "--against", "model.onnx", "--input", "x=x.npy")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "4 values on 8 ranks compared with the serial program"
    assert lines[1] == "outputs against the serial program, relative to the largest element:"
    assert lines[3] == "outputs against ONNX Runtime, relative to the largest element:"
    assert all(line.split()[0] == "y" and line.endswith("  ok") for line in (lines[2], lines[4]))


def test_files_alone(here: Path) -> None:
    done = autopar("verify", "build", "--files")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("5 files of ")
    assert done.stdout.endswith(" compared with what was written:  ok\n")
    for name in ("weights.safetensors", "options.yaml", "programs/0.pb"):
        data = bytearray(Path("build", name).read_bytes())
        data[-1] ^= 1
        Path("build", name).write_bytes(data)
    told = refusal(autopar("verify", "build", "--files"), 1).splitlines()
    assert [line.split(" is damaged: ")[0].removeprefix("error: ") for line in told] == [
        "build/options.yaml",
        "build/programs/0.pb",
        "build/weights.safetensors",
    ]
    assert "tensor '" in told[-1]
    assert "--seed" in refusal(autopar("verify", "build", "--files", "--seed", "1"), 2)


def test_a_wrong_op(here: Path) -> None:
    rebuilt("wrong", renamed("aten.add.Tensor", "aten.sub.Tensor"))
    done = autopar("verify", "wrong")
    assert (done.exit_code, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[2].endswith("DIFFERENT")
    first = "first difference: %hb = aten.add.Tensor (model.onnx: bias (Add)) is off by "
    assert lines[3].startswith(first)
    assert lines[3].endswith(" of its largest element on ranks 0, 1, 2, 3, 4, 5, 6, 7")
    assert lines[4] == "values that differ by more than 0.0001: 3"


def test_a_wrong_op_among_right_ones(here: Path) -> None:
    """With identical inputs for every op, only the wrong one differs."""
    rebuilt("wrong", RELU_IS_NEG)
    done = autopar("verify", "wrong", "--per-op")
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[2].endswith("ok")
    assert lines[3].startswith("first difference: %a = aten.relu.default (model.onnx: relu (Relu))")
    assert lines[4] == "values that differ by more than 1e-05: 1"


def test_a_wrong_op_on_some_ranks(here: Path) -> None:
    """Ranks 4 to 7, at d0=1, add the bias twice."""

    def doubled(op: Op) -> Op:
        twice = (*op.args, ("alpha", add(Coord("d0"), 1)))
        return replace(op, args=twice) if op.kind == "aten.add.Tensor" else op

    rebuilt("wrong", doubled)
    done = autopar("verify", "wrong")
    assert done.exit_code == 1
    first = done.stdout.splitlines()[3]
    assert first.startswith("first difference: %hb = aten.add.Tensor (model.onnx: bias (Add))")
    assert first.endswith("on ranks 4, 5, 6, 7")


def test_an_error_within_the_tolerance(here: Path) -> None:
    def scaled(op: Op) -> Op:
        more = (*op.args, ("alpha", 1.001))
        return replace(op, args=more) if op.kind == "aten.add.Tensor" else op

    rebuilt("wrong", scaled)
    assert autopar("verify", "wrong").exit_code == 1
    assert autopar("verify", "wrong", "--tolerance", "0.01").exit_code == 0


def test_another_model_of_the_same_names(here: Path) -> None:
    """The ranks agree with the serial program, but that isn't the given model."""
    proto = two_layers()
    proto.graph.node[2].op_type = "Neg"
    (here / "other.onnx").write_bytes(proto.SerializeToString())
    done = autopar("verify", "build", "--against", "other.onnx")
    assert (done.exit_code, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[2].endswith("ok")
    assert lines[4].endswith("DIFFERENT")


@pytest.mark.parametrize("words", [["build"], ["wrong"]])
def test_colors_are_for_terminals(here: Path, words: list[str]) -> None:
    rebuilt("wrong", RELU_IS_NEG)
    assert "\x1b" not in autopar("verify", *words).output


def test_in_a_process_of_its_own(here: Path) -> None:
    rebuilt("wrong", RELU_IS_NEG)
    done = process("verify", "wrong")
    assert (done.returncode, done.stderr) == (1, "")
    assert "first difference: %a = aten.relu.default (model.onnx: relu (Relu))" in done.stdout


def drawing(folder: Path) -> None:
    """Compiles a model with a random output and one that isn't."""
    nodes = [
        node("RandomNormalLike", "x", "noise", name="noise"),
        node("Add", "x noise", "loud"),
        node("Add", "x x", "y"),
    ]
    body = graph(nodes, {"x": (FLOAT, [8, 16])}, ["loud", "y"])
    (folder / "drawing.onnx").write_bytes(model(body).SerializeToString())
    done = autopar("compile", "drawing.onnx", "--mesh", "2x2", "-o", "drawing", "-q")
    assert (done.exit_code, done.output) == (0, ""), done.output


def test_random_outputs_are_compared_with_the_serial_program_only(here: Path) -> None:
    drawing(here)
    done = autopar("verify", "drawing", "--against", "drawing.onnx", "--input", "x=x.npy")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["loud", "y"]
    assert all(line.endswith("  ok") for line in lines[2:4])
    assert lines[5].split()[0] == "y"
    assert lines[5].endswith("  ok")
    assert lines[6] == "  loud  not compared: drawn at random"


def test_a_seed_changes_random_outputs_and_no_others(here: Path) -> None:
    drawing(here)
    found = []
    for seed in ([], ["--seed", 0], ["--seed", 1]):
        done = autopar(
            "run", "drawing", "--input", "x=x.npy", "--virtual", "--output", "o.npz", *seed
        )
        assert done.exit_code == 0, done.output
        found.append(dict(np.load("o.npz")))
    default, same, other = found
    assert np.array_equal(default["loud"], same["loud"])
    assert not np.array_equal(default["loud"], other["loud"])
    assert np.array_equal(default["y"], other["y"])
    done = autopar("run", "build", "--input", "x=x.npy", "--virtual", "--seed", 1)
    assert done.exit_code == 1
    assert done.stderr == "error: a seed is given, but the program draws no random numbers\n"


def test_nothing_but_random_outputs(here: Path) -> None:
    body = graph([node("RandomNormalLike", "x", "y")], {"x": (FLOAT, [8, 16])}, ["y"])
    Path("noise.onnx").write_bytes(model(body).SerializeToString())
    autopar("compile", "noise.onnx", "--mesh", "2", "-o", "noise", "-q")
    done = autopar("verify", "noise", "--against", "noise.onnx")
    assert done.exit_code == 1
    assert "all outputs depend on random numbers, which ONNX Runtime draws" in done.stderr


def save(folder: str) -> None:
    """Saves two tensors as a checkpoint does."""
    held = [
        Held((("model", name),), torch.float32, (4, 4), [Piece(torch.ones(4, 4), BOX, (4, 4))])
        for name in ("up", "down")
    ]
    content = Content(held, {("trainer", "steps"): 3})
    rectangles = rectangles_of(content)
    write_checkpoint(Place(Path(folder)), content, rectangles, Messages(HashStore()))


def test_files_of_checkpoints(here: Path) -> None:
    for name in ("step-00000001", "step-00000002"):
        save(f"series/{name}")
    done = autopar("verify", "series", "--files")
    assert (done.exit_code, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 2
    for line in done.stdout.splitlines():
        assert line.startswith("series/step-0000000")
        assert ": 2 pieces of tensors, " in line
        assert line.endswith("compared with what was saved:  ok")
    whole = Path("series/step-00000002/__0_0.distcp").read_bytes()
    Path("series/step-00000002/__0_0.distcp").write_bytes(whole[:-1] + b"!")
    Path("series/step-00000002/__values.distcp").unlink()
    told = refusal(autopar("verify", "series", "--files"), 1)
    assert "step-00000001" not in told
    assert "series/step-00000002/__0_0.distcp: 'model.down' isn't what was saved" in told
    assert "series/step-00000002/__values.distcp is missing" in told
    Path("series/step-00000001/index.jsonl").unlink()
    told = refusal(autopar("verify", "series/step-00000001", "--files"), 1)
    assert "step-00000001/index.jsonl is missing" in told


def test_what_plain_pytorch_reads_of_a_checkpoint_is_compared_too(here: Path) -> None:
    save("c")
    save("d")
    metadata = Path("c/.metadata")
    whole = metadata.read_bytes()
    metadata.write_bytes(whole[:-10])
    assert "c/.metadata can't be read" in refusal(autopar("verify", "c", "--files"), 1)
    metadata.write_bytes(whole.replace(b"model.up", b"model.us"))
    told = refusal(autopar("verify", "c", "--files"), 1)
    assert "c/.metadata isn't what was saved: 'model.up' is not what index.jsonl says" in told
    metadata.unlink()
    assert "c/.metadata is missing" in refusal(autopar("verify", "c", "--files"), 1)
    assert autopar("verify", "d", "--files").exit_code == 0


def test_files_of_weights(here: Path) -> None:
    Path("hf").mkdir()
    shards = {"up": "model-00001-of-00002.safetensors", "down": "model-00002-of-00002.safetensors"}
    for name, shard in shards.items():
        save_file({name: torch.ones(4, 4)}, Path("hf") / shard)
    index = Path("hf/model.safetensors.index.json")
    index.write_text(json.dumps({"weight_map": shards}))
    for path in ("hf", str(index)):
        done = autopar("verify", path, "--files")
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout.startswith("2 files of 272 B read: 2 tensors, as headers and index say;")
    done = autopar("verify", f"hf/{shards['up']}", "--files")
    assert done.stdout.startswith("1 file of 136 B read: 1 tensor, as headers")
    assert "--seed" in refusal(autopar("verify", "hf", "--files", "--seed", "1"), 2)
    second = Path("hf") / shards["down"]
    whole = second.read_bytes()
    second.write_bytes(whole[:-1])
    told = refusal(autopar("verify", "hf", "--files"), 1)
    assert f"{second} is not a complete safetensors file" in told
    save_file({"other": torch.ones(4)}, second)
    assert f"{second} has no tensor 'down'" in refusal(autopar("verify", "hf", "--files"), 1)
    second.unlink()
    assert f"it names {second.name}, which is not" in refusal(autopar("verify", "hf", "--files"), 1)
    index.unlink()
    assert "has model-00001-of-00002.safetensors, but no" in refusal(
        autopar("verify", "hf", "--files"), 1
    )


def test_a_build_without_its_manifest_is_no_folder_of_weights(here: Path) -> None:
    Path("build/manifest.pb").unlink()
    assert "manifest.pb" in refusal(autopar("verify", "build", "--files"), 1)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_files_of_a_checkpoint_of_plain_pytorch(here: Path) -> None:
    dcp.save({"model": {"up": torch.ones(4)}}, checkpoint_id="theirs", no_dist=True)  # type: ignore[attr-defined]
    done = autopar("verify", "theirs", "--files")
    assert "theirs: 1 piece of tensors, " in done.stdout
    assert done.stdout.endswith("read, which have no digests:  ok\n")
    content = Path("theirs/__0_0.distcp").read_bytes()
    Path("theirs/__0_0.distcp").write_bytes(content[:-1])
    assert "__0_0.distcp is cut off" in refusal(autopar("verify", "theirs", "--files"), 1)
