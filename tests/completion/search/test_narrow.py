"""What is left of a network is solved exactly; labels of better solutions are left."""

from __future__ import annotations

import random
from itertools import combinations, product

import numpy as np
import pytest

from autopar.completion.search.network.network import Network
from autopar.completion.search.solvers import narrow as narrowing
from autopar.completion.search.solvers.narrow import narrow
from autopar.completion.search.solvers.trws import Trws
from tests.completion.search.test_eliminate import LABELS, drawn

COUNT, SOLUTIONS = 6, 20
CLOSE = 1e-9


def with_cycles(chance: random.Random) -> Network:
    """Returns a network of which no variable needs to have few neighbours."""
    pairs = list(combinations(range(COUNT), 2))
    return drawn(chance, sorted(chance.sample(pairs, chance.randint(0, len(pairs)))), COUNT)


def solutions(network: Network) -> list[tuple[float, tuple[int, ...]]]:
    """Returns all labels and what they cost, the least first."""
    every = product(range(LABELS), repeat=COUNT)
    return sorted((network.cost_of(labels), labels) for labels in every)


def ascended(network: Network, times: int) -> Trws:
    trws = Trws(network)
    for _ in range(times):
        trws.ascend()
    return trws


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("times", [1, 2, 5])
def test_labels_of_better_solutions_are_left(seed: int, times: int) -> None:
    network = with_cycles(chance := random.Random(seed))
    known, trws = solutions(network), ascended(network, times)
    for _ in range(SOLUTIONS):
        most = known[chance.randrange(len(known) // 10)][0]
        kept = trws.within(most * (1 + CLOSE))
        for seconds, labels in known:
            if seconds <= most:
                assert all(mask[label] for mask, label in zip(kept, labels, strict=True))


def test_labels_that_cost_too_much_are_not_left() -> None:
    network = with_cycles(random.Random(1))
    known, trws = solutions(network), ascended(network, 20)
    left = sum(int(mask.sum()) for mask in trws.within(known[0][0] * (1 + CLOSE)))
    assert left < COUNT * LABELS / 2


@pytest.mark.parametrize("seed", range(20))
def test_the_least_cost_is_exact(seed: int) -> None:
    network = with_cycles(chance := random.Random(seed))
    known, trws = solutions(network), ascended(network, 2)
    found = narrow(trws, known[chance.randrange(1, 100)][0])
    assert found is not None
    assert found[0] == pytest.approx(known[0][0])
    assert network.cost_of(found[1]) == pytest.approx(known[0][0])


@pytest.mark.parametrize("seed", range(10))
def test_no_bound_is_above_a_solution_that_is_known(seed: int) -> None:
    network = with_cycles(random.Random(seed))
    known, trws = solutions(network), ascended(network, 50)
    most = known[0][0] * 0.9
    found = narrow(trws, most)
    assert found is not None
    assert found[0] == most


def test_variables_with_a_single_label_left_are_no_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many neighbours as there are here, no table has an axis each."""
    count, open_ones = 70, 3
    network = drawn(chance := random.Random(0), [*combinations(range(count), 2)], count)
    trws = ascended(network, 2)
    left = [
        [*range(LABELS)] if at < open_ones else [chance.randrange(LABELS)] for at in range(count)
    ]
    masks = [np.isin(np.arange(LABELS), labels) for labels in left]
    monkeypatch.setattr(trws, "within", lambda most: masks)
    wanted = min(map(network.cost_of, product(*left)))
    found = narrow(trws, float("inf"))
    assert found is not None
    assert found[0] == pytest.approx(wanted)
    assert network.cost_of(found[1]) == pytest.approx(wanted)


def test_too_many_costs_are_left_to_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrowing, "MOST_COSTS", LABELS)
    network = drawn(random.Random(0), list(combinations(range(COUNT), 2)), COUNT)
    assert narrow(ascended(network, 2), solutions(network)[-1][0]) is None
