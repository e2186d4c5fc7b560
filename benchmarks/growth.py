"""How what one build costs grows with its mesh, by stages, where dimensions are open.

    python benchmarks/growth.py

Compiles MiniLM and training steps of a small transformer and of a small CNN, all with open
dimensions and as search decides, for 2x4, 8x8 and 64x64. Ranks share one program, so hardly
anything should depend on the mesh: the aim is at most 1.2 times the CPU seconds of the smallest
mesh, without the import of Python's modules.

Each build is made in a process of its own that has compiled nothing before, as a command does; the
meshes of a program take turns, and medians count. What a stage asks another for is that one's:
`proving` is the bound of all plans, `finding` the rest of the plan, `verifying` what is checked
between passes and the proof of communication, `modules` whatever Python imports on the way.
"""

from __future__ import annotations

import argparse
import builtins
import functools
import importlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

MESHES = ("2x4", "8x8", "64x64")
MODULES, REST, TOTAL, BUILD, MEMORY = "modules", "rest", "total", "build", "MiB"
STAGES: Mapping[str, Sequence[tuple[str, str]]] = {
    "model": (
        ("autopar.frontend.onnx", "import_onnx"),
        ("autopar.frontend.onnx.imported", "ImportedModel.recognized"),
        ("autopar.frontend.torch.capture.capture", "capture"),
    ),
    "finding": (("autopar.planning.planner", "Planner.best"),),
    "proving": (("autopar.completion.search.bounds.proving", "Proving._prove"),),
    "lowering": (
        ("autopar.planning.lowering", "Lowering.__call__"),
        ("autopar.planning.fit", "Fitter.within"),
        ("autopar.mapping.deploy", "deploy"),
    ),
    "verifying": (
        ("autopar.pipeline.passes", "_verify"),
        ("autopar.mapping.prove", "prove"),
    ),
    "writing": (("autopar.compiled", "CompiledModel.save"),),
}
"""The functions of each stage, by module and name."""
Run = Mapping[str, float]
"""What a build took, by column."""
COLUMNS = (MODULES, *STAGES, REST, TOTAL, BUILD, MEMORY)
"""A build is all but the modules; memory is that of the process at its peak."""


class Clock:
    """CPU seconds by stages, of which the innermost counts.

    Attributes:
        seconds: By stage, as far as it is known.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys((MODULES, *STAGES, REST), 0.0)
        self._stage, self._since = REST, time.process_time()

    @contextmanager
    def at(self, stage: str) -> Iterator[None]:
        """Counts what is done meanwhile for a stage."""
        before = self._stage
        self._turn_to(stage)
        try:
            yield
        finally:
            self._turn_to(before)

    def _turn_to(self, stage: str) -> None:
        now = time.process_time()
        self.seconds[self._stage] += now - self._since
        self._stage, self._since = stage, now

    def wrapped(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        """Returns a function whose calls count for a stage."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.at(stage):
                return function(*args, **kwargs)

        return call


