"""Seven real ONNX models beside ONNX Runtime, on one core and in two processes.

    make models
    PYTHONPATH=. python benchmarks/onnx_runtime.py                    # the table
    PYTHONPATH=. python benchmarks/onnx_runtime.py ocr_cls --batches 1 8

On one core both run in turns in one process, each with one thread, and take CPU seconds: what else
the machine does adds to both. The ratio is that of each turn, of which the median counts. Then a
session of one process and one of two, which share the rows of a batch, take turns on the clock; the
last column is how many times as many rows two processes do in the same time. It means something on
two free cores only.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import NamedTuple

import onnxruntime
import torch

import autopar
from tests.given.models import MODELS, model_inputs, model_path

Clock = Callable[[], float]
SECONDS = 3.0
"""For how long the turns of a comparison go on, at least."""

LEAST = 7
"""Turns of a comparison, at least."""


class Pair(NamedTuple):
    """Seconds of two that took turns.

    Attributes:
        first, second: The median of each.
        ratio: The median of the ratios.
    """

    first: float
    second: float
    ratio: float


def main() -> None:
    """Measures and prints a line for each model and batch."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--no-processes", action="store_true", help="one core only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | batch | autopar ms | ONNX Runtime ms | ratio | two processes |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for name in options.models:
        measure(name, options.batches, not options.no_processes)


def measure(name: str, batches: Sequence[int], processes: bool) -> None:
    """Prints the lines of a model."""
    path = model_path(name)
    other = onnxruntime.InferenceSession(path, _one_thread())
    with ExitStack() as opened:
        one = opened.enter_context(autopar.InferenceSession(path))
        two = one
        if processes:
            session = autopar.InferenceSession(path, mesh=2, strategy="data")
            two = opened.enter_context(session)
        for batch in batches:
            feeds = dict(model_inputs(name, batch=batch).arrays)
            runs = [partial(each.run, None, feeds) for each in (one, other, two)]
            beside, gained = turns(runs[0], runs[1], time.process_time), ""
            if processes and batch > 1:
                gained = f"{turns(runs[0], runs[2], time.perf_counter).ratio:.2f}"
            first, second = f"{1e3 * beside.first:.2f}", f"{1e3 * beside.second:.2f}"
            print(
                f"| {name} | {batch} | {first} | {second} | {beside.ratio:.2f} | {gained} |",
                flush=True,
            )


def turns(first: Callable[[], object], second: Callable[[], object], clock: Clock) -> Pair:
    """Lets two take turns, after one turn that doesn't count."""
    spans: list[tuple[float, float]] = []
    first()
    second()
    end = time.monotonic() + SECONDS
    while len(spans) < LEAST or time.monotonic() < end:
        spans.append((_span(first, clock), _span(second, clock)))
    ones, others = zip(*spans, strict=True)
    return Pair(median(ones), median(others), median(a / b for a, b in spans))


def _span(run: Callable[[], object], clock: Clock) -> float:
    begin = clock()
    run()
    return clock() - begin


def _one_thread() -> onnxruntime.SessionOptions:
    found = onnxruntime.SessionOptions()
    found.intra_op_num_threads = found.inter_op_num_threads = 1
    found.log_severity_level = 3
    return found


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
