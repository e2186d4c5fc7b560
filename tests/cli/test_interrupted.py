"""Compilations that end early: the old build stays whole, or the new one is there complete."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from autopar import pipeline
from autopar.frontend.onnx import ImportedModel, import_onnx
from autopar.ir.builds.files import read_build
from tests.cli.command import BATCH, command

MESHES = ("2x4", "3")
ROUNDS = 40
"""Kills at least; there are more until every case was seen."""

Version = tuple[pipeline.Compiled, ImportedModel]


def write_forever(versions: Sequence[Version], path: Path) -> None:
    while True:
        for compiled, imported in versions:
            pipeline.write(compiled, imported.weights, path)


def digest(path: Path) -> str:
    """Returns which build is there, after reading all of it."""
    build = read_build(path)
    assert build.serial
    assert build.deployment
    for file in build.manifest.files:
        build.check_file(file)
    return build.digest


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_kills_at_any_moment(here: Path) -> None:
    """Two builds replace each other until the writer is killed, with and without an old build."""
    imported = import_onnx("model.onnx", dims={"batch": BATCH})
    versions: list[Version] = []
    digests = set()
    for mesh in MESHES:
        options = pipeline.CompileOptions.from_text(mesh=mesh)
        versions.append((pipeline.compile_program(imported.program, options), imported))
        start = time.monotonic()
        pipeline.write(versions[-1][0], imported.weights, here / "sample")
        seconds = time.monotonic() - start
        digests.add(digest(here / "sample"))
    assert len(digests) == len(MESHES)
    shutil.rmtree(here / "build")

    chance = random.Random(0)
    found: set[str] = set()
    rounds = leftovers = absent = 0
    while rounds < ROUNDS or found != digests or leftovers < 5 or absent < 2:
        rounds += 1
        assert rounds < 20 * ROUNDS, (found, leftovers, absent)
        if rounds % 3 == 0:
            shutil.rmtree(here / "build", ignore_errors=True)
        had_one = (here / "build").exists()
        writer = multiprocessing.get_context("fork").Process(
            target=write_forever, args=(versions, here / "build")
        )
        writer.start()
        time.sleep(chance.uniform(0.0, 4 * seconds))
        writer.kill()
        writer.join()
        if had_one or (here / "build").exists():
            found.add(digest(here / "build"))
        else:
            absent += 1
        leftovers += any(name.startswith(".build.new") for name in os.listdir(here))

    pipeline.write(versions[0][0], imported.weights, here / "build")
    assert [name for name in os.listdir(here) if name.startswith(".")] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals(here: Path, number: signal.Signals) -> None:
    """The signal comes after the first pass: its program is printed."""
    before = sorted(os.listdir(here))
    words = ["--mesh", "3", "--dims", f"batch={BATCH}", "--print-after", "annotate", "-o", "new"]
    process = subprocess.Popen(
        command("compile", "model.onnx", *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith('program "')
    process.send_signal(number)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 128 + number
    told = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    assert errors == f"error: {told}\n"
    assert sorted(os.listdir(here)) == before
