"""Predicted flops and bytes of training steps beside measured ones, and beside PyTorch's own tools.

    PYTHONPATH=. python benchmarks/profiles.py            # all models, on this machine's CPU
    PYTHONPATH=. python benchmarks/profiles.py --models gpt2 bert
    PYTHONPATH=. python benchmarks/profiles.py --large    # Llama-70B too, which is only predicted

Of each model, a forward and backward pass in float32 from zero gradients:

* *measured*: the most bytes of tensors at once that a dispatch mode sees while PyTorch runs it on
  the CPU, parameters, buffers and the batch included. It counts every storage once, after each op.
  What a kernel takes and gives back while it runs isn't seen.
* *autopar*: what `autopar.profile(module, batch)` predicts, which runs nothing.
* *MemTracker*: what `torch.distributed._tools.MemTracker` finds, which runs it on fake tensors.
* *saved*: bytes of the storages that autograd keeps for the backward pass, measured by
  `saved_tensors_hooks`, beside the prediction.
* *flops*: those of `torch.utils.flop_counter.FlopCounterMode`, attention of the CPU counted by its
  own formula of attention, beside the prediction.
* *planned*: the same of the compiled step, with AdamW, executed by autopar; *computed again*: of
  that with activations computed again, so that at most two thirds are saved.

Times are CPU seconds. `gpt` is GPT-2 small as it is written by hand (124 M parameters, tied head,
sequences of 1,024, batch 2), whose step is known to take 2,818.2 MiB; the others are the sizes that
their names mean, from `transformers`.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from language_models import LLAMA_70B, llama
from torch import Tensor, nn
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

import autopar
from autopar.cost import Cluster, memory_timeline
from autopar.frontend.torch import Recipe, capture
from autopar.frontend.torch.capture.fake import fake_like, fake_model
from autopar.ir.program import Program
from autopar.partition.recompute import recompute
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.specialize import specialize
from autopar.runtime.execute.updates import InPlace
from autopar.runtime.kernels.table import TORCH_DTYPES
from tests.judges.tracking import Tracking
from tests.zoo.full_size import CASES, Case, text

MIB = 2**20
COLUMNS = (
    "step",
    "measured, MiB",
    "autopar",
    "error",
    "MemTracker",
    "error",
    "saved",
    "flops",
    "planned, measured",
    "error",
    "computed again, measured",
    "error",
    "autopar, CPU s",
    "MemTracker, CPU s",
    "FlopCounter, CPU s",
)


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Any, Tensor]:
    """Returns all that a model returns, which the caller holds, and its loss."""
    found = model(**batch)
    return found, found if isinstance(found, Tensor) else found.loss


def measured_bytes(model: nn.Module, batch: dict[str, Tensor]) -> tuple[int, float]:
    """Returns the peak of a step under autograd, and its CPU seconds."""
    tracking = Tracking([*model.parameters(), *model.buffers(), *batch.values()])
    start = time.process_time()
    with tracking:
        held, loss = loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
    del held
    model.zero_grad(set_to_none=True)
    return tracking.peak_bytes, time.process_time() - start


def saved_bytes(model: nn.Module, batch: dict[str, Tensor]) -> int:
    """Returns what autograd keeps, besides what is there anyway."""
    there = (*model.parameters(), *model.buffers(), *batch.values())
    stored = {tensor.untyped_storage()._cdata for tensor in there}
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if (key := tensor.untyped_storage()._cdata) not in stored:
            saved[key] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        held, loss = loss_of(model, batch)
    del held, loss
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def counted_flops(model: nn.Module, batch: dict[str, Tensor]) -> tuple[int, float]:
    """Returns what torch's counter says of a step, and its CPU seconds."""
    aten = torch.ops.aten

    def forward(q: Any, k: Any, v: Any, *rest: Any, **named: Any) -> int:
        return int(sdpa_flop_count(q, k, v))  # type: ignore[no-untyped-call]

    def backward(g: Any, q: Any, k: Any, v: Any, *rest: Any, **named: Any) -> int:
        return int(sdpa_backward_flop_count(g, q, k, v))  # type: ignore[no-untyped-call]

    formulas = {
        aten._scaled_dot_product_flash_attention_for_cpu: forward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
    }
    start = time.process_time()
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        held, loss = loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
    del held
    return counter.get_total_flops(), time.process_time() - start


