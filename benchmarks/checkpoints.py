"""What checkpoints take: writing, reading, and checking what is read, beside torch's own functions.

    OMP_NUM_THREADS=1 python benchmarks/checkpoints.py --gib 1 --folder build/checkpoints

One process writes and reads tensors. It loads a build, whose weights it reads, without a checkpoint
and to go on from one, as users wait for it. Files are in the page cache, or were dropped from it
and come from the disk. The ways take turns. Figures are medians over rounds:
seconds of the clock, and of the CPU with all threads. What compares two ways are medians of the
ratios within each round, with the smallest and the largest: with digests compared and without, and
autopar and torch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.functional import mse_loss

import autopar
from autopar.ir.builds.manifest import WeightDigests
from autopar.runtime.checkpoint import checkpoint
from autopar.runtime.checkpoint.checkpoint import open_checkpoint, read_targets, write_checkpoint
from autopar.runtime.checkpoint.files import copied, rectangles_of
from autopar.runtime.checkpoint.reading import read_tensors
from autopar.runtime.checkpoint.series import Place
from autopar.runtime.job.messages import Messages
from autopar.runtime.ports.boxes import whole_box
from autopar.runtime.state.state import Content, Held, Piece
from autopar.runtime.weights.weights import WeightFile

Seconds = tuple[float, float]
Way = Callable[[], object]

WIDTH = 2048
"""Of the layers of the model that is loaded."""

PLACES = ("page cache", "disk")
CHECKED, UNCHECKED, TORCH = ("digests compared", "not compared", "torch.distributed.checkpoint")
READ: dict[str, tuple[str, ...]] = {
    "copy": (),
    "write": (),
    "write,": (),
    "read,": ("ours", "theirs"),
    "load(),": ("build",),
    "load(resume=),": ("build", "saved"),
}
"""Folders of what is read, by the first word of a way's name."""

PAIRS = [
    ("write", f"write, {TORCH}"),
    *((f"read, {place}, {CHECKED}", f"read, {place}, {UNCHECKED}") for place in PLACES),
    *((f"read, {place}, {CHECKED}", f"read, {place}, {TORCH}") for place in PLACES),
    *(
        (f"{what}, {place}, {CHECKED}", f"{what}, {place}, {UNCHECKED}")
        for what in ("load()", "load(resume=)")
        for place in PLACES
    ),
]


def content(gib: float, tensors: int) -> Content:
    """Returns tensors of random numbers, this many GiB together, and as many small ones."""
    size = int(gib * 2**30 / 4 / tensors)
    drawn = [torch.randn(size // 1024, 1024) for _ in range(tensors)]
    drawn += [torch.randn(1024) for _ in range(tensors)]
    return Content([held(f"weight.{at}", tensor) for at, tensor in enumerate(drawn)], {})


def held(name: str, tensor: torch.Tensor) -> Held:
    """Returns a tensor as a checkpoint has it."""
    shape = tuple(tensor.shape)
    piece = Piece(tensor, whole_box(shape), shape)
    return Held((("model", name),), tensor.dtype, shape, [piece])


def of_tensors(state: Content, folder: Path) -> dict[str, Way]:
    """Returns ways to write and read tensors, by name. What reads comes behind what writes."""
    names = {".".join(map(str, each.keys[0])): each.pieces[0].tensor for each in state.tensors}
    other = {name: torch.zeros_like(tensor) for name, tensor in names.items()}
    targets = [held(name.removeprefix("model."), tensor) for name, tensor in other.items()]
    ours, theirs = folder / "ours", folder / "theirs"

    def write() -> None:
        write_checkpoint(Place(ours), state, rectangles_of(state), Messages(HashStore()))

    def write_theirs() -> None:
        new = theirs.with_suffix(".new")
        save(names, checkpoint_id=new, no_dist=True)
        shutil.rmtree(theirs, ignore_errors=True)
        new.rename(theirs)

    def read(verify: bool) -> None:
        wanted = {".".join(map(str, each.keys[0])): read_targets(each) for each in targets}
        read_tensors(ours, open_checkpoint(ours), wanted, verify)

    ways: dict[str, Way] = {
        "copy to memory (wait=False)": lambda: copied(rectangles_of(state)),
        "write": write,
        f"write, {TORCH}": write_theirs,
    }
    for place in PLACES:
        ways[f"read, {place}, {CHECKED}"] = partial(read, True)
        ways[f"read, {place}, {UNCHECKED}"] = partial(read, False)
        ways[f"read, {place}, {TORCH}"] = partial(load, other, checkpoint_id=theirs, no_dist=True)
    return ways


def of_builds(gib: float, folder: Path) -> dict[str, Way]:
    """Returns ways to load a build, by name, whose checkpoint has this many GiB."""
    build, saved = folder / "build", folder / "saved"
    count = max(1, round(gib * 2**30 / 12 / WIDTH**2))
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(count)))
    batch = (torch.zeros(1, WIDTH), torch.zeros(1, WIDTH))
    optimizer = torch.optim.Adam(model.parameters())
    autopar.compile(model, batch, mesh="1", loss=mse_loss, optimizer=optimizer).save(build)
    with autopar.load(build, virtual=True) as trainer:
        trainer.save_checkpoint(saved)

    def open_build(resume: Path | None, verify: bool) -> None:
        with comparing(verify):
            autopar.load(build, virtual=True, resume=resume).close()

    return {
        f"{what}, {place}, {compared}": partial(open_build, resume, compared == CHECKED)
        for what, resume in (("load()", None), ("load(resume=)", saved))
        for place in PLACES
        for compared in (CHECKED, UNCHECKED)
    }


