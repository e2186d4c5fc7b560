"""Proof, before anything runs, that the collectives of all ranks match and can't deadlock.

A backend notices a missing collective only by its time-out, and SUM against MAX or two swapped
collectives of one shape not at all. But every rank's program is known here. The proof has three
parts:

1. Groups are well formed, and every rank is in a list of each group that its program uses.
2. *Order.* Tokens move through the programs, one per rank class (see `classes`): a collective
   fires when all classes of its lists have arrived at one of that group. If no token can move
   before all programs have ended, the ranks would wait for one another for ever.
3. *Matching.* The collectives that fire together are the same one: same name, kind, dtype,
   reduction and settings; the sizes that the members of each list bring and expect, rank
   expressions evaluated on all ranks at once, are those that the collective's definition demands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from autopar.base.errors import VerificationError
from autopar.ir.deployment import Deployment
from autopar.mapping.classes import RankClass, rank_classes
from autopar.mapping.collectives import Collective, Site, in_order, sites
from autopar.mapping.matching import Matcher, Party
from autopar.mapping.membership import Membership, membership, rank_text, ranks_do

TITLE = "the ranks' communication does not match"
LIMIT = 20
"""Problems reported at most; the first ones tell most."""


@dataclass(frozen=True)
class Proof:
    """What was proven, for reports.

    Attributes:
        ranks: Number of ranks.
        classes: Number of rank classes that the simulation moved.
        collectives: Number of different collectives that were found to match.
    """

    ranks: int
    classes: int
    collectives: int


def prove(deployment: Deployment) -> Proof:
    """Proves that all ranks' collectives match and that no rank waits for ever.

    Raises:
        VerificationError: If they don't; each problem names the ranks, the ops and their source.
    """
    groups, problems = _memberships(deployment)
    code = [sites(program) for program in deployment.programs]
    if not problems:
        problems = _structure_problems(deployment, groups, code)
    if problems:
        raise VerificationError(TITLE, problems[:LIMIT])
    programs = np.asarray([entry.program for entry in deployment.ranks], np.int64)
    classes = rank_classes(programs, tuple(groups.values()))
    simulation = _Simulation(classes, groups, [code[each.program] for each in classes])
    matcher = Matcher(deployment)
    wrong: dict[str, str] = {}
    matched = 0
    for group, parties in simulation.fire():
        matched += 1
        if group.name not in wrong and (problem := matcher.problem(group, parties)):
            wrong[group.name] = problem
    problems = [*wrong.values(), *simulation.stuck()]
    if problems:
        raise VerificationError(TITLE, problems[:LIMIT])
    return Proof(deployment.world_size, len(classes), matched)


def _memberships(deployment: Deployment) -> tuple[dict[str, Membership], list[str]]:
    groups: dict[str, Membership] = {}
    problems: list[str] = []
    for name, lists in deployment.groups.items():
        groups[name], wrong = membership(name, lists, deployment.world_size)
        problems.extend(wrong)
    return groups, problems


def _structure_problems(
    deployment: Deployment,
    groups: Mapping[str, Membership],
    code: list[dict[str, tuple[Site, ...]]],
) -> list[str]:
    problems = []
    programs = np.asarray([entry.program for entry in deployment.ranks])
    if not len(programs) or programs.min() < 0 or programs.max() >= len(code):
        return [f"every rank must run one of the {len(code)} programs"]
    if any(len(entry.coords) != len(deployment.axes) for entry in deployment.ranks):
        return [f"every rank needs one coordinate for each of the axes {list(deployment.axes)}"]
    for index, functions in enumerate(code):
        outside = {
            name: np.flatnonzero((programs == index) & (group.list_of < 0)).tolist()
            for name, group in groups.items()
        }
        for each in (site for own in functions.values() for site in own):
            if not isinstance(each, Collective):
                continue
            if each.group not in groups:
                problems.append(f"{each}: there is no group {each.group!r}, only {list(groups)}")
            elif outside[each.group]:
                who = ranks_do(outside[each.group], "is", "are")
                problems.append(f"{each}: {who} to run it, but in no list of {each.group!r}")
    return problems


class _Simulation:
    """Tokens, one per rank class, that move through the classes' programs."""

    def __init__(
        self,
        classes: tuple[RankClass, ...],
        groups: Mapping[str, Membership],
        code: list[dict[str, tuple[Site, ...]]],
    ) -> None:
        self._classes = classes
        self._groups = groups
        self._code = code
        self._at: dict[int, Collective] = {}

    def fire(self) -> Iterator[tuple[Membership, tuple[Party, ...]]]:
        """Yields what fires together, each different set of collectives once, in a valid order."""
        streams = [self._stream(each) for each in self._classes]
        seen: set[tuple[tuple[int, Collective], ...]] = set()
        moved = [each.number for each in self._classes]
        while moved:
            number = moved.pop()
            collective = next(streams[number], None)
            if collective is None:
                continue
            self._at[number] = collective
            partners = self._partners(number)
            if any(self._group_at(other) != collective.group for other in partners):
                continue
            parties = tuple((other, self._at.pop(other)) for other in partners)
            moved.extend(reversed(partners))
            if parties not in seen:
                seen.add(parties)
                yield self._groups[collective.group], self._named(parties)

    def stuck(self) -> list[str]:
        """Returns, after `fire` has ended, who waits for whom."""
        problems = []
        for number, collective in sorted(self._at.items()):
            others = [
                other
                for other in self._partners(number)
                if self._group_at(other) != collective.group
            ]
            reasons = "; ".join(self._reason(other) for other in others)
            who = ranks_do(self._classes[number].ranks.tolist(), "waits", "wait")
            problems.append(
                f"{who} for ever in group {collective.group!r}, in {collective}: {reasons}"
            )
        return problems

    def _reason(self, number: int) -> str:
        ranks = self._classes[number].ranks.tolist()
        elsewhere = self._at.get(number)
        if elsewhere is None:
            return f"the program of {rank_text(ranks)} ends without it"
        who = ranks_do(ranks, "waits", "wait")
        return f"{who} in group {elsewhere.group!r}, in {elsewhere}"

    def _partners(self, number: int) -> tuple[int, ...]:
        return self._classes[number].partners[self._at[number].group]

    def _group_at(self, number: int) -> str | None:
        collective = self._at.get(number)
        return collective.group if collective else None

    def _named(self, parties: tuple[tuple[int, Collective], ...]) -> tuple[Party, ...]:
        return tuple((self._classes[number], each) for number, each in parties)

    def _stream(self, each: RankClass) -> Iterator[Collective]:
        code = self._code[each.number]
        own = (each.number,)
        every = [
            site for sites_ in code.values() for site in sites_ if isinstance(site, Collective)
        ]
        if all(each.partners[collective.group] == own for collective in every):
            return iter(every)  # it meets itself alone: in any order, each collective once
        return in_order(code)
