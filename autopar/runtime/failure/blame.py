"""Who is to blame where a rank waits in vain: who doesn't answer, has left, or is elsewhere.

The rank that notices makes all others say where they are. It looks at those for whom it waits; of
those that wait in another collective, at whom these wait for; and so on. Whoever doesn't answer,
or doesn't wait for anybody, is to blame.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from autopar.runtime.agree.disagreement import SAME_CALLS
from autopar.runtime.failure.beats import Beat, Place
from autopar.runtime.failure.failure import FailureBoard, RankFailure
from autopar.runtime.job.siblings import lives

ANSWER = 1.5
"""Seconds that ranks have to say where they are."""

Members = Callable[[int, str], Collection[int]]
"""(rank, name of a group) -> the members of the group that the rank is in."""


@dataclass
class Findings:
    """What is known of the ranks that one waits for, directly or not.

    Attributes:
        silent: Those that don't answer, with where they were last.
        absent: Those that answer and don't wait for anybody, as far as one knows.
        waiting: Those that wait.
        timed_out: Whether the time is up for which this one, or one of those, waits.
    """

    silent: dict[int, Beat | None] = field(default_factory=dict)
    absent: dict[int, Beat] = field(default_factory=dict)
    waiting: dict[int, Beat] = field(default_factory=dict)
    timed_out: bool = False


def inquire(
    board: FailureBoard, place: Place, waited_for: Collection[int], members: Members
) -> Findings:
    """Finds out where the ranks are that this one waits for.

    Args:
        board: What ranks tell one another.
        place: Where this rank waits.
        waited_for: For whom, itself among them.
        members: Who is in a group.

    Raises:
        RuntimeError: If the store is gone.
    """
    found, asked = Findings(), set(waited_for) - {board.rank}
    alarm, deadline = board.alarm(), time.monotonic() + ANSWER
    while True:
        for rank in sorted(asked - found.absent.keys() - found.waiting.keys()):
            found.silent[rank] = beat = board.beat(rank)
            if beat is None or (beat.alarms < alarm and beat.place.kind != "closed"):
                continue
            del found.silent[rank]
            if beat.place == place or beat.place.kind == "collective":
                found.waiting[rank] = beat
            else:
                found.absent[rank] = beat
            if beat.place != place and beat.place.kind == "collective":
                asked |= set(members(rank, beat.place.group)) - {board.rank}
        if not found.silent and asked <= found.absent.keys() | found.waiting.keys():
            return found
        if time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def inquire_lost(
    board: FailureBoard,
    place: Place,
    waited_for: Collection[int],
    members: Members,
    timed_out: bool,
) -> Findings:
    """Finds out where the ranks are to which a connection was lost, or for which the time is up.

    Who times out closes its connections before it can say so: where all that one waits for are
    alive, and some wait, here or in another call, one of these is about to.

    Args:
        board, place, waited_for, members: See `inquire`.
        timed_out: Whether the time is up for this rank.

    Raises:
        RuntimeError: If the store is gone.
    """
    deadline = time.monotonic() + 2 * ANSWER
    while True:
        found = inquire(board, place, waited_for, members)
        elsewhere = [beat for beat in found.absent.values() if beat.place.kind == "meeting"]
        waiting = [*found.waiting.values(), *elsewhere]
        found.timed_out = timed_out or any(beat.timed_out for beat in waiting)
        left = any(beat.place.kind == "closed" for beat in found.absent.values())
        told = found.timed_out or found.silent or left or not waiting
        if told or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def late(found: Findings, place: Place, seconds: float, rank: int) -> RankFailure:
    """Returns the failure of who kept a rank waiting until the time-out.

    Args:
        found: What is known of the others.
        place: Where the rank waited.
        seconds: For how long.
        rank: The rank.
    """
    within = f"within {seconds:g} s"
    arrive = f"did not arrive at {place.text} {within}"
    silent = list(found.silent)
    if silent:
        beat = found.silent[silent[0]]
        reason = f"it {arrive}; {_last_seen(beat)}, and its process doesn't answer (stopped?)"
        return RankFailure(silent[0], reason + _and_others(silent[1:]), rank, silent)
    if found.absent:
        # Who is in another call may wait there; who is in none, or computes, doesn't.
        kinds = {"call": 1, "meeting": 2}
        first = min(found.absent, key=lambda each: kinds.get(found.absent[each].place.kind, 0))
        beat = found.absent[first]
        others = [each for each in found.absent if each != first]
        reason = f"it {arrive}; it has been {beat.place} for {beat.seconds:.0f} s"
        advice = "" if beat.place.kind == "op" else f"; {SAME_CALLS}"
        return RankFailure(first, reason + _and_others(others) + advice, rank)
    elsewhere = {each: beat.place for each, beat in found.waiting.items() if beat.place != place}
    if elsewhere:
        places = ", ".join(f"rank {each} waits {at}" for each, at in sorted(elsewhere.items()))
        reason = f"no answer {within} {place}: {places}; {SAME_CALLS}"
    else:
        everybody = listed(sorted((*found.waiting, rank)))
        reason = f"no answer {within} {place}, though all of {everybody} wait: is the network down?"
    return RankFailure(rank, reason)


def gone(found: Findings, place: Place, rank: int) -> RankFailure | None:
    """Returns the failure of who ended while a rank waited, if anybody did."""
    # On a busy machine one that lives may take longer to answer than who asks waits.
    ended = {r: beat for r, beat in found.silent.items() if beat is None or not lives(beat)}
    left = {each: beat for each, beat in found.absent.items() if beat.place.kind == "closed"}
    if not ended and left:
        # Who has an error may have made the others leave.
        first = min(left, key=lambda each: (not left[each].place.text, left[each].clock))
        return RankFailure(first, f"{_left(left[first])}; rank {rank} waited for it {place}", rank)
    silent = ended or found.silent
    if not silent:
        return None
    first, *others = silent
    seen = _last_seen(silent[first])
    reason = f"it ended without a word (killed?); {seen}; rank {rank} lost it {place}"
    also = f"; so did {listed(others)}" if others else ""
    return RankFailure(first, reason + also, rank, tuple(silent))


def listed(ranks: Sequence[int]) -> str:
    """Returns ranks in words, at most eight of them."""
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}{more}"


def _left(beat: Beat) -> str:
    """Returns how a rank closed its session while others waited for it."""
    why = beat.place.text or f"its script ended, or closed the session; {SAME_CALLS}"
    return f"it left the program{beat.place.after}: {why}"


def _last_seen(beat: Beat | None) -> str:
    return "never seen" if beat is None else f"last seen {beat.age:.0f} s ago {beat.place}"


def _and_others(ranks: Sequence[int]) -> str:
    return f"; nor did {listed(ranks)}" if ranks else ""
