"""Measures what convolutions take on a CPU beside their operands and results, and gives back.

    python benchmarks/convolution_memory.py
    python benchmarks/convolution_memory.py --seed 7 --count 200

No part of predicted peaks, since it depends on the instructions of a processor, on threads and on
the build of PyTorch, none of which a cluster file says. Beside what torch's profiler sees stands
what a rule says:

* Where torch computes by itself, that is in float64, and in float32 where that is small (one image
  of at most 20,480 elements) or a product (1 x 1, one thread, fewer than 16 images): a matrix of
  all windows, [channels * kernel, places], of all images, forward and backward. A convolution that
  is a product has none. Of several groups, each is copied, with such a matrix of its own, and the
  groups' results are there until they are put together.
* oneDNN copies what it reads and makes into blocks of 16 channels, and weights too; so each is
  there twice, and what has fewer channels takes more. Images of up to 3 are read as they are.
  What it takes besides for the gradient of weights is in no rule.

The table is of shapes that the rule was found on and of random ones, by dtype: how much the most is
beside results and operands, and how far the rule is off, both as parts of these, typically (median)
and at most. Behind it stand training steps of three convolutions: their peak as predicted and as
allocated, with what is stored.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from chunks import allocated_bytes
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar.cost import peak_rank_timeline

BLOCK = 16
"""Channels of a block, of processors with vectors of 512 bits."""

SMALL = 20_480
"""Elements of one image up to which torch computes in float32 by itself."""

DTYPES = (torch.float32, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class Case:
    """A convolution of square images, padded so that windows of odd sizes are centered."""

    images: int
    into: int
    out: int
    size: int
    kernel: int
    stride: int
    groups: int
    dtype: torch.dtype

    def tensors(self) -> tuple[Tensor, Tensor]:
        shape = self.out, self.into // self.groups, self.kernel, self.kernel
        image = self.images, self.into, self.size, self.size
        return torch.randn(image).to(self.dtype), torch.randn(shape).to(self.dtype)

    @property
    def places(self) -> int:
        padded = self.size + 2 * (self.kernel // 2) - self.kernel
        return (padded // self.stride + 1) ** 2

    @property
    def is_product(self) -> bool:
        return self.kernel == self.stride == 1

    @property
    def is_native(self) -> bool:
        if self.dtype == torch.float64:
            return True
        if self.dtype != torch.float32:
            return False
        one = self.images == 1 and self.groups == 1
        is_small = one and self.kernel <= 3 and self.into * self.size**2 <= SMALL
        return is_small or (self.is_product and self.images < BLOCK)

    def bytes_of(self, channels: int, places: int) -> int:
        return self.images * channels * places * self.dtype.itemsize


Shape = tuple[int, int, int, int, int, int, int]

KNOWN: Sequence[Shape] = [
    (2, 3, 16, 32, 3, 1, 1),
    (2, 16, 16, 32, 3, 1, 1),
    (2, 16, 32, 32, 3, 2, 1),
    (2, 16, 16, 32, 1, 1, 1),
    (2, 16, 16, 32, 3, 1, 16),
    (1, 16, 16, 64, 3, 1, 1),
    (4, 17, 33, 19, 3, 1, 1),
    (2, 64, 64, 32, 3, 1, 1),
]
"""Images, channels read and made, size, kernel, stride and groups: what the rule is of."""


def drawn(seed: int, count: int) -> Iterator[Shape]:
    """Yields random shapes."""
    choose = random.Random(seed)
    for _ in range(count):
        groups = choose.choice((1, 1, 1, 2, 4))
        into, out = (groups * choose.choice((1, 3, 5, 8, 16, 24, 32, 48)) for _ in range(2))
        size, kernel = choose.randint(7, 40), choose.choice((1, 3, 5))
        yield choose.randint(1, 5), into, out, size, kernel, choose.choice((1, 1, 2)), groups


def forward_bytes(case: Case) -> int:
    """Returns what the rule says of a convolution."""
    if case.is_native:
        return _native(case, backward=False)
    x, weight, y = _blocked(case)
    made = case.bytes_of(case.out, case.places)
    return max(x + weight + y - made, y)


def backward_bytes(case: Case) -> int:
    """Returns what the rule says of all three gradients."""
    if case.is_native:
        return _native(case, backward=True)
    x, weight, y = _blocked(case)
    weights = case.out * case.into // case.groups * case.kernel**2 * case.dtype.itemsize
    bias = case.out * case.dtype.itemsize
    made = case.bytes_of(case.into, case.size**2)
    whole = _padded(case.into) * case.images * case.size**2 * case.dtype.itemsize
    results = made + weights + bias
    of_images = max(y + weight + whole, whole + made)
    return max(of_images, made + x + y + weight + bias) - results


def _padded(channels: int) -> int:
    return -(-channels // BLOCK) * BLOCK


def _blocked(case: Case) -> tuple[int, int, int]:
    """Returns the bytes of oneDNN's copies of images, weights and results."""
    few = case.into <= 3 and case.groups == 1
    into = 0 if few else _padded(case.into)
    per_group = case.into if few else _padded(case.into) // case.groups
    weight = _padded(case.out) * per_group * case.kernel**2 * case.dtype.itemsize
    return (
        case.bytes_of(into, case.size**2),
        weight,
        case.bytes_of(_padded(case.out), case.places),
    )