def main() -> None:
    """Measures and prints, or is the process that is measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="builds of each kind")
    parser.add_argument("--meshes", nargs="+", default=MESHES, help="the first one is compared to")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--measure", nargs=2, metavar=("PROGRAM", "MESH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(*options.measure)))
        return
    print(f"{'CPU seconds':22}" + "".join(f"{name:>10}" for name in COLUMNS) + f"{'ratio':>8}")
    for program in options.programs:
        rounds = [
            [in_own_process(program, mesh) for mesh in options.meshes]
            for _ in range(options.rounds)
        ]
        of_meshes = list(zip(*rounds, strict=True))
        first = of_meshes[0]
        for mesh, runs in zip(options.meshes, of_meshes, strict=True):
            row(f"{program}, {mesh}", runs, first)


def row(
    name: str, runs: Sequence[Mapping[str, float]], first: Sequence[Mapping[str, float]]
) -> None:
    """Prints the medians of a mesh, and that of its ratios to the first mesh in the same round."""
    cells = [median(run[column] for run in runs) for column in COLUMNS]
    forms = ["{:10.0f}" if column == MEMORY else "{:10.3f}" for column in COLUMNS]
    ratio = median(one[BUILD] / other[BUILD] for one, other in zip(runs, first, strict=True))
    texts = (form.format(cell) for form, cell in zip(forms, cells, strict=True))
    print(f"{name:22}" + "".join(texts) + f"{ratio:8.2f}", flush=True)


def in_own_process(program: str, mesh: str) -> Run:
    """Returns what `measured` says in a process of its own."""
    command = [sys.executable, __file__, "--measure", program, mesh]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds: Run = json.loads(done.stdout.splitlines()[-1])
    return seconds


def measured(program: str, mesh: str) -> Run:
    """Returns CPU seconds by stage and in all, and the MiB of the process at its peak."""
    clock = Clock()
    with imports_counted(clock):
        count_stages(clock)
        build = PROGRAMS[program]()
        clock.seconds[REST] = 0.0  # making a model of PyTorch is none of what is measured
        with clock.at(REST), tempfile.TemporaryDirectory() as folder:
            build(mesh, Path(folder, "build"))
    total = sum(clock.seconds.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {**clock.seconds, TOTAL: total, BUILD: total - clock.seconds[MODULES], MEMORY: peak}


@contextmanager
def imports_counted(clock: Clock) -> Iterator[None]:
    """Counts for the modules what imports take meanwhile, also of what they import."""
    known = builtins.__import__, importlib.import_module
    builtins.__import__, importlib.import_module = (clock.wrapped(e, MODULES) for e in known)
    try:
        yield
    finally:
        builtins.__import__, importlib.import_module = known


def count_stages(clock: Clock) -> None:
    """Lets the functions of all stages be counted, wherever they were imported to."""
    for stage, functions in STAGES.items():
        for module, name in functions:
            owner: Any = importlib.import_module(module)
            *outer, name = name.split(".")
            for each in outer:
                owner = getattr(owner, each)
            function = getattr(owner, name)
            call = clock.wrapped(function, stage)
            setattr(owner, name, call)
            for other in [m for n, m in sys.modules.items() if n.startswith("autopar")]:
                if vars(other).get(name) is function:
                    setattr(other, name, call)


Build = Callable[[str, Path], object]
"""Compiles for a mesh, and writes that into a folder."""


def minilm() -> Build:
    """Returns what compiles MiniLM, whose batch and length are open."""
    from compile_time import model_file

    from autopar.cli import main as autopar

    def build(mesh: str, folder: Path) -> None:
        command = ["compile", str(model_file()), "--mesh", mesh, "-q", "-o", str(folder)]
        autopar.main(command, standalone_mode=False)

    return build


def transformer() -> Build:
    """Returns what compiles a training step of two layers, whose batch and length are open."""
    import torch
    from torch import nn

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(256, 128)
            layers = (
                nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
                for _ in range(2)
            )
            self.layers = nn.Sequential(*layers)
            self.head = nn.Linear(128, 256)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.head(self.layers(self.tokens(ids)))
            return logits.flatten(0, 1)

    ids = torch.zeros(8, 64, dtype=torch.long)
    sizes = {0: "batch", 1: "length"}
    return _training(Transformer(), (ids, ids.clone()), {0: sizes, 1: sizes})


def cnn() -> Build:
    """Returns what compiles a training step of three convolutions, whose batch is open."""
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for channels, more, stride in ((3, 32, 1), (32, 64, 2), (64, 64, 2)):
        layers += [nn.Conv2d(channels, more, 3, stride=stride, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    batch = torch.zeros(16, 3, 32, 32), torch.zeros(16, dtype=torch.long)
    return _training(model, batch, {0: {0: "batch"}, 1: {0: "batch"}})


def _training(model: Any, batch: Any, dynamic: Any) -> Build:
    import torch
    from torch.nn.functional import cross_entropy

    import autopar

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return cross_entropy(output, target.flatten())

    def build(mesh: str, folder: Path) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        compiled = autopar.compile(
            model, batch, mesh=mesh, loss=loss, optimizer=optimizer, dynamic=dynamic
        )
        compiled.save(folder)

    return build


PROGRAMS: Mapping[str, Callable[[], Build]] = {
    "minilm": minilm,
    "transformer": transformer,
    "cnn": cnn,
}

if __name__ == "__main__":
    main()
