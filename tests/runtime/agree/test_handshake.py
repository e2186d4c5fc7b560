"""The handshake: who is missing when the time is up."""

from __future__ import annotations

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from autopar.runtime.agree.handshake import Identity, meet, shake_hands
from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.job.patience import Patience

IDENTITY = Identity("digest", 3, "1")


def missed(rank: int, come: tuple[int, ...]) -> RankFailure:
    """Returns whom a rank of 3 misses that has waited for all its time before it says hello."""
    store, patience = HashStore(), Patience(0.05)
    for _ in patience.turns():
        pass
    for other in come:
        store.set(f"hello/{other}", "{}")
    with pytest.raises(RankFailure, match=r"did not come within 0\.05 s of the start") as got:
        shake_hands(store, rank, 3, IDENTITY, patience, lambda: None)
    return got.value


@pytest.mark.parametrize(
    ("rank", "come", "missing"),
    [
        (0, (1,), (2,)),
        # Rank 0 waits for rank 2 too, and has come later: its own time isn't up.
        (1, (0,), (2,)),
        (1, (), (0, 2)),
        (1, (0, 2), (0,)),
    ],
)
def test_who_is_missing_is_named_by_whoever_loses_patience_first(
    rank: int, come: tuple[int, ...], missing: tuple[int, ...]
) -> None:
    failure = missed(rank, come)
    assert (failure.rank, failure.silent) == (missing[0], missing)
    assert "; start all 3 processes, look at what the missing ones say, and give" in str(failure)
    assert ("nor did rank 2" in str(failure)) == (len(missing) > 1)


def test_a_meeting_names_who_is_not_as_far() -> None:
    store = HashStore()
    store.set("loaded/0", "1")
    with pytest.raises(RankFailure, match="rank 2 failed: it did not come within") as got:
        meet(store, "loaded", 1, 3, Patience(0.05), lambda: None)
    assert got.value.silent == (2,)