def _native(case: Case, *, backward: bool) -> int:
    """Returns what torch takes that makes a matrix of windows."""
    windows = 0 if case.is_product else case.into // case.groups * case.kernel**2
    matrix = case.bytes_of(windows, case.places)
    if case.groups == 1:
        return matrix
    x, y = case.bytes_of(case.into, case.size**2), case.bytes_of(case.out, case.places)
    weights = case.out * case.into // case.groups * case.kernel**2 * case.dtype.itemsize
    if backward:
        made = x + weights + case.out * case.dtype.itemsize
        return max((x + y) // case.groups + matrix, made)
    return max(x // case.groups + matrix, y)


def taken(case: Case) -> tuple[tuple[int, int, int], ...]:
    """Returns of both passes what is taken besides, what the rule says, and all that is there."""
    x, weight = case.tensors()
    args = [case.stride] * 2, [case.kernel // 2] * 2, [1, 1], False, [0, 0], case.groups
    made = torch.ops.aten.convolution(x, weight, None, *args)
    gradient = torch.ones_like(made)
    every = [True] * 3

    def forward() -> Any:
        return torch.ops.aten.convolution(x, weight, None, *args)

    def backward() -> Any:
        bias = [weight.shape[0]]
        return torch.ops.aten.convolution_backward(gradient, x, weight, bias, *args, every)

    operands = x.nbytes + weight.nbytes
    rows = []
    for run, rule in ((forward, forward_bytes), (backward, backward_bytes)):
        results = _results(run)
        there = operands + results + (gradient.nbytes if run is backward else 0)
        rows.append((allocated_bytes(run) - results, rule(case), there))
    return tuple(rows)


def _results(run: Callable[[], Any]) -> int:
    found = run()
    tensors = found if isinstance(found, tuple) else (found,)
    return sum(each.nbytes for each in tensors if isinstance(each, Tensor))


def step_bytes(channels: int, size: int, images: int, dtype: torch.dtype) -> tuple[int, int]:
    """Returns the peak of a training step, as predicted and as allocated."""
    torch.manual_seed(0)
    widths = pairwise((3, channels, channels, 3))
    first, second, last = (nn.Conv2d(*each, 3, padding=1) for each in widths)
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last).to(dtype)
    x = torch.randn(images, 3, size, size, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = autopar.compile(model, (x, x), mesh="1", loss=F.mse_loss, optimizer=optimizer)
    timeline = peak_rank_timeline(step.partitioned)
    with tempfile.TemporaryDirectory() as folder:
        step.save(folder)
        with autopar.load(folder, virtual=True) as trainer:
            trainer.step((x, x))
            taken = allocated_bytes(lambda: trainer.step((x, x)))
    return timeline.peak_bytes, timeline.stored_bytes + taken


STEPS = ((8, 32, 4), (16, 64, 2), (32, 32, 4), (64, 64, 8))
"""Channels, sizes of images, and how many of them."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--show", action="store_true", help="each shape that is off by 5% or more")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shapes: Mapping[str, Sequence[Shape]] = {
        "known": KNOWN,
        "random": [*drawn(options.seed, options.count)],
    }
    print(f"{'':20}{'':10}{'besides':>16}{'rule off by':>20}")
    for dtype in DTYPES:
        for name, given in shapes.items():
            found = [taken(Case(*shape, dtype)) for shape in given]
            for at, run in enumerate(("forward", "backward")):
                rows = [each[at] for each in found]
                besides = [most / there for most, _, there in rows]
                off = [abs(most - rule) / there for most, rule, there in rows]
                print(
                    f"{str(dtype)[6:]:10}{name:10}{run:10}{median(besides):>8.3f}{max(besides):>8.3f}"
                    f"{median(off):>12.3f}{max(off):>8.3f}{sum(o < 0.01 for o in off):>5} of"
                    f" {len(off)} within 1%"
                )
                for shape, row, each in zip(given, rows, off, strict=True):
                    if options.show and each >= 0.05:
                        print("   ", shape, row, math.floor(100 * each))
    for dtype in (torch.float32, torch.float64):
        for step in STEPS:
            predicted, allocated = step_bytes(*step, dtype)
            low = 1 - predicted / allocated
            print(f"{str(dtype)[6:]:10}{step!s:20}{predicted:>12}{allocated:>12}{low:>8.1%} low")


if __name__ == "__main__":
    main()
