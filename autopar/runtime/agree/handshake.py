"""The handshake: ranks agree that they run the same build before the first collective.

Backends don't notice when ranks run different programs: a reduction of other elements, or two
collectives swapped, give a wrong result or a hang. So every rank says over the store what it is
about to run, and rank 0 compares.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from torch.distributed.distributed_c10d import Store

from autopar.base.errors import RuntimeFailure
from autopar.base.units import counted
from autopar.runtime.failure.blame import listed
from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.job.patience import Patience


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
    patience: Patience,
    failed: Callable[[], RuntimeFailure | None],
) -> None:
    """Returns when all processes have said that they run the same.

    Args:
        store: The store of all processes.
        rank: This process.
        size: Number of processes.
        identity: What this process runs.
        patience: For how long to wait for the others.
        failed: Returns the failure of another process meanwhile, if any.

    Raises:
        RuntimeFailure: If one differs, failed, or doesn't come.
    """
    store.set(f"hello/{rank}", json.dumps(asdict(identity)))
    keys = [f"hello/{other}" for other in range(size)]
    if rank == 0:
        _await(store, keys, patience, failed, keys)
        known = [Identity(**json.loads(store.get(key))) for key in keys]
        store.set("verdict", verdict(dict(enumerate(known)), size))
    _await(store, ["verdict"], patience, failed, keys)
    message = store.get("verdict").decode()
    if message:
        raise RuntimeFailure(message)


def meet(
    store: Store,
    event: str,
    rank: int,
    size: int,
    patience: Patience,
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
        patience: For how long to wait for the others.
        failed: Returns the failure of another process meanwhile, if any.

    Raises:
        RuntimeFailure: If one failed, or doesn't come.
    """
    store.set(f"{event}/{rank}", "1")
    if store.add(event, 1) == size:
        store.set(f"{event}/all", "1")
    keys = [f"{event}/{other}" for other in range(size)]
    _await(store, [f"{event}/all"], patience, failed, keys)


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
    patience: Patience,
    failed: Callable[[], RuntimeFailure | None],
    by_rank: Sequence[str],
) -> None:
    """Returns when there are some keys.

    Args:
        store: Where.
        keys: Those that are waited for.
        patience: For how long.
        failed: Returns the failure of another process meanwhile, if any.
        by_rank: What each rank writes before there can be all of them.
    """
    for _ in patience.turns():
        if store.check(keys):
            return
        failure = failed()
        # Rank 0 gives its verdict before it fails of it.
        if failure and not store.check(keys):
            raise failure
    missing = [rank for rank, key in enumerate(by_rank) if not store.check([key])]
    # Where all are there, rank 0 has yet to say that they go together.
    first, *others = missing or [0]
    also = f"; nor did {listed(others)}" if others else ""
    raise RankFailure(
        first,
        f"it did not come within {patience.seconds:g} s of the start{also}; start all"
        f" {len(by_rank)} processes, look at what the missing ones say, and {patience.advice} if"
        " they take longer",
        silent=missing or [0],
    )
