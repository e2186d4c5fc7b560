"""Openings of sessions in real processes; apart from the tests so that the processes import it."""

from __future__ import annotations

import gc
import ipaddress
import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autopar.base.errors import AutoparError
from autopar.runtime.api import load
from autopar.runtime.job.processes import Processes

ROUNDS = 3


def join(processes: Processes) -> None:
    """Makes a process group of the user's own."""
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{processes.address}:{processes.port}",
        rank=processes.rank,
        world_size=processes.size,
        timeout=timedelta(seconds=30),
    )


def open_often(
    processes: Processes, good: Path, other: Path, bad: Path, own_group: bool
) -> list[tuple[str, Any]]:
    """Opens sessions, of which every fourth fails on rank 1 and every fourth on rank 2."""
    if own_group:
        join(processes)
    kinds = {
        "other build": other if processes.rank == 1 else good,
        "damaged": bad if processes.rank == 2 else good,
    }
    order = ["sum", "other build", "sum", "damaged"] * ROUNDS + ["sum"]
    return [(kind, opened(processes, kinds.get(kind, good))) for kind in order]


def opened(processes: Processes, build: Path) -> Any:
    """Returns what a session computes, or why there is none."""
    try:
        with load(build, processes=processes, timeout=20.0) as session:
            return session(torch.ones(2)).tolist()
    except AutoparError as error:
        return str(error)


def open_side_by_side(
    processes: Processes, one: Path, two: Path, own_group: bool
) -> list[float | bool]:
    """Returns what two sessions compute in turns, and whether there is a process group at last."""
    if own_group:
        join(processes)
    x = torch.ones(2)
    with load(two, processes=processes, timeout=20.0) as second:
        with load(one, processes=processes, timeout=20.0) as first:
            pass
        first = load(one, processes=processes, timeout=20.0)
        found = [float(each(x)[0]) for each in (first, second, first, second)]
        first.close()
        found.append(float(second(x)[0]))
    return [*found, dist.is_initialized()]


def held(processes: Processes, build: Path) -> list[int]:
    """Returns how many files this process has open behind each of some sessions."""
    found = []
    for _ in range(9):
        with load(build, processes=processes, timeout=20.0) as session:
            session(torch.ones(2))
        gc.collect()
        found.append(len(os.listdir("/proc/self/fd")))
    return found


def listening(processes: Processes, build: Path) -> list[str]:
    """Returns the addresses on which this process listens while a session is open."""
    with load(build, processes=processes, timeout=20.0) as session:
        session(torch.ones(2))
        return sorted(_addresses())


def _addresses() -> set[str]:
    """Returns where the sockets of this process listen."""
    own = set()
    for each in Path("/proc/self/fd").iterdir():
        # The one that lists them is closed by now.
        with suppress(OSError):
            own.add(os.readlink(each))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            _, place, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in own:
                found.add(_address(place.partition(":")[0]))
    return found


def _address(digits: str) -> str:
    """Returns an address that the system writes in words of 32 bits, the low byte first."""
    data = b"".join(bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8))
    address = ipaddress.ip_address(data)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
