"""Measures a head with cross-entropy in chunks, beside what else computes it in less memory.

    python benchmarks/chunks.py                       4,096 rows of 768, 50,257 classes, float32
    python benchmarks/chunks.py --rows 1024 --parts 8 64
    python benchmarks/chunks.py --only eager autopar
    python benchmarks/chunks.py --dtype bfloat16

One step gives the loss and the gradients of what is projected and of the weight; autopar's also
updates both. Each way runs in a process of its own: the peak of what is allocated in a step beyond
what is there before, as torch's profiler sees it, what autopar predicts of it, by how much the
memory of the process grows in a step that is as any other (RSS), and the least CPU seconds of some
steps, as a ratio to eager ones. `eager` and `exact` are the largest difference of the gradient of
the weight from eager's, and from one in float64, relative to its largest element.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

RATE, LARGE_RATE = 1.0, 2.0**24
"""Of steps that are measured; and of one by which a parameter becomes its gradient, times that."""


@dataclass(frozen=True)
class Sizes:
    """What is computed: rows of a width, and classes."""

    rows: int
    width: int
    classes: int
    dtype: torch.dtype

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what is projected, the weight, and targets."""
        torch.manual_seed(0)
        hidden = torch.randn(self.rows, self.width).to(self.dtype)
        weight = (torch.randn(self.classes, self.width) / self.width**0.5).to(self.dtype)
        return hidden, weight, torch.randint(0, self.classes, (self.rows,))


@dataclass(frozen=True)
class Measured:
    """What a way takes."""

    peak_mib: float
    resident_mib: float
    seconds: float
    gradient: NDArray[np.float32]
    predicted_mib: float | None = None


Step = Callable[[], Tensor]
"""Takes a step, and returns the gradient of the weight."""


