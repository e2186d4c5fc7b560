"""Training steps on one GPU beside torch.compile, and beside what is predicted of them: one table.

    make bench-gpu                                     # all that fits into 8 minutes
    python benchmarks/gpu.py --models gpt2 bert        # some
    python benchmarks/gpu.py --device cpu --tiny       # that it runs, on a machine without a GPU

Of each model, parameters and products in bfloat16, with AdamW in one kernel:

* *torch.compile*: the median time of a step of the eager model, its forward and backward pass
  compiled by torch as usual;
* *autopar*: that of the compiled step, in the same process on the same batch, a step of each in
  turn, and the ratio of the two;
* *predicted*: seconds by the cost model of `--cluster`;
* *peak*: the most that is allocated during a step of autopar, with what is stored, beside what is
  predicted of it, and beside torch's own.

Below, GPT-2 whose head is computed in parts, as ratios to the whole. *Published* are two
measurements of such a head by others: how much a head in more parts saves there, and takes.

Each model has a process of its own. They all compile at once first, as far as memory allows, which
fills torch's cache of kernels, and are measured one after another. What the time doesn't reach is
said.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from chunks import allocated_bytes
from chunks_by_memory import shifted
from gpu_models import MODELS, TINY
from gpu_rows import head_row, row
from torch import Tensor, nn

import autopar
from autopar.cost import Cluster, memory_timeline
from tests.zoo.full_size import Case, text

MIB = 2**20

PROFILES = ("h100", "h200", "b200", "a100", "mi300x")

HEAD = "head"
PARTS = (1, 2, 4, 8, 16)
PUBLISHED = ((14049, 194.9), (12603, 242.6))
"""MiB and milliseconds of a step."""


def on_device(options: argparse.Namespace) -> torch.device:
    """Returns where all is computed; wall clocks of a GPU wait for it."""
    return torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")


def profile_of(device: torch.device) -> str:
    """Returns the name of the profile of a device; that of an H100, if there is none of a GPU."""
    if device.type == "cpu":
        return "cpu"
    name = torch.cuda.get_device_name(device).lower()
    return next((each for each in PROFILES if each in name), PROFILES[0])


def halt(device: torch.device) -> None:
    """Waits for all that a device was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(device: torch.device, step: Callable[[], Any]) -> int:
    """Returns the most that is allocated during a step beyond what is there before it."""
    if device.type == "cpu":
        return allocated_bytes(step)
    halt(device)
    there = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    halt(device)
    return torch.cuda.max_memory_allocated(device) - there


def in_turns(
    device: torch.device, steps: Mapping[str, Callable[[], Any]], rounds: int
) -> dict[str, float]:
    """Returns the median milliseconds of each, of rounds in which all have their turn."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            halt(device)
            start = time.perf_counter()
            step()
            halt(device)
            taken[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(each) for name, each in taken.items()}


def eager_step(model: nn.Module, batch: Any, loss: Any) -> Callable[[], Tensor]:
    """Returns the usual training step of a model through torch.compile."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    @torch.compile
    def forward() -> Tensor:
        if loss is not None:
            found: Tensor = loss(model(batch[0]), batch[1])
            return found
        returned = model(**batch)
        return returned if isinstance(returned, Tensor) else returned.loss

    def step() -> Tensor:
        optimizer.zero_grad()
        found = forward()
        found.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return found.detach()

    return step


def moved(batch: Any, device: torch.device) -> Any:
    """Returns a batch on a device, its numbers in 16 bits."""
    return torch.utils._pytree.tree_map_only(
        Tensor,
        lambda x: x.to(device, torch.bfloat16 if x.is_floating_point() else x.dtype),
        batch,
    )


def measured(
    case: Case, options: argparse.Namespace, *, loss: Any = None, chunks: int = 1, beside: bool
) -> Iterator[tuple[str, float]]:
    """Yields the figures of a step, by name.

    Args:
        case: What is trained.
        options: Those of the command line.
        loss: What compares the model's output and target; None if the model does it.
        chunks: In how many parts its head is computed.
        beside: Whether torch.compile is measured, too.
    """
    device = on_device(options)
    torch.manual_seed(0)
    with device:  # where numbers are drawn fast
        model = case.model()
    model = model.to("cpu", torch.bfloat16)
    batch = moved(case.batch(), torch.device("cpu"))
    if loss is not None:
        batch = (batch["input_ids"], batch["labels"])
    made = autopar.compile(
        model,
        batch,
        mesh=1,
        loss=loss,
        optimizer=torch.optim.AdamW(model.parameters(), fused=True),
        chunks={"lm_head": chunks} if chunks > 1 else {},
        cluster=options.cluster,
        device=device,
    )
    timeline = memory_timeline(made.deployment.programs[0])
    yield "predicted ms", 1e3 * made.profile(options.cluster).overlapped_seconds
    yield "predicted MiB", timeline.peak_bytes / MIB
    there = moved(batch, device)
    with tempfile.TemporaryDirectory() as folder:
        made.save(folder)
        graphs = options.cuda_graphs
        with autopar.load(folder, torch_compile=True, cuda_graphs=graphs) as trainer:
            steps: dict[str, Callable[[], Tensor]] = {"ms": lambda: trainer.step(there)}
            if beside:
                steps["torch ms"] = eager_step(model.to(device), there, loss)
            losses = {name: float(step()) for name, step in steps.items()}
            _check(losses)
            if options.prepare:
                return
            for name, step in steps.items():
                stored = timeline.stored_bytes if name == "ms" else _stored_bytes(model)
                yield name.replace("ms", "MiB"), (peak_bytes(device, step) + stored) / MIB
            yield from in_turns(device, steps, options.rounds).items()


