"""What random ops by counter cost beside torch's own, eager and compiled, as ratios.

    python benchmarks/random_ops.py                   # on the CPU, one thread
    python benchmarks/random_ops.py --device cuda

Eager: an op of ours against the op of torch that it replaces. Compiled: a block of elementwise ops,
`gelu(x + bias)`, alone, with torch's dropout behind it, and with ours, each without and with the
mask as a second result, which a backward pass needs. What is above 1 didn't vanish in the fused
kernel. The least of several repetitions counts, in CPU seconds, or on a GPU in seconds between
synchronizations.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from autopar.runtime.kernels.random_ops import bernoulli_p, dropout, rand, randint, randn

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 22)
P = 0.1

Function = Callable[[], object]


def least_seconds(function: Function, device: torch.device, repetitions: int) -> float:
    """Returns the least time that a call takes, after one call to warm up."""
    gpu = device.type == "cuda"
    found = []
    for _ in range(repetitions + 1):
        if gpu:
            torch.cuda.synchronize()
        start = time.perf_counter() if gpu else time.process_time()
        function()
        if gpu:
            torch.cuda.synchronize()
        found.append((time.perf_counter() if gpu else time.process_time()) - start)
    return min(found[1:])


def eager_pairs(x: Tensor) -> Mapping[str, tuple[Function, Function]]:
    """Returns (torch's op, ours) by name, for a tensor like `x`."""
    seed = torch.tensor(1, device=x.device)
    size, dtype, integers = x.shape, x.dtype, torch.int64
    return {
        "dropout": (lambda: torch.native_dropout(x, P, True), lambda: dropout(x, seed, 0, P)),
        "bernoulli": (
            lambda: torch.empty_like(x).bernoulli_(P),
            lambda: bernoulli_p(seed, 0, size, P, dtype),
        ),
        "rand": (lambda: torch.rand_like(x), lambda: rand(seed, 0, size, dtype)),
        "randn": (lambda: torch.randn_like(x), lambda: randn(seed, 0, size, dtype)),
        "randint": (
            lambda: torch.randint(0, 1000, size, device=x.device),
            lambda: randint(seed, 0, 0, 1000, size, integers),
        ),
    }


def compiled_blocks(x: Tensor) -> Mapping[str, Function]:
    """Returns compiled functions of `x`: without dropout, with torch's, and with ours."""
    seed, bias = torch.tensor(1, device=x.device), torch.ones(x.shape[-1], device=x.device)

    def ours(x: Tensor) -> tuple[Tensor, Tensor]:
        return dropout(F.gelu(x + bias), seed, 0, P)

    def torchs(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.native_dropout(F.gelu(x + bias), P, True)

    functions: Mapping[str, Callable[[Tensor], object]] = {
        "alone": lambda x: F.gelu(x + bias),
        "torch": lambda x: torchs(x)[0],
        "autopar": lambda x: ours(x)[0],
        "torch+mask": torchs,
        "autopar+mask": ours,
    }
    return {name: _compiled(function, x) for name, function in functions.items()}


def _compiled(function: Callable[[Tensor], object], x: Tensor) -> Function:
    made = torch.compile(function, fullgraph=True, dynamic=False)
    return lambda: made(x)


def main() -> None:
    """Measures and prints two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--repetitions", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("eager: seconds of autopar's op / seconds of torch's")
    print(f"{'elements':>10}", *(f"{name:>10}" for name in eager_pairs(torch.ones(1))))
    for size in SIZES:
        pairs = eager_pairs(torch.randn(size, device=options.device)).values()
        ratios = [
            least_seconds(ours, options.device, options.repetitions)
            / least_seconds(torchs, options.device, options.repetitions)
            for torchs, ours in pairs
        ]
        print(f"{size:>10}", *(f"{ratio:>10.2f}" for ratio in ratios), flush=True)
    print("\ncompiled: seconds / seconds of gelu(x + bias) alone")
    for size in SIZES[1:]:
        blocks = compiled_blocks(torch.randn(size // 1024, 1024, device=options.device))
        if size == SIZES[1]:
            print(f"{'elements':>10}", *(f"{name:>12}" for name in blocks))
        seconds = [least_seconds(b, options.device, options.repetitions) for b in blocks.values()]
        print(f"{size:>10}", *(f"{value / seconds[0]:>12.2f}" for value in seconds), flush=True)


if __name__ == "__main__":
    main()