@contextmanager
def comparing(verify: bool) -> Iterator[None]:
    """Leaves the comparing of digests out, or doesn't."""
    opened = WeightFile._open_checked

    def unchecked(self: WeightFile, path: Path, digests: WeightDigests | None) -> None:
        opened(self, path, None)

    if not verify:
        checkpoint.read_tensors = partial(read_tensors, verify=False)  # type: ignore[attr-defined]
        WeightFile._open_checked = unchecked  # type: ignore[method-assign]
    try:
        yield
    finally:
        checkpoint.read_tensors = read_tensors  # type: ignore[attr-defined]
        WeightFile._open_checked = opened  # type: ignore[method-assign]


def place_files(folder: Path, name: str) -> None:
    """Reads the files that a way reads, or drops them from the page cache."""
    files = [path for part in READ[name.split()[0]] for path in (folder / part).rglob("*.*")]
    for path in files:
        with path.open("rb") as file:
            if "disk" not in name:
                while file.read(1 << 24):
                    pass
            else:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(act: Way) -> Seconds:
    """Returns how long an act takes: by the clock, and of the CPU."""
    clocks = (time.perf_counter, time.process_time)
    begin = [clock() for clock in clocks]
    act()
    clock, cpu = (now() - then for now, then in zip(clocks, begin, strict=True))
    return clock, cpu


def report(taken: Mapping[str, list[Seconds]]) -> None:
    """Prints medians, and ratios within the rounds."""
    for name, rounds in taken.items():
        clock, cpu = (statistics.median(each[at] for each in rounds) for at in range(2))
        print(f"{name:48} {clock:7.3f} s  {cpu:7.3f} CPU-s")
    for one, other in PAIRS:
        if one not in taken:
            continue
        ratios = [
            [mine / theirs for mine, theirs in zip(*each, strict=True)]
            for each in zip(taken[one], taken[other], strict=True)
        ]
        print(f"{one} / {other.rpartition(', ')[2]}")
        clocks, cpus = zip(*ratios, strict=True)
        print(f"    clock {spread(clocks)}  CPU {spread(cpus)}")


def spread(ratios: Sequence[float]) -> str:
    """Returns the median of ratios, and between which they are."""
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Measure checkpoints.")
    parser.add_argument("--gib", type=float, default=1.0, help="size of the checkpoint")
    parser.add_argument("--tensors", type=int, default=64, help="number of large tensors")
    parser.add_argument("--rounds", type=int, default=5, help="how often each way is measured")
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"), help="where to write")
    parser.add_argument("--only", default="", help="only ways whose name begins so")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "torch.distributed is disabled|Detected an existing")
    acts = of_tensors(content(options.gib, options.tensors), options.folder)
    for name in ("write", f"write, {TORCH}"):
        acts[name]()
    acts.update(of_builds(options.gib, options.folder))
    acts = {name: act for name, act in acts.items() if name.startswith(options.only)}
    taken: dict[str, list[Seconds]] = {name: [] for name in acts}
    for _ in range(options.rounds):
        for name, act in acts.items():
            place_files(options.folder, name)
            taken[name].append(timed(act))
    shutil.rmtree(options.folder)
    report(taken)


if __name__ == "__main__":
    main()