def _stored_bytes(model: nn.Module) -> int:
    """Returns the bytes of a model, and of the two moments of AdamW."""
    parameters = sum(each.nbytes for each in model.parameters())
    return 3 * parameters + sum(each.nbytes for each in model.buffers())


def _check(losses: Mapping[str, float]) -> None:
    """Ends the benchmark if both trained differently; 16 bits round much."""
    first, *others = losses.values()
    if any(not abs(each - first) < 2e-2 * abs(first) for each in others):
        raise SystemExit(f"losses differ: {losses}")


def child(name: str, options: argparse.Namespace) -> None:
    """Measures in this process, and prints each figure as it is known."""
    cases = TINY if options.tiny else MODELS
    if name.startswith(HEAD):
        parts = int(name.removeprefix(HEAD))
        rows, tokens = (2, 64) if options.tiny else (32, 1024)
        case = Case(cases["gpt2"].model, text(rows, tokens, 512 if options.tiny else 50257))
        found = measured(case, options, loss=shifted, chunks=parts, beside=False)
    else:
        found = measured(cases[name], options, beside=True)
    for figure, value in found:
        print(json.dumps([figure, value]), flush=True)


def start(name: str, options: argparse.Namespace, *more: str) -> subprocess.Popen[str]:
    """Starts the process of a model."""
    words = ["--child", name, "--device", options.device, "--cluster", options.cluster]
    words += ["--rounds", str(options.rounds), *(["--tiny"] if options.tiny else []), *more]
    words += ["--cuda-graphs"] if options.cuda_graphs else []
    return subprocess.Popen(
        [sys.executable, __file__, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str], seconds: float) -> tuple[dict[str, float], str]:
    """Returns the figures that a process came to, and why they aren't all; "" if they are."""
    try:
        out, err = process.communicate(timeout=max(seconds, 1))
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        return _figures(out), "no time was left"
    lines = err.strip().splitlines()
    return _figures(out), lines[-1] if process.returncode and lines else ""


def _figures(out: str) -> dict[str, float]:
    return dict(json.loads(line) for line in out.splitlines() if line.startswith("["))


def prepared(names: Sequence[str], options: argparse.Namespace, until: float) -> None:
    """Lets the models compile at the same time, so that torch keeps their kernels."""
    processes = [start(name, options, "--prepare") for name in names]
    for each in processes:
        finished(each, until - time.monotonic())


def table(options: argparse.Namespace) -> None:
    """Measures all that was asked for, and prints a row each as it is known."""
    until = time.monotonic() + options.seconds
    names = [name for name in options.models if name != HEAD]
    heads = [f"{HEAD}{each}" for each in PARTS] if HEAD in options.models else []
    device = on_device(options)
    what = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    print(f"on {what}, torch {torch.__version__}, cluster {options.cluster}", flush=True)
    if device.type == "cuda":
        prepared([*names, *heads], options, until)
    columns = ("torch ms", "autopar", "ratio", "predicted", "torch MiB", "autopar", "predicted")
    print(f"{'':8}" + "".join(f"{c:>{8 if c == 'ratio' else 10}}" for c in columns), flush=True)
    for name in names:
        print(row(name, *finished(start(name, options), until - time.monotonic())), flush=True)
    if not heads:
        return
    print("\nhead of GPT-2 in parts     MiB   ratio        ms   ratio")
    whole: dict[str, float] = {}
    for parts, name in zip(PARTS, heads, strict=True):
        found, why = finished(start(name, options), until - time.monotonic())
        whole = whole or found
        print(head_row(parts, found, whole, why), flush=True)
    (more, fast), (less, slow) = PUBLISHED
    print(
        f"published: {less} MiB / {slow} ms in more parts, {more} MiB / {fast} ms in fewer: ratios"
        f" {less / more:.3f} and {slow / fast:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=[*MODELS, HEAD], default=[*MODELS, HEAD])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--cluster", default="", help="whose times are predicted")
    parser.add_argument("--tiny", action="store_true", help="models in little")
    parser.add_argument("--cuda-graphs", action="store_true", help="autopar's steps are replayed")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=460, help="for all of it")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU is found here, so nothing is measured: try --device cpu --tiny")
        return
    options.cluster = options.cluster or profile_of(on_device(options))
    Cluster.load(options.cluster)
    if options.child:
        child(options.child, options)
    else:
        table(options)


if __name__ == "__main__":
    main()