def tracked_bytes(case: Case) -> tuple[int, float]:
    """Returns the peak that torch's MemTracker finds on fake tensors, and its CPU seconds."""
    from torch.distributed._tools.mem_tracker import MemTracker

    fake = fake_model(case.model())
    model = fake.module
    batch = {name: fake_like(tensor, fake.mode) for name, tensor in case.batch().items()}
    gc.collect()
    with fake.mode:
        start = time.process_time()
        tracker = MemTracker()
        tracker.track_external(model, *batch.values())
        with tracker:
            held, loss = loss_of(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
        del held
        peaks = tracker.get_tracker_snapshot("peak")
        seconds = time.process_time() - start
    return max(int(snapshot["Total"]) for snapshot in peaks.values()), seconds


def planned(model: nn.Module, batch: dict[str, Tensor]) -> list[tuple[int, int]]:
    """Returns the predicted and the measured peak of a compiled step.

    First as it is, then with activations that are computed again so that a third less is saved.
    """
    recipe = Recipe(optimizer=torch.optim.AdamW(model.parameters()))
    captured = capture(model, batch, recipe)
    timeline = memory_timeline(captured.program)
    limit = timeline.peak_bytes - timeline.saved_bytes // 3
    again = recompute(captured.program, Cluster.load("h100"), limit).program
    given = {**captured.weights, **batch}
    return [
        (memory_timeline(program).peak_bytes, executed(program, given))
        for program in (captured.program, again)
    ]


def executed(serial: Program, given: Mapping[str, Tensor]) -> int:
    """Returns the measured peak of a serial program."""
    program = specialize(serial, {})
    module = emit(program, {}, "cpu", InPlace(lambda loss, refusal: None))
    arguments = tuple(_arguments(program, given))
    tracking = Tracking(arguments)
    with tracking, torch.no_grad():
        module.forward(*arguments)
    return tracking.peak_bytes


def _arguments(program: Program, given: Mapping[str, Tensor]) -> Iterator[Tensor]:
    for port in program.signature.inputs:
        tensor, dtype = given.get(port.name), TORCH_DTYPES[port.dtype]
        if tensor is None:
            yield torch.full(port.known_shape, port.fill or 0, dtype=dtype)
        else:
            yield tensor.clone()


def row(name: str) -> None:
    """Prints the figures of a model."""
    case = CASES[name]
    torch.manual_seed(0)
    model, batch = case.model(), case.batch()
    gc.collect()
    start = time.process_time()
    found = autopar.profile(model, batch, cluster="h100")
    ours = time.process_time() - start
    theirs, tracker = tracked_bytes(case)
    saved = saved_bytes(model, batch)
    flops, counter = counted_flops(model, batch)
    model.zero_grad(set_to_none=True)
    measured, _ = measured_bytes(model, batch)
    (expected, ran), (least, ran_again) = planned(model, batch)
    same = "equal" if flops == found.flops else f"{found.flops} for {flops}"
    kept = "equal" if saved == found.saved_bytes else f"{found.saved_bytes} for {saved}"
    cells = [
        name,
        f"{measured / MIB:,.1f}",
        f"{found.peak_bytes / MIB:,.1f}",
        _error(found.peak_bytes, measured),
        f"{theirs / MIB:,.1f}",
        _error(theirs, measured),
        kept,
        same,
        f"{ran / MIB:,.1f}",
        _error(expected, ran),
        f"{ran_again / MIB:,.1f}",
        _error(least, ran_again),
        *(f"{seconds:.2f}" for seconds in (ours, tracker, counter)),
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def _error(predicted: int, measured: int) -> str:
    return f"{100 * (predicted / measured - 1):+.3f}%"


def speed(layers: int | None) -> None:
    """Prints the CPU seconds of the profile of a captured step.

    Args:
        layers: Those of Llama-70B; None for GPT-2 small.
    """
    with torch.device("meta"):
        if layers is None:
            model, batch = CASES["gpt2"].model(), text(2, 1024, 50257)()
        else:
            model = llama({**LLAMA_70B, "num_hidden_layers": layers})
            batch = text(8, 4096, 32000)()
    recipe = Recipe(optimizer=torch.optim.AdamW(model.parameters()))
    start = time.process_time()
    captured = capture(model, batch, recipe)
    captured_seconds = time.process_time() - start
    cluster = Cluster.load("h100")
    gc.collect()
    gc.disable()  # A collection goes over all that capture left, which isn't the profile's.
    start = time.process_time()
    found = autopar.profile(captured.program, cluster=cluster)
    seconds = time.process_time() - start
    gc.enable()
    name = "GPT-2 small" if layers is None else f"Llama-70B, {layers} layers"
    print(
        f"| {name} | {len(found.nodes):,} | {captured_seconds:.1f} | {seconds:.2f} |"
        f" {found.peak_bytes / 2**30:,.1f} GiB | {found.flops / 1e12:,.1f} TFLOP |",
        flush=True,
    )


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--large", action="store_true", help="predict Llama-70B too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.models:
        print(f"| {' | '.join(COLUMNS)} |")
        print("| --- " * len(COLUMNS) + "|", flush=True)
    for name in options.models:
        row(name)
    print("\n| captured step | ops | capture, CPU s | profile, CPU s | peak | work |")
    print("| --- " * 6 + "|", flush=True)
    speed(None)
    if options.large:
        speed(80)
    return 0


if __name__ == "__main__":
    sys.exit(main())
