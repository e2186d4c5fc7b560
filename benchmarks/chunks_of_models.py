"""Measures what `memory=` makes of models of which a part takes most of the memory.

    PYTHONPATH=. python benchmarks/chunks_of_models.py
    PYTHONPATH=. python benchmarks/chunks_of_models.py --only attention convolution

For each, one process with one thread, float32: the peak of a training step without a limit, the
limit, the peak within it as predicted and as it is allocated, both with what is stored; CPU seconds
beside those without a limit; and the largest difference of a loss and of a parameter from PyTorch's
after two steps, relative to the largest.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from typing import Any

import torch
from torch import Tensor

import autopar
from autopar.compiled import CompiledModel
from autopar.cost import memory_timeline
from tests.judges.tracking import executed
from tests.planning.chunk_cases import LARGE, Case

STEPS = 2
MIB = 2**20


def compiled(case: Case, batch: Any, **said: Any) -> CompiledModel:
    """Returns a training step of a case."""
    torch.manual_seed(0)
    model = case.model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return autopar.compile(model, batch, mesh="1", loss=case.loss, optimizer=optimizer, **said)


def trained(step: CompiledModel, batch: Any) -> tuple[list[float], dict[str, Tensor], float]:
    """Returns losses, parameters, and CPU seconds of the last step."""
    with tempfile.TemporaryDirectory() as folder:
        step.save(folder)
        with autopar.load(folder, virtual=True) as trainer:
            losses, seconds = list[float](), 0.0
            for _ in range(STEPS):
                start = time.process_time()
                losses.append(float(trainer.step(batch)))
                seconds = time.process_time() - start
            return losses, trainer.state_dict(), seconds


def by_torch(case: Case, batch: Any) -> tuple[list[float], dict[str, Tensor]]:
    """Returns the same, by PyTorch."""
    torch.manual_seed(0)
    model = case.model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = case.loss(model(batch[0]), batch[1])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses, copy.deepcopy(model.state_dict())


def row(name: str, case: Case) -> str:
    """Returns a row of the table."""
    torch.manual_seed(1)
    classes = getattr(getattr(case.model(), "head", None), "out_features", 2)
    batch = torch.randn(case.shape), torch.randint(0, classes, case.shape[:1])
    whole = compiled(case, batch)
    before = memory_timeline(whole.deployment.programs[0]).peak_bytes
    limit = int(case.share * before)
    parts = compiled(case, batch, memory=limit)
    program = parts.deployment.programs[0]
    predicted = memory_timeline(program).peak_bytes
    tracked = executed(program, parts.weights).peak_bytes
    losses, state, seconds = trained(parts, batch)
    whole_seconds = trained(whole, batch)[2]
    wanted_losses, wanted = by_torch(case, batch)
    off = max(abs(a - b) / abs(b) for a, b in zip(losses, wanted_losses, strict=True))
    worst = max(
        float((state[key] - value).abs().max() / value.abs().max()) for key, value in wanted.items()
    )
    count = max((pin.parts for pin in parts.options.chunks or ()), default=1)
    mib = " | ".join(f"{each / MIB:.1f}" for each in (before, limit, predicted, tracked))
    ratio = seconds / whole_seconds
    return f"| {name} | {count} | {mib} | {ratio:.2f} | {off:.0e}, {worst:.0e} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", help="beginnings of names")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| | parts | MiB | limit | predicted | allocated | CPU seconds | loss, parameters |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name, case in LARGE.items():
        if not given.only or name.startswith(tuple(given.only)):
            print(row(name, case), flush=True)


if __name__ == "__main__":
    main()
