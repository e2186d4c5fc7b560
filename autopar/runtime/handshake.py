"""The handshake: ranks agree that they run the same build before the first collective.

Backends don't notice when ranks run different programs: a reduction of other elements, or two
collectives swapped, give a wrong result or a hang. So every rank says over the store what it is
about to run, and rank 0 compares.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from torch.distributed.distributed_c10d import Store

from autopar.ir.errors import RuntimeFailure
from autopar.ir.units import counted
from autopar.runtime.blame import listed
from autopar.runtime.failure import RankFailure

PATIENCE = 3.0
"""Seconds that rank 0 has to say who didn't come."""


@dataclass(frozen=True)
class Identity:
    """What a rank is about to run.

    Attributes:
        digest: Digest of its build.
        ranks: Number of ranks that the build is for.
        version: Version of autopar.
        options: Further options that must be the same, with their values, as text.
    """

    digest: str
    ranks: int
    version: str
    options: str = ""


def shake_hands(
    store: Store,
    rank: int,
    size: int,
    identity: Identity,
    seconds: float,
    failed: Callable[[], RuntimeFailure | None],
) -> None:
    """Returns when all processes have said that they run the same.

    Args:
        store: The store of all processes.
        rank: This process.
        size: Number of processes.
        identity: What this process runs.
        seconds: For how long to wait for the others.
        failed: Returns the failure of another process meanwhile, if any.

    Raises:
        RuntimeFailure: If one differs, failed, or doesn't come.
    """
    store.set(f"hello/{rank}", json.dumps(asdict(identity)))
    if rank == 0:
        keys = [f"hello/{other}" for other in range(size)]
        _await(store, keys, seconds, failed)
        known = [Identity(**json.loads(store.get(key))) for key in keys]
        store.set("verdict", verdict(dict(enumerate(known)), size))
    # Rank 0 knows who is missing, and is missing only if it doesn't say so.
    _await(store, ["verdict"], seconds + (rank > 0) * PATIENCE, failed)
    message = store.get("verdict").decode()
    if message:
        raise RuntimeFailure(message)


def meet(
    store: Store,
    event: str,
    rank: int,
    size: int,
    seconds: float,
    failed: Callable[[], RuntimeFailure | None],
) -> None:
    """Returns when all processes are as far as this one.

    What can fail on one process alone comes before it; what all do together, and could only be
    waited for, behind it.

    Args:
        store: The store of all processes.
        event: What they have done.
        rank: This process.
        size: Number of processes.
        seconds: For how long to wait for the others.
        failed: Returns the failure of another process meanwhile, if any.

    Raises:
        RuntimeFailure: If one failed, or doesn't come.
    """
    store.set(f"{event}/{rank}", "1")
    if store.add(event, 1) == size:
        store.set(f"{event}/all", "1")
    keys = [f"{event}/{other}" for other in range(size)]
    _await(store, [f"{event}/all"], seconds, failed, keys)


def verdict(identities: Mapping[int, Identity], size: int) -> str:
    """Returns which processes differ from most others, and how; "" if all agree and fit."""
    usual, _ = Counter(identities.values()).most_common(1)[0]
    lines = [
        f"rank {rank} {_difference(identity, usual)}"
        for rank, identity in identities.items()
        if identity != usual
    ]
    if lines:
        more = [f"... and {len(lines) - 8} more ranks"] if len(lines) > 8 else []
        advice = "give all ranks the same build, options and autopar"
        return "; ".join([*lines[:8], *more, advice])
    if usual.ranks != size:
        started = f"{size} process{'es were' if size > 1 else ' was'} started"
        return (
            f"the build is for {counted(usual.ranks, 'rank')}, but {started}; start {usual.ranks},"
            f" as with torchrun --nproc-per-node {usual.ranks}, or compile for {size}"
        )
    return ""


def _difference(identity: Identity, usual: Identity) -> str:
    if identity.version != usual.version:
        return f"runs autopar {identity.version}, the others {usual.version}"
    if identity.ranks != usual.ranks:
        mine = counted(identity.ranks, "rank")
        return f"has a build for {mine}, the others one for {usual.ranks}"
    if identity.digest == usual.digest:
        return f"was opened with {identity.options}, the others with {usual.options}"
    return f"has another program (digest {identity.digest[:12]}, the others {usual.digest[:12]})"


def _await(
    store: Store,
    keys: list[str],
    seconds: float,
    failed: Callable[[], RuntimeFailure | None],
    by_rank: Sequence[str] = (),
) -> None:
    deadline = time.monotonic() + seconds
    pause = 0.001
    while not store.check(keys):
        failure = failed()
        # Rank 0 gives its verdict before it fails of it.
        if failure and not store.check(keys):
            raise failure
        if time.monotonic() > deadline:
            missing = [key for key in by_rank or keys if not store.check([key])]
            ranks = [int(key.partition("/")[2]) for key in missing if key != "verdict"] or [0]
            others = f"; nor did {listed(ranks[1:])}" if ranks[1:] else ""
            late = f"it did not come within {seconds:g} s of the start{others}"
            raise RankFailure(ranks[0], late, silent=ranks)
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
