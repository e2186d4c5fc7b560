"""Who is named where a rank waits in vain."""

from __future__ import annotations

import time
from threading import Thread

import pytest
from torch.distributed import HashStore

from autopar.runtime.failure.beats import Beat, Place
from autopar.runtime.failure.blame import inquire_lost, late
from autopar.runtime.failure.failure import FailureBoard

BROADCAST = Place("collective", "broadcast", step=1)
FETCHED = Place("meeting", "Trainer.fetched", step=1)
GATHER = Place("collective", "comm.all_gather", group="dp", step=2)
SAVING = Place("call", "Trainer.save_weights", step=1)


@pytest.mark.parametrize(
    ("waiting", "said"),
    [
        (BROADCAST, "rank 0 waits in step 0 at broadcast"),
        (FETCHED, "it has been in Trainer.fetched after step 0 for 3 s"),
    ],
)
def test_who_closes_a_connection_is_waited_for_until_it_says_that_its_time_is_up(
    waiting: Place, said: str
) -> None:
    store = HashStore()
    mine, theirs = FailureBoard(store, 1), FailureBoard(store, 0)

    def answer() -> None:
        """Answers alarms, and notices only later that its time is up."""
        noticed = time.monotonic() + 0.5
        while not store.check(["end"]):
            up = time.monotonic() > noticed
            theirs.post(Beat(theirs.alarms(), time.time(), 3.0, waiting, timed_out=up))
            time.sleep(0.02)

    thread = Thread(target=answer)
    thread.start()
    try:
        found = inquire_lost(mine, GATHER, [0, 1], lambda rank, group: [0, 1], False)
    finally:
        store.set("end", "1")
        thread.join()
    assert found.timed_out
    assert not found.silent
    failure = late(found, GATHER, 3.0, 1)
    assert said in failure.reason


def test_nobody_is_waited_for_who_is_gone_or_elsewhere() -> None:
    store = HashStore()
    mine, theirs = FailureBoard(store, 1), FailureBoard(store, 0)
    start = time.monotonic()
    assert inquire_lost(mine, GATHER, [0, 1], lambda rank, group: [0, 1], False).silent == {0: None}
    theirs.post(Beat(100, time.time(), 3.0, SAVING))
    found = inquire_lost(mine, GATHER, [0, 1], lambda rank, group: [0, 1], False)
    assert (list(found.silent), list(found.absent), found.timed_out) == ([], [0], False)
    assert time.monotonic() - start < 30
