"""Predicted against measured: seconds and peaks of training steps of seven models on one core.

    PYTHONPATH=. python benchmarks/prediction.py                      all of them
    PYTHONPATH=. python benchmarks/prediction.py --only gpt2 resnet
    PYTHONPATH=. python benchmarks/prediction.py --cluster cpu        with figures that are known

The machine is calibrated, the steps are compiled for what was found (AdamW, gradients clipped), and
then each model trains. Seconds are CPU seconds of the process, here and there, so that other
programs aren't counted, as far as they leave it caches and memory. A second table has what ops take
by family, which are timed one by one in a step: where a step is predicted badly, it says why.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import zoo_models
from torch import Tensor, fx

import autopar
from autopar.compiled import CompiledModel
from autopar.cost import Cluster, evaluate, memory_timeline
from autopar.ir.ops.families import family_of
from autopar.ir.program import Op, Program
from autopar.ir.rules.rule import TensorType
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.updates import InPlace
from autopar.runtime.kernels.bindings import fast_kernel
from tests.judges.tracking import arguments, executed

MODELS = ("gpt2", "llama", "bert", "vit", "t5", "mixtral", "resnet")
CLASSES = 8
"""Of images."""

STEPS = 5
"""Of which the first two aren't counted."""

WARM = 2
MIB = 2**20

Families = Mapping[str, float]
"""Seconds by family of ops."""


@dataclass(frozen=True)
class Row:
    """What was found of a model.

    Attributes:
        name: The model.
        predicted, measured: Seconds of a step.
        predicted_bytes, measured_bytes: Its peak.
        predicted_ops, measured_ops: Seconds of its ops by family.
    """

    name: str
    predicted: float
    measured: float
    predicted_bytes: int
    measured_bytes: int
    predicted_ops: Families
    measured_ops: Families

    def __str__(self) -> str:
        seconds = f"{1e3 * self.predicted:9.1f}{1e3 * self.measured:9.1f}"
        peaks = f"{self.predicted_bytes / MIB:11.2f}{self.measured_bytes / MIB:9.2f}"
        off = off_text(self.predicted, self.measured)
        return f"{self.name:10}{seconds}{off}{peaks}"


def off_text(predicted: float, measured: float) -> str:
    """Returns how far a prediction is off."""
    return f"{100 * (predicted / measured - 1):+8.1f}%" if measured else f"{'':9}"


class Timed(fx.Interpreter):
    """Runs a program, and knows what each node takes.

    Args:
        module: What `emit` returned.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seconds: dict[fx.Node, list[float]] = defaultdict(list)
        self._node: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        """Runs a node."""
        self._node = n
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Times a call."""
        assert self._node is not None
        start = time.thread_time()
        result = target(*args, **kwargs)
        self.seconds[self._node].append(time.thread_time() - start)
        return result


def drawn(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a batch of the same shapes with values that differ."""
    torch.manual_seed(1)
    vocabulary = zoo_models.VOCABULARY
    return {
        name: torch.randn(each.shape)
        if each.is_floating_point()
        else torch.randint(0, CLASSES if each.dim() == 1 else vocabulary, each.shape)
        for name, each in batch.items()
    }


def compiled(name: str, cluster: Cluster) -> tuple[CompiledModel, dict[str, Tensor]]:
    """Returns a training step of a model, and a batch."""
    example = zoo_models.examples()[name]
    torch.manual_seed(0)
    model, batch = example.build().train(), drawn(example.batch)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    step = autopar.compile(
        model, batch, mesh="1", optimizer=optimizer, clip_grad_norm=1.0, cluster=cluster
    )
    return step, batch


def step_seconds(step: CompiledModel, batch: Mapping[str, Tensor]) -> float:
    """Returns the CPU seconds of a step of its trainer."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        step.save(folder)
        with autopar.load(folder) as trainer:
            for _ in range(STEPS):
                start = time.process_time()
                trainer.step(batch)
                found.append(time.process_time() - start)
    return statistics.median(found[WARM:])


def family(program: Program, op: Op) -> str:
    """Returns the family of an op of a program."""
    values = (program.main.values[name] for name in (*op.operands, *op.results))
    return family_of(op.kind, [TensorType(each.known_shape, each.dtype) for each in values])


def measured_ops(
    program: Program, weights: Mapping[str, Tensor], batch: Mapping[str, Tensor]
) -> Families:
    """Returns the CPU seconds of ops by family, timed one by one."""
    module = emit(program, {}, "cpu", InPlace(lambda loss, refusal: None), fast_kernel)
    timed = Timed(module)
    inputs = arguments(program, {**weights, **batch})
    with torch.no_grad():
        for _ in range(STEPS):
            timed.run(*inputs)
    found: dict[str, float] = defaultdict(float)
    for node, seconds in timed.seconds.items():
        op = node.meta.get("op")
        if op is not None and "." in op.kind:
            found[family(program, op)] += statistics.median(seconds[WARM:])
    return found


def row(name: str, cluster: Cluster) -> Row:
    """Returns what is found of a model."""
    step, batch = compiled(name, cluster)
    program = step.deployment.programs[0]
    evaluation = evaluate(program, cluster)
    predicted: dict[str, float] = defaultdict(float)
    for op, cost in zip(evaluation.ops, evaluation.costs, strict=True):
        if cost.seconds:
            predicted[family(program, op)] += cost.seconds
    return Row(
        name,
        evaluation.overlapped_seconds,
        step_seconds(step, batch),
        memory_timeline(program).peak_bytes,
        executed(program, step.weights).peak_bytes,
        predicted,
        measured_ops(program, step.weights, batch),
    )


def print_families(rows: Sequence[Row]) -> None:
    """Prints what ops of each family take in all models together, the most first."""
    print(f"\n{'ops, ms':32}{'predicted':>10}{'measured':>10}{'off':>9}")
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for each in rows:
        for at, found in enumerate((each.predicted_ops, each.measured_ops)):
            for name, seconds in found.items():
                sums[name][at] += seconds
    for name, (predicted, measured) in sorted(sums.items(), key=lambda item: -item[1][1]):
        figures = f"{1e3 * predicted:10.1f}{1e3 * measured:10.1f}"
        print(f"{name:32}{figures}{off_text(predicted, measured)}")


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", choices=MODELS, default=MODELS)
    parser.add_argument("--cluster", help="known figures, instead of calibrating")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.cluster is None:
        calibration = autopar.calibrate(device="cpu", clock="cpu")
        assert calibration is not None
        print(f"{calibration}\n")
        cluster = calibration.cluster
    else:
        cluster = Cluster.load(options.cluster)
    print(f"{'a step':10}{'predicted':>9}{'measured':>9} ms{'':6}{'peak':>11}{'measured':>9} MiB")
    rows = []
    for name in options.only:
        rows.append(row(name, cluster))
        print(rows[-1], flush=True)
    print_families(rows)


if __name__ == "__main__":
    main()
