"""Calibrate: from what the ranks measure to a cluster, and how well that explains it."""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from textwrap import wrap

import torch
import torch.distributed as dist

from autopar.base.errors import AutoparError, InvalidInputError, RuntimeFailure
from autopar.base.file import write_file
from autopar.base.units import human_seconds
from autopar.calibration.fit import Fit, LinkSample, fit_link
from autopar.calibration.host import HostRates, measure_host, slowest
from autopar.calibration.levels import Level, group_of, levels_of
from autopar.calibration.measure import ComputeRates, measure_compute, measure_links
from autopar.calibration.together import Together
from autopar.cost import Cluster, LinkLevel
from autopar.cost.cluster_text import cluster_text
from autopar.cost.links import CollectiveCost, HostLink
from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.job.device import backend_of, choose_device
from autopar.runtime.job.processes import Processes
from autopar.runtime.job.world import interface_of

TIMEOUT = timedelta(minutes=5)

DOUBTFUL = 0.25
"""From this typical relative error on, plans that differ less are told apart by chance."""

MOST_PROCESSES = 64
"""More than any host is asked to start by itself."""


@dataclass(frozen=True)
class Calibration:
    """A measured cluster.

    Attributes:
        cluster: The description.
        fits: By level of links, the fit of each collective.
        processes: How many processes measured.
    """

    cluster: Cluster
    fits: Mapping[str, Mapping[str, Fit]]
    processes: int

    @property
    def doubts(self) -> str:
        """What to know of a fit that explains its measurements badly; "" if all are good."""
        errors = [fit.typical_error for fits in self.fits.values() for fit in fits.values()]
        bad = [error for error in errors if error > DOUBTFUL]
        if not bad:
            return ""
        return (
            f"{len(bad)} of {len(errors)} fits are typically more than {DOUBTFUL:.0%} off what was"
            f" measured, up to {max(bad):.0%}, as where other programs run, or more processes than"
            " cores: end other programs, start no more processes than a program will have, and"
            " calibrate again; with these figures, don't trust smaller differences between plans"
        )

    def text(self) -> str:
        """Returns the cluster file, with how it came about."""
        how = [f"# Measured by {self.processes} processes at once on {platform.node()}."]
        how += [
            f"# {level}: {kind} within {fit.typical_error:.0%} of {fit.samples} samples, typically"
            for level, fits in self.fits.items()
            for kind, fit in fits.items()
        ]
        if self.doubts:
            how += wrap(
                f"Warning: {self.doubts}.", 100, initial_indent="# ", subsequent_indent="# "
            )
        return "\n".join([*how, cluster_text(self.cluster)])

    def __str__(self) -> str:
        """Returns the figures, and how well they fit, as text for a terminal."""
        cluster = self.cluster
        rates = ", ".join(f"{dtype} {rate / 1e9:.3g}" for dtype, rate in cluster.flops_per_second)
        lines = [
            f"{cluster.name}: {cluster.device}, {self.processes} at once",
            f"products   {rates} Gflop/s each",
            f"memory     {cluster.memory_bytes_per_second / 1e9:.3g} GB/s each;"
            f" an op takes {human_seconds(cluster.launch_seconds)} to start",
        ]
        if (link := cluster.host_link) is not None:
            lines.append(
                f"host       {1 / link.beta_seconds_per_byte / 1e9:.3g} GB/s each way, and"
                f" {human_seconds(link.alpha_seconds)}; it updates what waits there at"
                f" {cluster.host_bytes_per_second / 1e9:.3g} GB/s for each"
            )
        if not self.fits:
            lines.append(f"links      not measured by one process: those of {ASSUMED_LINKS!r}")
        for level, fits in self.fits.items():
            lines += ["", f"links {level:<13}   latency    per MiB   typical error"]
            for kind, fit in fits.items():
                per_mib = human_seconds(fit.beta_seconds_per_byte * 2**20)
                latency = human_seconds(fit.alpha_seconds)
                error = f"{fit.typical_error:.0%} of {fit.samples}"
                lines.append(f"  {kind:<16} {latency:>10} {per_mib:>10}   {error}")
        if self.doubts:
            lines += ["", *wrap(f"Warning: {self.doubts}.", 79)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Settings:
    """What to measure: the arguments of `calibrate` for each process."""

    backend: str
    seconds: float
    name: str
    levels: str


ASSUMED_LINKS = "cpu"
"""The built-in cluster whose links stand in where a single process can't measure any."""


def calibrate(
    *,
    processes: int | None = None,
    backend: str = "auto",
    seconds: float = 0.4,
    name: str = "",
    levels: str = "",
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

    Returns:
        The calibration; None on ranks other than 0.

    Raises:
        InvalidInputError: If processes are asked for under torchrun, or too many, or the levels
            aren't made up of all processes.
        RuntimeFailure: On all ranks, if they can't meet, or one of them fails, which it names.
    """
    known = Processes.from_environment()
    if processes is None:
        return _on_rank(known, Settings(backend, seconds, name, levels))
    if known.size > 1 or "RANK" in os.environ:
        raise InvalidInputError("torchrun has started the processes; leave out --processes")
    if not 1 <= processes <= MOST_PROCESSES:
        raise InvalidInputError(
            f"--processes {processes}: between 1 and {MOST_PROCESSES} can be started on one host"
        )
    levels_of(Processes(size=processes, local_size=processes), levels)
    return _started(processes, Settings(backend, seconds, name, levels))


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
    levels, seconds = levels_of(processes, settings.levels), settings.seconds
    if processes.size == 1:
        rates, host = measure_compute(device, seconds), _host_of(device, seconds)
        return _described(processes, device, rates, {}, settings, host)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = backend_of(device)
    with (
        interface_of(processes),
        Together(processes, backend, TIMEOUT, on_failure) as ranks,
        ranks.reported(),
    ):
        rates, host = _slowest(measure_compute(device, seconds), device), _host_of(device, seconds)
        host = None if host is None else slowest(host, device)
        samples = {}
        for level in levels:
            groups = [group_of(processes, level, n, backend, TIMEOUT) for n in level.counts]
            samples[level] = measure_links(groups, device)
        dist.barrier()
    if processes.rank:
        return None
    return _described(processes, device, rates, samples, settings, host)


def _host_of(device: torch.device, seconds: float) -> HostRates | None:
    """Returns what a device and its host take; nothing where the device is the host."""
    return None if device.type == "cpu" else measure_host(device, seconds)


def _slowest(rates: ComputeRates, device: torch.device) -> ComputeRates:
    """Returns the rates of the slowest rank, for which all others wait."""
    dtypes = list(rates.flops_per_second)
    figures = [*rates.flops_per_second.values(), rates.bytes_per_second, 1 / rates.launch_seconds]
    least = torch.tensor(figures, dtype=torch.float64, device=device)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    *flops, copied, launches = least.tolist()
    return ComputeRates(dict(zip(dtypes, flops, strict=True)), copied, 1 / launches)


def _described(
    processes: Processes,
    device: torch.device,
    rates: ComputeRates,
    samples: Mapping[Level, Sequence[LinkSample]],
    settings: Settings,
    host: HostRates | None,
) -> Calibration:
    fitted = {level: fit_link(each) for level, each in samples.items()}
    links = tuple(
        LinkLevel(
            level.name,
            level.size,
            together.alpha_seconds,
            together.beta_seconds_per_byte,
            collectives=tuple(
                CollectiveCost(kind, fit.alpha_seconds, fit.beta_seconds_per_byte)
                for kind, fit in sorted(by_kind.items())
            ),
        )
        for level, (together, by_kind) in fitted.items()
    )
    cluster = Cluster(
        settings.name or platform.node() or "measured",
        _device_name(device),
        _memory_bytes(device, processes.local_size),
        rates.bytes_per_second,
        tuple(sorted(rates.flops_per_second.items())),
        links or Cluster.load(ASSUMED_LINKS).links,
        launch_seconds=rates.launch_seconds,
        device_type=device.type,
    )
    if host is not None:
        link = HostLink("host", host.alpha_seconds, host.beta_seconds_per_byte)
        rate = 1 / host.seconds_per_byte
        cluster = replace(cluster, host_link=link, host_memory_bytes_per_second=rate)
    fits = {level.name: by_kind for level, (_, by_kind) in fitted.items()}
    return Calibration(cluster, fits, processes.size)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"one process on {os.cpu_count()} CPU cores ({platform.machine()})"


def _memory_bytes(device: torch.device, processes: int) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(total // processes)


def write_cluster(calibration: Calibration, path: Path) -> None:
    """Writes a cluster file.

    Raises:
        InvalidInputError: If it can't be written.
    """
    write_file(path, [calibration.text()])
