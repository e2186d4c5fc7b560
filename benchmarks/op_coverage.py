"""DTensor beside autopar on PyTorch's operator database: same operators, samples, meshes and pins.

    python -m benchmarks.op_coverage --jobs 2        all operators on mesh 2
    python -m benchmarks.op_coverage --meshes 2 2x3 --only 'linalg.*'

Every call, and its gradient, is computed with inputs that are split at random. DTensor runs it
eagerly in one thread per rank, on PyTorch's process group for tests; autopar compiles it and runs
it on the virtual mesh. Both are compared with one device, under the same tolerance. Calls with
random or undefined results, and those with nothing to split, are left out.
"""

from __future__ import annotations

import argparse
import fnmatch
import logging
import multiprocessing
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from autopar.annotate import Pin
from autopar.ir.mesh import ProcessMesh
from autopar.runtime.verification.verification import FREE_TOLERANCE, compare
from tests.op_database.capture import CAPTURES, Captured, Direction
from tests.op_database.exclusions import UNDEFINED, excluded
from tests.op_database.judge import judge, random_pins
from tests.op_database.selection import calls_of, name_of, opinfos

RIGHT = "right"
REASONS: Mapping[str, tuple[str, ...]] = {
    "raises: no strategy": ("sharding strategy", "not supported"),
    "raises: mixed tensors": ("mixed torch.Tensor and DTensor",),
    "raises: uneven": ("uneven", "unevenly", "not evenly", "divisible"),
}
"""Kinds of messages that DTensor raises, by what they say."""

SECONDS = 60
"""How long ranks may take for a call."""

WAITING_SECONDS = 1.0
"""How long all ranks that aren't done may wait for others at once: nobody is left to wake them."""


@dataclass(frozen=True)
class Outcomes:
    """How a call went in both systems."""

    name: str
    mesh: tuple[int, ...]
    direction: Direction
    dtensor: str
    autopar: str


class Ranks:
    """One thread per rank of a mesh, which meet in PyTorch's process group for tests."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.size = torch.Size(shape).numel()

    def run(self, work: Callable[[Any], Tensor | tuple[Tensor, ...]]) -> list[Any]:
        """Returns what `work`, given the device mesh, returns or raises on each rank."""
        from torch.testing._internal.distributed import multi_threaded_pg as threaded

        isolate: Callable[[bool], None] = vars(torch._C._distributed_c10d)[
            "_set_thread_isolation_mode"
        ]
        threaded._install_threaded_pg()  # type: ignore[no-untyped-call]
        isolate(True)
        store = vars(dist)["HashStore"]()
        found: list[Any] = [TimeoutError("the rank didn't finish")] * self.size

        def rank_main(rank: int) -> None:
            dist.init_process_group("threaded", rank=rank, world_size=self.size, store=store)
            try:
                found[rank] = work(init_device_mesh("cpu", self.shape))
            except BaseException as error:
                found[rank] = error
                threaded.ProcessLocalGroup.exception_handle(error)  # type: ignore[no-untyped-call]
            finally:
                # A rank that was given up finds the group gone.
                if dist.is_initialized():
                    dist.destroy_process_group()

        threads = [
            threading.Thread(target=rank_main, args=(rank,), daemon=True)
            for rank in range(self.size)
        ]
        try:
            for thread in threads:
                thread.start()
            if not _finish(threads):
                # Sets free who waits; what they return is no longer looked at.
                threaded.ProcessLocalGroup.exception_handle(TimeoutError())  # type: ignore[no-untyped-call]
                for thread in threads:
                    thread.join(WAITING_SECONDS)
        finally:
            threaded.ProcessLocalGroup.reset()  # type: ignore[no-untyped-call]
            threaded._uninstall_threaded_pg()  # type: ignore[no-untyped-call]
            isolate(False)
        return found


def _finish(threads: Sequence[threading.Thread]) -> bool:
    """Waits until all threads are done. Returns False if they never will be, or it takes too long.

    A rank that takes another way than the others leaves them in a collective for ever.
    """
    start = waiting_since = time.monotonic()
    while any(thread.is_alive() for thread in threads):
        now = time.monotonic()
        if not all(_is_waiting(thread) for thread in threads if thread.is_alive()):
            waiting_since = now
        if now - waiting_since > WAITING_SECONDS or now - start > SECONDS:
            return False
        time.sleep(0.002)
    return True


def _is_waiting(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code is threading.Condition.wait.__code__


def placements(pin: Pin | None, mesh: ProcessMesh) -> list[Replicate | Shard]:
    """Returns the placement per mesh axis that a pin describes; the order of axes is DTensor's."""
    found: list[Replicate | Shard] = [Replicate() for _ in mesh.dim_names]
    for dim, entry in enumerate(pin.dims_mapping if pin else ()):
        for axis in entry if isinstance(entry, tuple) else ():
            if isinstance(axis, (int, str)):
                found[mesh.axis_index(axis)] = Shard(dim)
    return found