def allocated_bytes(step: Step) -> int:
    """Returns the most that is allocated during a step beyond what is there before."""
    with torch.profiler.profile(profile_memory=True) as seen:
        step()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def resident_bytes(step: Step) -> int:
    """Returns by how much the memory of the process grows in a step, at most; 0 where unknown."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not status.exists():
        return 0

    def kib(field: str) -> int:
        (line,) = (each for each in status.read_text().splitlines() if each.startswith(field))
        return int(line.split()[1])

    ctypes.CDLL(None).malloc_trim(0)  # what was freed isn't there any more
    reset.write_text("5")  # and the most that there was is what there is now
    before = kib("VmRSS:")
    step()
    return 1024 * (kib("VmHWM:") - before)


def measured(step: Step, repeats: int, predicted_mib: float | None = None) -> Measured:
    gradient = step().detach().float().numpy()
    resident = resident_bytes(step)
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
    peak_mib, resident_mib = allocated_bytes(step) / 2**20, resident / 2**20
    return Measured(peak_mib, resident_mib, min(seconds), gradient, predicted_mib)


def under_autograd(sizes: Sizes, loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Step:
    hidden, weight, target = sizes.tensors()
    hidden.requires_grad_()
    weight.requires_grad_()

    def step() -> Tensor:
        of_hidden, of_weight = torch.autograd.grad(loss(hidden, weight, target), (hidden, weight))
        del of_hidden
        return of_weight

    return step


def plain(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(hidden @ weight.t(), target)


def compiled(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    function: Any = _compiled()
    loss: Tensor = function(hidden, weight, target)
    return loss


_KEPT: list[Any] = []


def _compiled() -> Any:
    if not _KEPT:
        _KEPT.append(torch.compile(plain))
    return _KEPT[0]


def by_hand(sizes: Sizes, parts: int) -> Step:
    """Logits of a chunk become their gradient in place; products are added to their totals."""
    hidden, weight, target = sizes.tensors()

    def step() -> Tensor:
        of_weight, of_hidden = torch.zeros_like(weight), torch.empty_like(hidden)
        for rows, numbers, out in zip(
            hidden.chunk(parts), target.chunk(parts), of_hidden.chunk(parts), strict=True
        ):
            scores = torch.log_softmax(rows @ weight.t(), -1).exp_()
            scores[torch.arange(len(rows)), numbers] -= 1
            scores /= len(hidden)
            of_weight.addmm_(scores.t(), rows)
            torch.mm(scores, weight, out=out)
        return of_weight

    return step


class Head(nn.Module):
    """What is projected is a parameter, so that it has a gradient."""

    def __init__(self, hidden: Tensor, weight: Tensor) -> None:
        super().__init__()
        self.hidden, self.weight = nn.Parameter(hidden), nn.Parameter(weight)

    def forward(self, target: Tensor) -> Tensor:
        return plain(self.hidden, self.weight, target)


def by_autopar(sizes: Sizes, parts: int, repeats: int) -> Measured:
    import autopar
    from autopar.cost import memory_timeline

    target = sizes.tensors()[2]
    step = _compiled_by_autopar(sizes, parts, RATE)
    timeline = memory_timeline(step.deployment.programs[0])
    predicted = (timeline.peak_bytes - timeline.stored_bytes) / 2**20
    with tempfile.TemporaryDirectory() as folder:
        step.save(folder)
        with autopar.load(folder, virtual=True) as trainer:
            found = measured(lambda: _stepped(trainer, target), repeats, predicted)
    return replace(found, gradient=_gradient_by_autopar(sizes, parts))


def _compiled_by_autopar(sizes: Sizes, parts: int, rate: float) -> Any:
    import autopar

    hidden, weight, target = sizes.tensors()
    model = Head(hidden, weight)
    return autopar.compile(
        model,
        target,
        mesh="1",
        strategy=None,
        training_step=lambda module, batch: module(batch),
        optimizer=torch.optim.SGD(model.parameters(), rate),
        chunks={"mm": (0, parts)} if parts > 1 else None,
    )


def _gradient_by_autopar(sizes: Sizes, parts: int) -> NDArray[np.float32]:
    """Returns the gradient of the weight: what a step changes it by that is as large as it can."""
    import autopar

    with tempfile.TemporaryDirectory() as folder:
        _compiled_by_autopar(sizes, parts, LARGE_RATE).save(folder)
        with autopar.load(folder, virtual=True) as trainer:
            trainer.step(sizes.tensors()[2])
            changed = trainer.state_dict()["weight"].float() - sizes.tensors()[1].float()
            return (-changed / LARGE_RATE).numpy()


def _stepped(trainer: Any, target: Tensor) -> Tensor:
    trainer.step(target)
    return target


def ways(
    sizes: Sizes, parts: list[int], repeats: int
) -> Iterator[tuple[str, Callable[[], Measured]]]:
    """Yields what is measured, by name."""
    yield "eager", lambda: measured(under_autograd(sizes, plain), repeats)
    yield "torch.compile", lambda: measured(under_autograd(sizes, compiled), repeats)
    for count in parts:
        yield f"auto-chunker {count}", partial(_auto_chunked, sizes, count, repeats)
    if hasattr(F, "linear_cross_entropy"):
        yield "linear_cross_entropy", lambda: measured(under_autograd(sizes, _linear), repeats)
    for count in parts:
        yield f"by hand {count}", partial(_by_hand, sizes, count, repeats)
    for count in (1, *parts):
        yield f"autopar {count}", partial(by_autopar, sizes, count, repeats)


def _by_hand(sizes: Sizes, parts: int, repeats: int) -> Measured:
    return measured(by_hand(sizes, parts), repeats)


def _linear(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    loss: Tensor = F.linear_cross_entropy(hidden, weight, target)
    return loss


def _auto_chunked(sizes: Sizes, parts: int, repeats: int) -> Measured:
    from torch._inductor import config

    # By default it leaves alone what makes less than eight times of what it is given.
    asked = {"enable": True, "num_chunk": parts, "amplify_ratio_threshold": 1}
    with config.patch({f"auto_chunker.{name}": value for name, value in asked.items()}):
        return measured(under_autograd(sizes, compiled), repeats)


def in_a_process(way: Callable[[], Measured]) -> Measured | str:
    """Measures a way in a process of its own; returns why it doesn't work if it doesn't."""
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)

    def run() -> None:
        torch.set_num_threads(1)
        try:
            sender.send(way())
        except Exception as error:
            sender.send(f"{type(error).__name__}: {str(error).splitlines()[0][:60]}")

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    sender.close()
    try:
        found: Measured | str = receiver.recv()
    except EOFError:
        found = "ended without a word"
    process.join()
    return found


def exact_gradient(sizes: Sizes) -> NDArray[np.float32]:
    """Returns the gradient of the weight, computed in float64 of the same numbers."""
    given = sizes.tensors()
    hidden, weight = (tensor.double() for tensor in given[:2])
    gradient = torch.zeros_like(weight)
    for rows, numbers in zip(hidden.chunk(64), given[2].chunk(64), strict=True):
        scores = torch.softmax(rows @ weight.t(), -1)
        scores[torch.arange(len(rows)), numbers] -= 1
        gradient.addmm_(scores.t(), rows, alpha=1 / len(hidden))
    return gradient.float().numpy()


def _difference(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> str:
    return f"{abs(found - wanted).max() / abs(wanted).max():.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, size in {"rows": 4096, "width": 768, "classes": 50257, "repeats": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--parts", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--only", nargs="+", help="beginnings of names")
    given = parser.parse_args()
    sizes = Sizes(given.rows, given.width, given.classes, getattr(torch, given.dtype))
    exact = exact_gradient(sizes)
    eager: Measured | None = None
    columns = f"{'way':24} {'peak MiB':>9} {'predicted':>10} {'RSS':>6} {'CPU s':>6} {'/ eager':>8}"
    print(f"{columns} {'eager':>8} {'exact':>8}")
    for name, way in ways(sizes, given.parts, given.repeats):
        if given.only and not name.startswith(tuple(given.only)):
            continue
        found = in_a_process(way)
        if isinstance(found, str):
            print(f"{name:24} {found}", flush=True)
            continue
        eager = found if name == "eager" else eager
        predicted = "" if found.predicted_mib is None else f"{found.predicted_mib:.1f}"
        ratio, error = "", ""
        if eager is not None:
            ratio = f"{found.seconds / eager.seconds:.3f}"
            error = _difference(found.gradient, eager.gradient)
        print(
            f"{name:24} {found.peak_mib:9.1f} {predicted:>10} {found.resident_mib:6.0f}"
            f" {found.seconds:6.2f} {ratio:>8} {error:>8} {_difference(found.gradient, exact):>8}",
            flush=True,
        )


if __name__ == "__main__":
    main()
