"""Ways to compute an op that are left out before a search belong to no plan that is faster."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from autopar.annotate import parse_mesh
from autopar.completion.problem.graph import Graph
from autopar.completion.search.fastest import Search
from autopar.completion.search.network import prune
from autopar.completion.search.network.candidates import CandidateTable
from autopar.completion.search.network.prune import Pruning
from autopar.completion.search.watch import Watch
from autopar.cost import Cluster
from tests.completion.networks import Network
from tests.completion.search.enumerated import MOST_PLANS, graph_of, least_seconds, random_network


def slow(flops_per_second: float) -> Cluster:
    """Returns a cluster on which it takes long to compute, and little to communicate."""
    base = Cluster.load("cpu")
    links = tuple(
        replace(link, alpha_seconds=1e-8, beta_seconds_per_byte=1e-11) for link in base.links
    )
    return replace(base, flops_per_second=(("f32", flops_per_second),), links=links)


def counts(graph: Graph) -> tuple[int, int]:
    """Returns how many plans there are, and how many candidates are left out."""
    table, without = CandidateTable(graph), Pruning(graph)
    plans, left_out = 1, 0
    for node in graph.nodes:
        every = table.candidates_of(node)
        plans *= len(every.choices)
        left_out += len(every.choices) - len(without.pruned(node, every).choices)
    return plans, left_out


@pytest.mark.parametrize("seed", range(12))
def test_the_best_plan_stays(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "MANY", 0)
    chance = random.Random(seed)
    cluster = slow(10.0 ** chance.randint(8, 11))
    while True:
        mesh = parse_mesh(chance.choice(("4", "3", "2x2")))
        graph = graph_of(random_network(chance), mesh, cluster)
        plans, left_out = counts(graph)
        if left_out and plans <= MOST_PLANS:
            break
    found, best = Search(graph, Watch()).best_at(), least_seconds(graph)
    assert found.seconds == pytest.approx(best, rel=1e-9)
    assert found.bound_seconds <= best * (1 + 1e-6)


def test_most_ways_are_dominated_where_computing_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = Network()
    net.mm(net.mm(net.input("x", 512, 512), net.weight("v", 512, 512)), net.weight("w", 512, 512))
    graph = graph_of(net, parse_mesh("2x2x2"), slow(1e8))
    table, without = CandidateTable(graph), Pruning(graph)
    for node in graph.nodes:
        every = table.candidates_of(node)
        monkeypatch.setattr(prune, "MANY", len(every.choices) + 1)
        assert without.pruned(node, every) is every
        monkeypatch.setattr(prune, "MANY", len(every.choices))
        assert len(without.pruned(node, every).choices) < len(every.choices) / 2