def run_dtensor(captured: Captured, mesh: ProcessMesh, pins: Sequence[Pin]) -> str:
    """Returns how DTensor computes a captured call."""
    by_name = {pin.pattern: pin for pin in pins}

    def work(devices: Any) -> tuple[Tensor, ...]:
        inputs = [
            distribute_tensor(tensor, devices, placements(by_name.get(f"x{at}"), mesh))
            for at, tensor in enumerate(captured.tensors)
        ]
        return tuple(
            each.full_tensor() if isinstance(each, DTensor) else each
            for each in captured.run(*inputs)
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = Ranks(mesh.shape).run(work)
    errors = [each for each in found if isinstance(each, BaseException)]
    if errors:
        return _reason(min(errors, key=_is_echo))
    return max((_verdict(each, list(captured.expected.values())) for each in found), key=_badness)


def _is_echo(error: BaseException) -> bool:
    """Returns whether an error only says that another rank failed."""
    return isinstance(error, (TimeoutError, SystemExit)) or "terminate" in str(error).lower()


def _reason(error: BaseException) -> str:
    text = str(error)
    for reason, parts in REASONS.items():
        if any(part in text for part in parts):
            return reason
    return "raises: hangs" if isinstance(error, TimeoutError) else "raises: other"


def _verdict(found: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    if [it.shape for it in found] != [it.shape for it in expected]:
        return "wrong shape"
    if [it.dtype for it in found] != [it.dtype for it in expected]:
        return "wrong dtype"
    same = all(compare(*pair, FREE_TOLERANCE)[2] for pair in zip(found, expected, strict=True))
    return RIGHT if same else "silently wrong"


def _badness(verdict: str) -> int:
    return (RIGHT, "silently wrong", "wrong dtype", "wrong shape").index(verdict)


def outcomes_of(opinfo: Any, meshes: Sequence[tuple[int, ...]]) -> Iterator[Outcomes]:
    """Yields how the calls of an OpInfo go in both systems."""
    name = name_of(opinfo)
    if excluded(name) or name in UNDEFINED:
        return
    for call in calls_of(opinfo):
        directions: list[Direction] = ["forward"]
        if call.writes:
            continue
        if call.differentiable:
            directions.append("backward")
        for direction in directions:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    captured = CAPTURES[direction](call)
                except Exception:  # counted by the judge, in both systems or in none
                    continue
            for shape in meshes:
                mesh = ProcessMesh.of_shape(shape)
                seed = f"{call.name} {call.number} {direction} {shape}"
                pins = random_pins(captured.program, mesh, seed)
                if not pins or not captured.tensors or captured.draws:
                    continue
                theirs = run_dtensor(captured, mesh, pins)
                yield Outcomes(name, shape, direction, theirs, _run_autopar(captured, mesh, seed))


def _run_autopar(captured: Captured, mesh: ProcessMesh, seed: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outcome = judge(captured, mesh, seed).outcome
        except Exception:
            return "raises: other"
    return "silently wrong" if outcome == "wrong" else RIGHT


def table(outcomes: Sequence[Outcomes]) -> str:
    """Returns how often which outcome occurred, by system, direction and mesh."""
    columns = sorted({(it.direction, it.mesh) for it in outcomes}, reverse=True)
    kinds = sorted({kind for it in outcomes for kind in (it.dtensor, it.autopar)}, key=_kind_order)
    titles = [f"{direction} {'x'.join(map(str, mesh))}" for direction, mesh in columns]
    lines = [f"{'':10s}{'':24s}" + "".join(f"{title:>14s}" for title in titles)]
    for system in ("dtensor", "autopar"):
        counts = Counter((getattr(it, system), it.direction, it.mesh) for it in outcomes)
        for kind in kinds:
            cells = "".join(f"{counts[kind, *column]:14d}" for column in columns)
            lines.append(f"{system:10s}{kind:24s}{cells}")
    return "\n".join(lines)


def _kind_order(kind: str) -> tuple[bool, bool, str]:
    return kind != RIGHT, kind.startswith("raises"), kind


def _outcomes(item: tuple[str, Sequence[tuple[int, ...]]]) -> list[Outcomes]:
    name, meshes = item
    return list(outcomes_of(opinfos()[name], meshes))


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.op_coverage", description=__doc__)
    parser.add_argument("--only", default="*", help="glob of OpInfos")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th OpInfo, from the i-th on")
    parser.add_argument("--meshes", nargs="*", default=["2"])
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--wrong", action="store_true", help="list what DTensor gets wrong")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    chosen = [name for name in opinfos() if fnmatch.fnmatch(name, options.only)]
    at, count = (int(part) for part in options.shard.split("/"))
    meshes = [tuple(map(int, text.split("x"))) for text in options.meshes]
    work = [(name, meshes) for name in chosen[at::count]]
    # Forked, so that nobody imports torch and the database again.
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("fork")) as pool:
        outcomes = [it for each in pool.map(_outcomes, work, chunksize=4) for it in each]
    print(table(outcomes))
    if options.wrong:
        wrong = {it.name for it in outcomes if it.dtensor.startswith(("wrong", "silently"))}
        print("\nwrong in DTensor:", ", ".join(sorted(wrong)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
