"""Many cases of all targets, in an order that can be interrupted anywhere and goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
import torch

from tests.mutations.isolated import Outcome, carry_out_all
from tests.mutations.target import Case, Target

ROUND = 100
"""Cases of all targets together after which the state is written."""


@dataclass
class Tally:
    """What is known of a target.

    Attributes:
        cases: The number of seeds, from 0 on, that were looked at.
        accepted: How many were read, compiled or run as if they were sound.
        refused: How many ended in an error message.
        failures: The seeds that failed.
        seconds: Of a processor's time, the longest case.
        bytes: At the peak, of the largest case.
    """

    cases: int = 0
    accepted: int = 0
    refused: int = 0
    failures: list[int] = field(default_factory=list)
    seconds: float = 0.0
    bytes: int = 0

    def count(self, outcome: Outcome) -> None:
        """Counts a case."""
        self.cases += 1
        if outcome.failures:
            self.failures.append(outcome.case.seed)
        elif outcome.refused:
            self.refused += 1
        else:
            self.accepted += 1
        self.seconds = max(self.seconds, outcome.seconds)
        self.bytes = max(self.bytes, outcome.bytes)


def prepare(targets: Iterable[Target], folder: Path) -> list[Target]:
    """Writes the sound files of targets, in this process, which so is warm for all cases.

    Returns:
        The targets that can be prepared here: not all packages are everywhere.
    """
    torch.set_num_threads(1)
    ready = []
    for target in targets:
        (folder / target.name).mkdir()
        try:
            target.prepare(folder / target.name)
        except pytest.skip.Exception:
            continue
        ready.append(target)
    return ready


def read_state(path: Path | None) -> dict[str, Tally]:
    """Returns what is known by target; nothing if there is no file yet."""
    if path is None or not path.exists():
        return {}
    return {name: Tally(**known) for name, known in json.loads(path.read_text()).items()}


def write_state(path: Path | None, state: Mapping[str, Tally]) -> None:
    """Writes what is known by target."""
    if path is None:
        return
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps({name: asdict(tally) for name, tally in state.items()}, indent=1))
    beside.replace(path)


def carry_on(
    targets: Sequence[Target], state: dict[str, Tally], cases: int, prepared: Path, jobs: int
) -> Iterator[list[Outcome]]:
    """Yields the outcomes of the next cases, a round at a time, and counts them in the state.

    Args:
        targets: Which; each gets its share of the cases.
        state: What is known; seeds go on from there.
        cases: How many more.
        prepared: The folder of `prepare`.
        jobs: How many are under way at a time.
    """
    shares = sum(target.share for target in targets)
    given = dict.fromkeys(state, 0) | {target.name: 0 for target in targets}
    for done in range(0, cases, ROUND):
        until = min(done + ROUND, cases)
        chosen = []
        for target in targets:
            wanted = round(until * target.share / shares) - given[target.name]
            first = state.setdefault(target.name, Tally()).cases
            chosen += [Case(target, first + at) for at in range(wanted)]
            given[target.name] += wanted
        outcomes = list(carry_out_all(chosen, prepared, jobs))
        for outcome in sorted(outcomes, key=lambda outcome: outcome.case.seed):
            state[outcome.case.target.name].count(outcome)
        yield outcomes


def table(state: Mapping[str, Tally]) -> str:
    """Returns what is known as a table."""
    rows = [("target", "cases", "accepted", "refused", "failures", "longest", "largest")]
    rows += [
        (
            name,
            *map(str, (tally.cases, tally.accepted, tally.refused, len(tally.failures))),
            f"{tally.seconds:.1f} s",
            f"{tally.bytes >> 20} MiB",
        )
        for name, tally in state.items()
    ]
    sums = [sum(int(row[at]) for row in rows[1:]) for at in range(1, 5)]
    rows.append(("together", *map(str, sums), "", ""))
    return "\n".join(f"{row[0]:15}" + "".join(f"{cell:>10}" for cell in row[1:]) for row in rows)
