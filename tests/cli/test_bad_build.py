"""Damaged builds, inputs that don't fit, outputs that can't be written: exit code 1."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import INPUT, autopar, process, rebuilt, refusal, renamed, two_layers

COMMANDS = {
    "inspect": ["inspect", "BUILD", "--rank", "0"],
    "run": ["run", "BUILD", "--virtual", "--random-inputs", "0"],
    "verify": ["verify", "BUILD"],
}
EVERY_COMMAND = pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)


def call(words: list[str], build: str) -> str:
    return refusal(autopar(*(build if word == "BUILD" else word for word in words)), 1)


@EVERY_COMMAND
@pytest.mark.parametrize(
    ("build", "message"),
    [
        ("none", "none doesn't exist; expected a folder that `autopar compile` wrote"),
        ("empty", "empty has no manifest.pb, so it isn't an autopar build"),
    ],
)
def test_no_build(here: Path, words: list[str], build: str, message: str) -> None:
    (here / "empty").mkdir()
    assert message in call(words, build)


def garble(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


@EVERY_COMMAND
@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("programs/0.pb", garble, "build/programs/0.pb is damaged: its checksum isn't the one in"),
        ("ranks.pb", garble, "build/ranks.pb is damaged: its checksum isn't the one in"),
        ("ranks.pb", shorten, "build/ranks.pb has 20 bytes instead of"),
        ("weights.safetensors", Path.unlink, "build/weights.safetensors is missing, so the build"),
        ("manifest.pb", shorten, "build/manifest.pb: not a file of autopar's, or truncated"),
        ("manifest.pb", Path.unlink, "build has no manifest.pb, so it isn't an autopar build"),
    ],
)
def test_damage(
    here: Path, words: list[str], name: str, damage: Callable[[Path], None], message: str
) -> None:
    damage(here / "build" / name)
    text = call(words, "build")
    assert message in text
    assert "compile" in text


def test_damaged_weights_are_found_by_verify(here: Path) -> None:
    garble(here / "build/weights.safetensors")
    text = refusal(autopar("verify", "build"), 1)
    assert "build/weights.safetensors is damaged: tensor 'enc.0.weight', in its bytes 0 to" in text


@pytest.mark.parametrize("rank", [-1, 8])
def test_ranks_out_of_range(here: Path, rank: int) -> None:
    text = refusal(autopar("inspect", "build", "--rank", rank), 1)
    assert text == f"--rank {rank}: build is for 8 ranks, 0 to 7"


@pytest.mark.parametrize("name", ["model.onnx", "x.npy", "build/weights.safetensors", "noise.pb"])
def test_files_that_are_not_of_a_build(here: Path, name: str) -> None:
    (here / "noise.pb").write_bytes(np.random.default_rng(0).bytes(999))
    text = refusal(autopar("inspect", name), 1)
    assert text.startswith(f"{name}: not a file of autopar's")


def test_truncated_files(here: Path) -> None:
    for name in ("manifest.pb", "serial.pb", "ranks.pb", "programs/0.pb"):
        content = (here / "build" / name).read_bytes()
        for length in range(0, len(content), 9):
            (here / "cut.pb").write_bytes(content[:length])
            done = autopar("inspect", "cut.pb")
            if done.exit_code:  # A message may happen to end where the file is cut.
                assert refusal(done, 1).startswith("cut.pb")


@pytest.fixture
def inputs(here: Path) -> Path:
    np.savez(here / "x.npz", x=INPUT)
    np.savez(here / "other.npz", X=INPUT)
    np.savez(here / "nothing.npz")
    np.save(here / "f64.npy", INPUT.astype(np.float64))
    np.save(here / "narrow.npy", INPUT[:, :15])
    np.save(here / "words.npy", np.array(["a"]))
    np.save(here / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (here / "folder.npz").mkdir()
    return here


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "inputs are missing:\n  --input x=FILE.npy    f32[8, 16]\nor --random-inputs SEED"),
        (["--input", "nothing.npz"], "inputs are missing:\n  --input x=FILE.npy    f32[8, 16]"),
        (["--input", "other.npz"], "there is no input 'X'"),
        (["--input", "X=x.npy", "--random-inputs", "0"], "there is no input 'X'"),
        (["--input", "x=f64.npy"], "input 'x' is f64[8, 16], it must be f32[8, 16]"),
        (["--input", "x=narrow.npy"], "input 'x' is f32[8, 15], it must be f32[8, 16]"),
        (["--input", "x=words.npy"], "input 'x' is no tensor"),
        (["--input", "x=objects.npy"], "can't read input objects.npy: "),
        (["--input", "x=none.npy"], "can't read input none.npy: No such file or directory"),
        (["--input", "none.npz"], "can't read input none.npz: No such file or directory"),
        (["--input", "x=model.onnx"], "input model.onnx: after NAME= expected a .npy file"),
        (["--input", "x"], "input x: expected NAME=FILE.npy, or a .npz or .safetensors file"),
        (["--input", "x=x.npy", "--input", "x.npz"], "--input x.npz: x is given twice"),
    ],
)
def test_inputs(inputs: Path, options: list[str], message: str) -> None:
    for virtual in (["--virtual"], []):
        assert message in refusal(autopar("run", "build", *options, *virtual), 1)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("y.txt", "output y.txt: the name must end in .npz or .safetensors"),
        ("none/y.npz", "output none/y.npz: the folder none doesn't exist"),
        ("folder.npz", "output folder.npz: it is a folder; name a file"),
        ("/proc/y.npz", "can't write /proc/y.npz"),
    ],
)
def test_outputs(inputs: Path, output: str, message: str) -> None:
    before = sorted(os.listdir())
    words = ["run", "build", "--input", "x.npz", "--virtual", "--output", output]
    assert message in refusal(autopar(*words), 1)
    assert sorted(os.listdir()) == before


def test_more_ranks_than_this_host_can_hold(here: Path) -> None:
    words = ["--mesh", "64x64", "--dims", "batch=64", "-o", "large", "-q"]
    assert autopar("compile", "model.onnx", *words).exit_code == 0
    text = refusal(autopar("run", "large", "--random-inputs", "0"), 1)
    assert "large is for 4096 ranks, which take more than the" in text
    assert "start them on a cluster with torchrun, or say --virtual" in text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.onnx", "--against none.onnx: there is no such file"),
        ("x.npy", "ONNX Runtime can't load x.npy: "),
        (
            "other.onnx",
            "--against other.onnx: this is another model than the one that was compiled; its"
            " outputs are z, not y",
        ),
    ],
)
def test_judges(here: Path, name: str, message: str) -> None:
    proto = two_layers()
    proto.graph.node[-1].output[0] = proto.graph.output[0].name = "z"
    proto.graph.output[0].type.CopyFrom(proto.graph.input[0].type)
    (here / "other.onnx").write_bytes(proto.SerializeToString())
    assert message in refusal(autopar("verify", "build", "--against", name), 1)


def test_verify_without_onnx_runtime(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    text = refusal(autopar("verify", "build", "--against", "model.onnx"), 1)
    assert text == "--against needs ONNX Runtime, which isn't installed: pip install onnxruntime"


def test_an_op_that_torch_does_not_have(here: Path) -> None:
    rebuilt("wrong", renamed("aten.relu.default", "aten.relux.default"))
    text = call(COMMANDS["run"], "wrong")
    assert text.startswith("model.onnx: relu (Relu): op aten.relux.default: torch ")


def test_an_op_that_its_arguments_do_not_fit(here: Path) -> None:
    rebuilt("wrong", renamed("aten.relu.default", "aten.convolution.default"))
    text = refusal(autopar("profile", "wrong", "--cluster", "cpu"), 1)
    assert text.startswith("wrong: model.onnx: relu (Relu): the rule of aten.convolution.default")
    assert text.endswith("; compile the model again")


def test_a_damaged_build_in_a_process_of_its_own(here: Path) -> None:
    shorten(here / "build/ranks.pb")
    text = refusal(process("inspect", "build"), 1)
    assert text.startswith("build/ranks.pb has 20 bytes instead of")


def test_results_and_messages_don_t_mix(here: Path) -> None:
    """What a script parses is on standard output alone."""
    done = autopar("inspect", "build", "--format", "json")
    assert done.stderr == ""
    assert json.loads(done.stdout)["world_size"] == 8
