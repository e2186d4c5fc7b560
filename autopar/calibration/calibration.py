"""Calibration: what was measured as a cluster, and how well that explains it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap

import torch

from autopar.base.units import human_bytes, human_seconds
from autopar.calibration.device import DeviceFigures
from autopar.calibration.fit import Fit, LinkSample, fit_link
from autopar.calibration.levels import Level
from autopar.cost import Cluster, LinkLevel
from autopar.cost.cluster_text import cluster_text
from autopar.cost.links import CollectiveCost, HostLink
from autopar.runtime.job.processes import Processes

DOUBTFUL = 0.25
"""From this typical relative error on, plans that differ less are told apart by chance."""

ASSUMED_LINKS = "cpu"
"""The built-in cluster whose links stand in where a single process can't measure any."""


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
        if cluster.op_rates:
            families = len({rate.family for rate in cluster.op_rates})
            lines.append(f"ops        {families} families measured one by one, as the file says")
        if (fresh := cluster.fresh_memory) is not None:
            lines.append(
                f"allocation results above {human_bytes(int(fresh.above_bytes))} take"
                f" {human_seconds(fresh.seconds_per_byte * 2**20)} per MiB besides"
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


def described(
    processes: Processes,
    device: torch.device,
    found: DeviceFigures,
    samples: Mapping[Level, Sequence[LinkSample]],
    name: str,
) -> Calibration:
    """Returns the calibration that measurements amount to.

    Args:
        processes: Who this process is.
        device: What it measured.
        found: The figures of the device.
        samples: Of collectives, by level of links.
        name: The cluster's; by default that of the host.
    """
    rates, host = found.rates, found.host
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
        name or platform.node() or "measured",
        _device_name(device),
        _memory_bytes(device, processes.local_size),
        rates.bytes_per_second,
        tuple(sorted(rates.flops_per_second.items())),
        links or Cluster.load(ASSUMED_LINKS).links,
        launch_seconds=rates.launch_seconds,
        device_type=device.type,
        op_rates=found.op_rates,
        fresh_memory=found.fresh_memory,
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
