"""Damaged models of every kind end in a message: no crash, no hang, no traceback.

A process of its own compiles the mutations, so that a crash of native code is seen, too.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from onnx import GraphProto, ModelProto

from autopar.cli import main
from tests.cli.command import BATCH, two_layers
from tests.models import model_path

SECONDS = 90
"""Until a mutation counts as hanging, on a busy machine: all of them take a few."""

LARGE = 64
"""Bytes of a tensor from which on its content isn't mutated: other numbers are a fine model."""


def structure(source: bytes) -> list[int]:
    """Returns the positions that aren't within large tensors."""
    proto = ModelProto.FromString(source)
    inside = bytearray(len(source))
    for content in _contents(proto.graph):
        if len(content) > LARGE and (at := source.find(content)) >= 0:
            inside[at : at + len(content)] = b"x" * len(content)
    return [at for at, mark in enumerate(inside) if not mark]


def _contents(graph: GraphProto) -> list[bytes]:
    found = [tensor.raw_data for tensor in graph.initializer]
    for node in graph.node:
        for attribute in node.attribute:
            found.append(attribute.t.raw_data)
            if attribute.HasField("g"):
                found.extend(_contents(attribute.g))
    return found


def mutated(source: bytes, places: list[int], chance: random.Random) -> bytes:
    """Returns the file cut short, or with a few bytes changed, removed or added."""
    content = bytearray(source)
    if chance.random() < 0.1:
        return bytes(content[: chance.choice(places)])
    for _ in range(chance.choice([1, 1, 2, 4])):
        at = min(chance.choice(places), len(content) - 1)
        kind = chance.random()
        if kind < 0.7:
            content[at] = chance.randrange(256)
        elif kind < 0.85:
            del content[at : at + chance.randrange(1, 8)]
        else:
            content[at:at] = chance.randbytes(chance.randrange(1, 8))
    return bytes(content)


def compile_all(source: Path, folder: Path, count: int, options: list[str]) -> None:
    """Compiles mutations of a file; fails if one of them doesn't end well."""
    content = source.read_bytes()
    places = structure(content)
    path, output = folder / "mutated.onnx", folder / "build"
    refused = 0
    for seed in range(count):
        path.write_bytes(mutated(content, places, random.Random(seed)))
        words = ["compile", str(path), "--mesh", "2", "-o", str(output), *options]
        done = CliRunner().invoke(main, words)
        if done.exit_code not in (0, 1) or "Traceback" in done.output:
            sys.exit(f"mutation {seed}: exit code {done.exit_code}\n{done.output}")
        refused += done.exit_code
    print(refused)


def refused_in_a_process(source: Path, folder: Path, count: int, *options: str) -> int:
    words = map(str, (source, folder, count, *options))
    command = [sys.executable, "-m", "tests.cli.test_mutations", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_small_model(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(two_layers().SerializeToString())
    count = 250
    refused = refused_in_a_process(
        tmp_path / "model.onnx", tmp_path, count, "--dim", f"batch={BATCH}"
    )
    assert count * 0.9 < refused < count


@pytest.mark.models
def test_real_model(tmp_path: Path) -> None:
    """Its sizes stay open, so that what survives the reader isn't compiled: that takes long."""
    count = 250
    assert refused_in_a_process(model_path("silero_vad"), tmp_path, count) == count


if __name__ == "__main__":
    compile_all(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
