"""The command line as a user calls it, in this process or in one of its own; a small model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result
from onnx import ModelProto

from autopar.cli import main
from autopar.ir.builds.files import read_build, write_build
from autopar.ir.builds.manifest import FileEntry, WeightDigests
from autopar.ir.program import Op
from tests.frontend.onnx.graphs import FLOAT, graph, model, node

BATCH = 8
WORDS = ("--mesh", "2x4", "--dims", f"batch={BATCH}", "--strategy", "data:0,tensor:1")
"""How the small model is compiled: so that its ranks communicate."""

INPUT = np.linspace(-1, 1, BATCH * 16, dtype=np.float32).reshape(BATCH, 16)


def two_layers() -> ModelProto:
    """A model with an open batch: x -> linear, relu, linear -> y."""
    random = np.random.default_rng(0)
    weights = {
        "enc.0.weight": random.normal(size=(16, 32)).astype(np.float32),
        "enc.0.bias": random.normal(size=32).astype(np.float32),
        "enc.1.weight": random.normal(size=(32, 16)).astype(np.float32),
    }
    nodes = [
        node("MatMul", "x enc.0.weight", "h", name="first"),
        node("Add", "h enc.0.bias", "hb", name="bias"),
        node("Relu", "hb", "a", name="relu"),
        node("MatMul", "a enc.1.weight", "y", name="second"),
    ]
    return model(graph(nodes, {"x": (FLOAT, ["batch", 16])}, ["y"], weights))


def autopar(*words: object) -> Result:
    """Runs a command in this process."""
    return CliRunner().invoke(main, [str(word) for word in words])


def process(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a process of its own."""
    return subprocess.run(
        command(*words),
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=600,
    )


def command(*words: object) -> list[str]:
    """The command as words for a process."""
    return [sys.executable, "-m", "autopar", *map(str, words)]


def compiled(folder: Path, *options: object) -> Path:
    """Writes the small model and its build into a folder and returns the build."""
    (folder / "model.onnx").write_bytes(two_layers().SerializeToString())
    words = [*WORDS, "-o", folder / "build", "-q"]
    done = autopar("compile", folder / "model.onnx", *words, *options)
    assert (done.exit_code, done.output) == (0, ""), done.output
    return folder / "build"


def rebuilt(target: str, change: Callable[[Op], Op]) -> None:
    """Writes `build` again, with other ops in what the ranks run."""
    build = read_build("build")
    program = build.deployment.programs[0]
    ops = tuple(map(change, program.main.ops))
    assert ops != program.main.ops
    changed = program.with_main(replace(program.main, ops=ops))

    def copy_weights(file: Path) -> tuple[FileEntry, WeightDigests]:
        shutil.copy("build/weights.safetensors", file)
        entry = next(each for each in build.manifest.files if each.path == file.name)
        assert build.manifest.weights is not None
        return entry, build.manifest.weights

    write_build(
        target,
        serial=build.serial,
        deployment=replace(build.deployment, programs=(changed,)),
        autopar_version="0",
        write_weights=copy_weights,
    )


def renamed(kind: str, other: str) -> Callable[[Op], Op]:
    """A change of an op of one kind into one of another."""
    return lambda op: replace(op, kind=other) if op.kind == kind else op


def refusal(done: Result | subprocess.CompletedProcess[str], code: int) -> str:
    """Returns the message of a command that must fail with this code and nothing but a message."""
    found = done.exit_code if isinstance(done, Result) else done.returncode
    assert found == code, (found, done.stdout, done.stderr)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    return done.stderr.removeprefix("error: ").rstrip("\n")
