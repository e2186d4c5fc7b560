"""What checkpoints take: writing, reading, and checking what is read, beside torch's own functions.

    OMP_NUM_THREADS=1 python benchmarks/checkpoints.py --gib 1 --folder /tmp/checkpoints

One process writes and reads, with the files in the page cache. The ways take turns, and figures are
medians over rounds: seconds of the clock, of the CPU with all threads, and of the CPU in the thread
that calls. The last is what the clock shows where another core is free for the thread that digests.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from autopar.runtime.boxes import whole_box
from autopar.runtime.checkpoint import open_checkpoint, read_targets, write_checkpoint
from autopar.runtime.checkpoint_files import copied, rectangles_of
from autopar.runtime.checkpoint_reading import read_tensors
from autopar.runtime.checkpoint_series import Place
from autopar.runtime.messages import Messages
from autopar.runtime.state import Content, Held, Piece

Seconds = tuple[float, float, float]


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


def timed(act: Callable[[], object]) -> Seconds:
    """Returns how long an act takes: by the clock, of the CPU, and of it in this thread."""
    clocks = (time.perf_counter, time.process_time, time.thread_time)
    begin = [clock() for clock in clocks]
    act()
    clock, cpu, own = (now() - then for now, then in zip(clocks, begin, strict=True))
    return clock, cpu, own


def ways(state: Content, folder: Path) -> dict[str, Callable[[], object]]:
    """Returns what is measured by name. What reads comes behind what writes."""
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

    return {
        "copy to memory (wait=False)": lambda: copied(rectangles_of(state)),
        "write": write,
        "write, torch.distributed.checkpoint": write_theirs,
        "read, digests compared": lambda: read(True),
        "read, digests not compared": lambda: read(False),
        "read, torch.distributed.checkpoint": lambda: load(
            other, checkpoint_id=theirs, no_dist=True
        ),
    }


def report(taken: Mapping[str, list[Seconds]]) -> None:
    """Prints medians, and the ratio of reading with digests to reading without, round by round."""
    for name, rounds in taken.items():
        clock, cpu, own = (statistics.median(each[at] for each in rounds) for at in range(3))
        print(f"{name:36} {clock:7.3f} s  {cpu:7.3f} CPU-s  {own:7.3f} CPU-s of the thread")
    pairs = zip(taken["read, digests compared"], taken["read, digests not compared"], strict=True)
    ratios = [[one[at] / other[at] for at in range(3)] for one, other in pairs]
    clock, cpu, own = (statistics.median(each[at] for each in ratios) for at in range(3))
    print(f"{'digests compared / not compared':36} {clock:7.3f}    {cpu:7.3f}        {own:7.3f}")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Measure checkpoints.")
    parser.add_argument("--gib", type=float, default=1.0, help="size of the checkpoint")
    parser.add_argument("--tensors", type=int, default=64, help="number of large tensors")
    parser.add_argument("--rounds", type=int, default=5, help="how often each way is measured")
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"), help="where to write")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "torch.distributed is disabled|Detected an existing")
    acts = ways(content(options.gib, options.tensors), options.folder)
    taken: dict[str, list[Seconds]] = {name: [] for name in acts}
    for _ in range(options.rounds):
        for name, act in acts.items():
            taken[name].append(timed(act))
    shutil.rmtree(options.folder)
    report(taken)


if __name__ == "__main__":
    main()
