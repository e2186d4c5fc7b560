"""Ranks that are killed, stopped or hang: who it was is said, and all processes end soon."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.runtime.failure.faults import RANKS, Outcome, inject
from tests.runtime.failure.faulty import TIMEOUT

pytestmark = pytest.mark.faults

SLACK = 20.0
"""Seconds that a loaded machine may take longer; torch's launcher alone takes 30 s more."""

COLLECTIVE = r"comm\.all_reduce -> %y \(model\.py:4\)"


def checked(outcome: Outcome, victim: int, limit: float) -> str:
    """Returns what was said, if the job ended in time, and all of it names the victim."""
    assert outcome.seconds is not None, "the fault did not happen"
    assert outcome.seconds < limit + SLACK
    assert outcome.left == 0
    assert outcome.names(victim), outcome.said
    return "\n".join(outcome.said)


@pytest.mark.parametrize(
    ("place", "victim"), [("start", 2), ("handshake", 0), ("step", 2), ("gather", 0)]
)
def test_a_killed_rank_ends_a_launch(tmp_path: Path, place: str, victim: int) -> None:
    checked(inject("launch", place, "kill", victim, tmp_path), victim, 5.0)


@pytest.mark.parametrize(
    ("place", "victim"),
    [("start", 0), ("handshake", 2), ("step", 0), ("between", 2), ("gather", 2)],
)
def test_a_killed_rank_ends_a_job_of_torchrun(tmp_path: Path, place: str, victim: int) -> None:
    checked(inject("torchrun", place, "kill", victim, tmp_path), victim, 5.0)


@pytest.mark.parametrize(
    ("runner", "place", "victim"),
    [
        ("launch", "start", 2),
        ("launch", "handshake", 0),
        ("launch", "step", 0),
        ("torchrun", "handshake", 2),
        ("torchrun", "gather", 0),
    ],
)
def test_a_stopped_rank_ends_all_after_the_time_out(
    tmp_path: Path, runner: str, place: str, victim: int
) -> None:
    checked(inject(runner, place, "stop", victim, tmp_path), victim, TIMEOUT + 5.0)


@pytest.mark.parametrize(("how", "runner"), [("stop", "torchrun"), ("spin", "launch")])
def test_a_rank_that_hangs_in_an_op_is_named_with_it(tmp_path: Path, how: str, runner: str) -> None:
    said = checked(inject(runner, "step", how, 2, tmp_path), 2, TIMEOUT + 5.0)
    assert re.search(f"rank 2 failed: it did not arrive at {COLLECTIVE} within 5 s; ", said)
    found = {"spin": r"it has been in step 0 at aten\.neg\.default -> %n \(model\.py:3\) for \d s"}
    stopped = r"last seen \d+ s ago .+, and its process doesn't answer \(stopped\?\)"
    assert re.search(found.get(how, stopped), said)


def test_a_rank_whose_loader_sleeps_is_named_with_its_line(tmp_path: Path) -> None:
    said = checked(inject("torchrun", "between", "sleep", 2, tmp_path), 2, TIMEOUT + 5.0)
    place = r"outside of autopar after step 0, at sabotage\.py:\d+ in at"
    where = rf"did not arrive at ({COLLECTIVE}|Session\.run) within 5 s"
    assert re.search(f"{where}; it has been {place} for \\d s", said)


@pytest.mark.parametrize(
    ("how", "victim", "why"),
    [
        ("raise", 2, "ValueError: out of luck"),
        ("exit", 2, r"it called sys\.exit\(3\)"),
        ("exit", 0, ""),
    ],
)
def test_a_rank_whose_script_ends_between_runs_is_named(
    tmp_path: Path, how: str, victim: int, why: str
) -> None:
    said = checked(inject("torchrun", "between", how, victim, tmp_path), victim, 5.0)
    # The launcher may end the others before they have said a word; it names the rank itself.
    assert not said or victim == 0 or re.search(rf"it left the program after step 0: {why}", said)
    log = (tmp_path / "log").read_text()
    assert f"rank {victim} failed: " in log or f"rank      : {victim} " in log


@pytest.mark.parametrize(
    ("place", "how", "victim"),
    [
        ("start", "kill", 0),
        ("start", "kill", 2),
        ("handshake", "kill", 2),
        ("handshake", "stop", 2),
    ],
)
def test_without_a_launcher_the_start_has_one_time_out(
    tmp_path: Path, place: str, how: str, victim: int
) -> None:
    assert checked(inject("hand", place, how, victim, tmp_path), victim, TIMEOUT + 5.0)


def test_without_a_fault_all_is_well(tmp_path: Path) -> None:
    """So that a test can't pass for a job that fails by itself."""
    for runner in ("torchrun", "hand"):
        folder = tmp_path / runner
        folder.mkdir()
        assert inject(runner, "nowhere", "kill", 2, folder) == Outcome(None, (), 0)
    assert RANKS == 4
