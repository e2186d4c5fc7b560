"""Effort: a search does the work that it may, counted and not timed, and never loses to presets."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from autopar.annotate import apply_mesh, parse_mesh
from autopar.completion import Complete
from autopar.completion.complete import Searched, planned
from autopar.completion.plan import Plan
from autopar.completion.presets.batch import batch_inputs
from autopar.completion.presets.named import pin_strategy
from autopar.completion.problem.cuts import Cuts
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.problem import Problem
from autopar.completion.search.auto import MORE
from autopar.completion.search.descent import descend
from autopar.completion.search.fastest import Search
from autopar.completion.search.found import Found
from autopar.completion.search.nearby import Nearby
from autopar.completion.search.network.candidates import Around, CandidateTable
from autopar.completion.search.network.network import Costs
from autopar.completion.search.run import best_around
from autopar.completion.search.watch import TimeIsUp, Watch
from autopar.cost import Cluster
from autopar.frontend.torch import Recipe, capture
from autopar.ir.layout import Layout
from autopar.ir.program import Program
from tests.completion.networks import mlp

MESH = "a=2,b=2,c=2"


@cache
def convnet() -> Program:
    """Returns a program of which there are hundreds of ways per op on three axes."""
    model = nn.Sequential(
        nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()
    )
    return apply_mesh(capture(model, torch.zeros(2, 8, 64, 64), Recipe()).program, parse_mesh(MESH))


def decided(effort: float | None) -> tuple[Plan, list[str]]:
    told: list[str] = []
    watch = Watch(tell=lambda now: told.append(now.doing), effort=effort)
    return Complete(Cluster.load("h100"), "auto", watch=watch).plan(convnet()), told


@pytest.mark.parametrize("effort", [1e-6, 0.2])
def test_a_search_of_little_effort_is_no_slower_than_presets_and_says_so(effort: float) -> None:
    found, told = decided(effort)
    assert not [text for text in told if text.startswith("proving")]
    assert found.forecast is not None
    assert found.forecast.notes[-1] == MORE
    for strategy in ("data:a,data:b,data:c", "replicate:a,replicate:b,replicate:c"):
        preset = Complete(Cluster.load("h100"), strategy).plan(convnet())
        assert found.seconds <= preset.seconds * (1 + 1e-9)


def test_plans_near_presets_are_faster_than_they_are() -> None:
    least, more = decided(1e-6)[0], decided(0.2)[0]
    assert more.seconds < least.seconds


def test_the_same_effort_gives_the_same_plan() -> None:
    one, other = decided(0.2), decided(0.2)
    assert one[1] == other[1]
    assert one[0].program == other[0].program


def test_a_program_that_is_searched_to_the_end_asks_for_no_effort() -> None:
    program = apply_mesh(mlp(batch=1024), parse_mesh("a=2,b=2"))
    found = Complete(Cluster.load("h100"), "auto").plan(program)
    assert found.forecast is not None
    assert MORE not in found.forecast.notes


def test_work_is_counted_per_search() -> None:
    base = Watch(effort=2.0)
    one, other = base.over(1000), base.over(1000)
    one.spend(1e6)
    assert one.is_spent
    assert one.is_late
    assert not base.is_late
    assert not other.is_late
    with pytest.raises(TimeIsUp):
        one.check()
    one.renew()
    one.check()
    endless = Watch(effort=None).over(1000)
    endless.spend(1e9)
    endless.check()
    assert not endless.is_late


def test_costs_that_time_was_up_for_are_not_taken_for_others() -> None:
    costs = Costs(Watch(effort=1.0).over(1))
    vector = costs.number_of("vector", lambda: np.ones(2))
    edge = costs.number_of("edge", lambda: np.ones((2, 2)))
    costs.watch.spend(1e6)
    with pytest.raises(TimeIsUp):
        costs.join(vector, edge, edge)
    costs.number_of("other", lambda: np.zeros(3))
    costs.watch.renew()
    assert np.array_equal(costs.arrays[costs.join(vector, edge, edge)], np.full((2, 2), 3.0))


def test_more_ops_are_worth_more_work() -> None:
    few, many = (Watch().over(ops) for ops in (10, 10_000))
    assert many.is_worth(10)
    assert not few.is_worth(10)


def test_plans_around_one_differ_along_the_named_axes_only() -> None:
    (search,) = searches(convnet())
    choices = search.presets(0.0)[0].solution.choices
    table = CandidateTable(search.graph, around=Around(choices, ("b",)))
    for node, known in zip(search.graph.nodes, choices, strict=True):
        found = table.candidates_of(node).choices
        assert any(
            (each.consumed, each.produced) == (known.consumed, known.produced) for each in found
        )
        assert len(found) <= 16
        for each in found:
            for axis in ("a", "c"):
                place, before = each.splits.places.get(axis), known.splits.places.get(axis)
                assert (place and place[0]) == (before and before[0])


@pytest.mark.parametrize("effort", [1e-9, 0.2])
def test_a_variation_of_little_effort_is_a_plan(effort: float) -> None:
    problem, watch = Problem.from_program(convnet(), Cluster.load("h100")), Watch(effort=effort)
    done = planned(problem, "auto", watch).program
    (weight,) = (
        value for value in done.main.values.values() if value.global_shape == (32, 8, 3, 3)
    )
    near = Nearby(problem, done, watch)
    pinned = replace(
        weight, dist=Layout.from_dims_mapping(done.mesh, weight.global_shape, (0, -1, -1, -1))
    )
    found = near.with_pin(pinned).program
    assert found.main.values[weight.name].dist == pinned.dist


def test_a_descent_never_climbs() -> None:
    (search,) = searches(convnet())

    def near(around: Around) -> Found:
        return best_around(search.learned.around(around))

    start = search.presets(0.0)[-1].solution
    seconds = [
        start.seconds,
        *(found.seconds for found in descend(("a", "b", "c"), start.choices, near)),
    ]
    assert len(seconds) > 3
    assert all(after <= before * (1 + 1e-6) for before, after in pairwise(seconds))


def searches(program: Program) -> tuple[Search, ...]:
    return Searched(Problem.from_program(program, Cluster.load("h100")), Watch()).searches


def fresh() -> Graph:
    program = apply_mesh(mlp(batch=64), parse_mesh("a=2,b=2"))
    (search,) = searches(program)
    return search.graph.anew()


def test_presets_share_what_they_do_not_change() -> None:
    one = fresh()
    other = one.anew()
    pin_strategy(one, "data:a,tensor:b")
    assert any(one.pins)
    assert not any((*other.pins, other.origins, other.settled))
    assert one.nodes is other.nodes
    assert one.shared(Cuts) is other.shared(Cuts)
    assert batch_inputs(one) is batch_inputs(other)


def test_a_preset_pins_the_same_whatever_was_completed_before() -> None:
    shared = fresh()
    strategies = ("data:a,tensor:b", "fsdp:a,tensor:b", "tensor:a,tensor:b", "data:a,data:b")
    for strategy in (*strategies, *reversed(strategies)):
        pinned, alone = shared.anew(), fresh()
        for graph in (pinned, alone):
            pin_strategy(graph, strategy)
        one, other = ([pin and pin.layout for pin in graph.pins] for graph in (pinned, alone))
        assert one == other
        assert pinned.settled.keys() == alone.settled.keys()
        assert all(pinned.settled[at].places == alone.settled[at].places for at in alone.settled)


def test_what_no_plan_can_beat_is_taken() -> None:
    """On CPUs convolutions take longest, and for their batch nothing is communicated."""
    model = nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3))
    program = capture(model, torch.zeros(8, 8, 64, 64), Recipe()).program
    told: list[str] = []
    watch = Watch(tell=lambda now: told.append(now.doing), effort=0.1)
    complete = Complete(Cluster.load("cpu"), "auto", watch=watch)
    found = complete.plan(apply_mesh(program, parse_mesh(MESH))).forecast
    assert found is not None
    assert found.bound_seconds is not None
    assert found.bound_seconds <= found.seconds <= found.bound_seconds * 1.01
    assert MORE not in found.notes
    assert not [text for text in told if text.startswith("searching")]


@pytest.mark.parametrize("mesh", ["1", "a=2,b=2"])
def test_without_any_time_there_is_a_plan(mesh: str) -> None:
    program = apply_mesh(mlp(batch=64), parse_mesh(mesh))
    watch = Watch(1.0, clock=iter(range(0, 10**9, 100)).__next__)
    plan = Complete(Cluster.load("h100"), "auto", watch=watch).plan(program)
    assert all(op.dist is not None for op in plan.program.main.ops)
