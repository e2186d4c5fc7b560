"""Calibrate: from what the ranks measure to a cluster, and how well that explains it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch
import torch.distributed as dist

from autopar.base.errors import AutoparError, InvalidInputError, RuntimeFailure
from autopar.base.file import write_file
from autopar.calibration.calibration import Calibration, described
from autopar.calibration.clocks import clock_of
from autopar.calibration.device import measure_device, slowest
from autopar.calibration.levels import group_of, levels_of
from autopar.calibration.measure import measure_links
from autopar.calibration.meter import Meter
from autopar.calibration.together import Together
from autopar.ir.devices import CPU, CUDA
from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.job.device import backend_of, choose_device
from autopar.runtime.job.processes import Processes
from autopar.runtime.job.world import interface_of

TIMEOUT = timedelta(minutes=5)

MOST_PROCESSES = 64
"""More than any host is asked to start by itself."""


@dataclass(frozen=True)
class Settings:
    """What to measure: the arguments of `calibrate` for each process."""

    backend: str
    seconds: float
    name: str
    levels: str
    clock: str = ""


def calibrate(
    *,
    processes: int | None = None,
    backend: str = "auto",
    seconds: float = 0.4,
    name: str = "",
    levels: str = "",
    device: str = "",
    clock: str = "",
) -> Calibration | None:
    """Measures this machine.

    Under torchrun all ranks call it, and rank 0 gets the result. Otherwise this process measures
    its own device, or starts processes that measure together.

    Args:
        processes: How many processes to start on this host; None for none.
        backend: `gloo`, `nccl`, or `auto`: nccl where there are GPUs.
        seconds: About how long each rate is measured.
        name: The name of the cluster; by default that of the host.
        levels: Name and size of each level of links, innermost first, as `host=8,rack=4`; by
            default hosts, as the launcher says, and the network between them. Ranks count up
            within a host, then within a rack.
        device: `cpu` or `cuda`; by default what the backend says.
        clock: What seconds are of: `wall`, what passes; `cpu`, what a process computes, so that
            other programs aren't counted; or `events`, what passes on a GPU. By default `events`
            on a GPU, and `wall` elsewhere. Links are always measured by what passes.

    Returns:
        The calibration; None on ranks other than 0.

    Raises:
        InvalidInputError: If processes are asked for under torchrun, or too many, or the levels
            aren't made up of all processes, or the device doesn't go with the backend or clock.
        RuntimeFailure: On all ranks, if they can't meet, or one of them fails, which it names.
    """
    known = Processes.from_environment()
    settings = Settings(_backend_of(device, backend), seconds, name, levels, clock)
    if processes is None:
        return _on_rank(known, settings)
    if known.size > 1 or "RANK" in os.environ:
        raise InvalidInputError("torchrun has started the processes; leave out --processes")
    if not 1 <= processes <= MOST_PROCESSES:
        raise InvalidInputError(
            f"--processes {processes}: between 1 and {MOST_PROCESSES} can be started on one host"
        )
    levels_of(Processes(size=processes, local_size=processes), levels)
    return _started(processes, settings)


def _backend_of(device: str, backend: str) -> str:
    """Returns the backend on a device that was asked for; the one that was, if none was."""
    if not device:
        return backend
    if device not in _BACKENDS:
        raise InvalidInputError(f"no device {device!r}: there are {', '.join(_BACKENDS)}")
    if backend not in ("auto", _BACKENDS[device]):
        raise InvalidInputError(
            f"the backend {backend!r} doesn't go with the device {device!r}; leave one of them out"
        )
    return _BACKENDS[device]


_BACKENDS = {CPU: "gloo", CUDA: "nccl"}
"""By device."""


def _started(count: int, settings: Settings) -> Calibration:
    context = multiprocessing.get_context("spawn")
    port = _free_port()
    pipes, jobs = [], []
    for rank in range(count):
        receiving, sending = context.Pipe(duplex=False)
        arguments = (rank, count, port, settings, sending)
        jobs.append(context.Process(target=measure_with_others, args=arguments, daemon=True))
        pipes.append(receiving)
        jobs[-1].start()
        sending.close()
    try:
        return _calibrated(pipes)
    finally:
        for job in jobs:
            job.terminate()
            job.join()


def _calibrated(pipes: Sequence[Connection]) -> Calibration:
    """Returns what rank 0 found when all ranks are done, or raises what the first one says."""
    left = {id(pipe): rank for rank, pipe in enumerate(pipes)}
    found: list[Calibration] = []
    while left:
        for pipe in wait([pipe for pipe in pipes if id(pipe) in left]):
            assert isinstance(pipe, Connection)
            result = _received(pipe, left.pop(id(pipe)))
            if isinstance(result, str):
                raise RuntimeFailure(f"the measurement failed: {result}; calibrate again")
            found += [result] if isinstance(result, Calibration) else []
    return found[0]


def _received(pipe: Connection, rank: int) -> object:
    try:
        return pipe.recv()
    except EOFError:
        return f"rank {rank} ended without a word (killed?)"


def measure_with_others(
    rank: int, size: int, port: int, settings: Settings, pipe: Connection
) -> None:
    """Runs one of the processes that `calibrate` starts, which tells it what comes of it."""
    # Ctrl-C is for the parent, which ends its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    processes = Processes(rank, size, rank, size, "127.0.0.1", port, prefix="calibrate")

    def end(failure: RankFailure) -> None:
        pipe.send(str(failure))
        os._exit(1)

    try:
        pipe.send(_on_rank(processes, settings, end))
    except AutoparError as error:
        pipe.send(str(error))
    except Exception as error:
        pipe.send(f"rank {rank}: {type(error).__name__}: {error}")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _on_rank(
    processes: Processes,
    settings: Settings,
    on_failure: Callable[[RankFailure], None] | None = None,
) -> Calibration | None:
    """Returns, on rank 0, what the ranks measure.

    Args:
        processes: Who this process is.
        settings: What to measure.
        on_failure: See `Supervisor`.
    """
    device = choose_device(settings.backend, processes)
    levels = levels_of(processes, settings.levels)
    meter = Meter(device, clock_of(settings.clock, device), settings.seconds)
    if processes.size == 1:
        return described(processes, device, measure_device(meter), {}, settings.name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = backend_of(device)
    with (
        interface_of(processes),
        Together(processes, backend, TIMEOUT, on_failure) as ranks,
        ranks.reported(),
    ):
        found = slowest(measure_device(meter), processes.size)
        samples = {}
        for level in levels:
            groups = [group_of(processes, level, n, backend, TIMEOUT) for n in level.counts]
            samples[level] = measure_links(groups, device)
        dist.barrier()
    if processes.rank:
        return None
    return described(processes, device, found, samples, settings.name)


def write_cluster(calibration: Calibration, path: Path) -> None:
    """Writes a cluster file.

    Raises:
        InvalidInputError: If it can't be written.
    """
    write_file(path, [calibration.text()])
