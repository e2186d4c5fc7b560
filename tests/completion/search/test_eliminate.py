"""Elimination is exact, and joins edges only where a cycle needs it."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from autopar.completion.search.network.network import Network
from autopar.completion.search.solvers.eliminate import eliminate

LABELS = 4


def drawn(chance: random.Random, edges: list[tuple[int, int]], count: int) -> Network:
    """Returns a network with these edges and costs that are drawn."""
    network = Network()
    draw = np.random.default_rng(chance.randrange(2**32)).random

    for variable in range(count):
        network.variable(network.costs.number_of(variable, lambda: draw(LABELS)))
    for edge in edges:
        network.connect(*edge, network.costs.number_of(edge, lambda: draw((LABELS, LABELS))))
    return network


def tree(chance: random.Random, count: int) -> list[tuple[int, int]]:
    """Returns the edges of a tree whose variables are in no order."""
    order = chance.sample(range(count), count)
    return [(order[at], order[chance.randrange(at)]) for at in range(1, count)]


@pytest.mark.parametrize("seed", range(5))
def test_a_tree_vanishes_without_joins(seed: int) -> None:
    network = drawn(chance := random.Random(seed), tree(chance, 20), 20)
    before = len(network.costs.arrays)
    assert not eliminate(network).kept
    assert all(array.ndim == 1 for array in network.costs.arrays[before:])


@pytest.mark.parametrize("seed", range(5))
def test_trees_and_cycles_are_solved_exactly(seed: int) -> None:
    chance = random.Random(seed)
    edges = tree(chance, 5)
    one, other = chance.sample(range(5), 2)
    edges = list({(min(edge), max(edge)): None for edge in [*edges, (one, other)]})
    network = drawn(chance, edges, 5)
    whole = network.copy()
    reduced = eliminate(network)
    assert not reduced.kept
    least = min(map(whole.cost_of, product(range(LABELS), repeat=5)))
    assert whole.cost_of(reduced.labels([])) == pytest.approx(least)
    assert reduced.seconds == pytest.approx(least)
