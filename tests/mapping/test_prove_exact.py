"""The simulation of rank classes finds a deadlock exactly when one of single ranks does."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from autopar.base.errors import VerificationError
from autopar.ir.deployment import Deployment
from autopar.mapping.collectives import collectives
from autopar.mapping.prove import prove
from tests.mapping.programs import deployment, program, step

RANKS = 6
GROUPS = ("g", "h", "k")


@st.composite
def partitions(draw: st.DrawFn) -> list[list[int]]:
    """Draws a partition of all ranks into lists."""
    where = draw(st.lists(st.integers(0, 3), min_size=RANKS, max_size=RANKS))
    lists = [[rank for rank in range(RANKS) if where[rank] == at] for at in range(4)]
    return [members for members in lists if members]


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    """Draws programs that run the same collectives, now and then in another order."""
    groups = {name: draw(partitions()) for name in GROUPS}
    events = [draw(st.sampled_from(GROUPS)) for _ in range(draw(st.integers(1, 4)))]
    order = list(range(len(events)))
    orders = [draw(st.permutations(order) | st.just(order)) for _ in range(3)]
    programs = [
        program((8,), [step(f"v{at}", "all_reduce", "x", (8,), group=events[at]) for at in each])
        for each in orders
    ]
    runs = draw(st.lists(st.integers(0, 2), min_size=RANKS, max_size=RANKS))
    return deployment(programs, runs, groups)


def runs_to_the_end(case: Deployment) -> bool:
    """Whether ranks that are moved one by one all end, each meeting with equal collectives."""
    todo = [list(collectives(case.program_of(rank))) for rank in range(RANKS)]
    while any(todo):
        ready = next((rank for rank in range(RANKS) if can_fire(case, todo, rank)), None)
        if ready is None:
            return False
        members = case.group_of(todo[ready][0].group, ready)
        if len({todo[rank].pop(0).result.name for rank in members}) > 1:
            return False
    return True


def can_fire(case: Deployment, todo: Sequence[Sequence[object]], rank: int) -> bool:
    """Whether everyone in the list of a rank's next collective is at one of that group."""
    if not todo[rank]:
        return False
    group = todo[rank][0].group  # type: ignore[attr-defined]
    others = case.group_of(group, rank)
    return all(todo[other] and todo[other][0].group == group for other in others)  # type: ignore[attr-defined]


@given(deployments())
def test_same_verdict_as_moving_single_ranks(case: Deployment) -> None:
    try:
        prove(case)
        proven = True
    except VerificationError:
        proven = False
    assert proven == runs_to_the_end(case)
