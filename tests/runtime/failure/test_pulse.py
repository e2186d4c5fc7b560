"""The pulse of the next rank at the start: the dead are noticed, and the slow let be."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace

from torch.distributed import HashStore  # type: ignore[attr-defined]

from autopar.runtime.failure.beats import Beat, Place
from autopar.runtime.failure.failure import FailureBoard
from autopar.runtime.failure.pulse import Pulse
from autopar.runtime.job.siblings import system

BEAT = Beat(0, time.time(), 1.0, Place("call", "the start"), False, system(), os.getppid(), 1)
LONG = 0.05


def failure_of(beat: Beat) -> str:
    """Returns what is said of a rank that gave one beat, long ago."""
    store = HashStore()
    FailureBoard(store, 1).post(beat)
    pulse = Pulse(FailureBoard(store, 0), 2, LONG)
    assert pulse.failure() is None or beat.place.kind == "closed"
    time.sleep(2 * LONG)
    found = pulse.failure()
    return "" if found is None else str(found)


def test_a_silent_process_of_this_host_is_let_be_while_it_lives() -> None:
    assert failure_of(replace(BEAT, pid=os.getpid())) == ""
    # That of another launcher.
    assert failure_of(replace(BEAT, parent=os.getpid(), pid=os.getppid())) == ""


def test_a_process_of_this_host_that_has_ended_is_noticed() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for parent in (os.getpid(), os.getppid()):
        said = failure_of(replace(BEAT, parent=parent, pid=ended.pid))
        assert said.startswith("rank 1 failed: it ended without a word (killed?); last seen ")


def test_a_silent_process_of_another_host_is_given_the_time_of_the_start() -> None:
    assert "ended without a word" in failure_of(replace(BEAT, host="another"))
    store = HashStore()
    FailureBoard(store, 1).post(replace(BEAT, host="another"))
    pulse = Pulse(FailureBoard(store, 0), 2, 60.0)
    assert pulse.failure() is None
    time.sleep(2 * LONG)
    assert pulse.failure() is None


def test_a_rank_that_left_by_an_error_is_named_with_it() -> None:
    left = replace(BEAT, place=Place("closed", "ValueError: out of luck"))
    assert failure_of(left) == "rank 1 failed: it left the program: ValueError: out of luck"
    assert failure_of(replace(BEAT, place=Place("closed", ""))) == ""
