"""Alternatives to a searched plan: found around it, and about as fast as a search from scratch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import autopar
from autopar.analysis.explanation import Explanation, explain
from autopar.analysis.explanation.alternatives import (
    ORIGIN,
    other_choices,
    other_layouts,
)
from autopar.analysis.explanation.why import choice_text
from autopar.annotate import parse_mesh
from autopar.completion.complete import planned
from autopar.completion.presets.strategy import AUTO
from autopar.completion.problem.problem import Pinned
from autopar.completion.search.watch import Progress, Watch
from autopar.cost import Cluster
from autopar.pipeline import Compiled, CompileOptions, Decided, compile_program
from autopar.planning.price import Price
from tests.completion.search.enumerated import CLUSTERS, random_program

NEAR = 1e-2
"""How much slower than what a search from scratch finds an alternative may be."""


def searched(seed: int) -> Compiled:
    chance = random.Random(seed)
    program, mesh = random_program(chance), parse_mesh(chance.choice(("4", "2x2", "4x2")))
    cluster = Cluster.load(chance.choice(CLUSTERS))
    return compile_program(program, CompileOptions(mesh=mesh, strategy=AUTO, cluster=cluster))


def from_scratch(decided: Decided, pinned: Pinned) -> Price:
    """Returns the price of the program with a pin, searched anew."""
    plan = planned(decided.problem.with_pins([pinned]), AUTO, Watch())
    return decided.price(plan.program)


def pins_of(decided: Decided, found: Explanation) -> Iterator[tuple[str, Pinned]]:
    if found.op is None:
        for layout in other_layouts(decided.mesh, found.value):
            yield str(layout), replace(found.value, dist=layout, origin=ORIGIN)
        return
    for op in other_choices(decided, found.op):
        yield choice_text(op), op


@pytest.mark.parametrize("seed", [0, 1, 2, 5, 7, 24, 38])
def test_alternatives_are_about_what_a_search_from_scratch_finds(seed: int) -> None:
    decided = searched(seed)
    main = decided.completed.main
    names = [main.inputs[-1], main.ops[0].results[0], main.ops[-1].results[0]]
    for name in names:
        found = explain(searched(seed), name)
        seconds = {row.text: row.price.seconds for row in found.alternatives if row.price}
        (present,) = (row.price for row in found.alternatives if row.present)
        pins = dict(pins_of(decided, found))
        assert len(seconds) == len(pins) + 1
        for text, pinned in pins.items():
            anew = from_scratch(decided, pinned).seconds
            assert seconds[text] <= anew * (1 + NEAR)
            assert present is not None
            assert seconds[text] >= present.seconds * (1 - NEAR)
        assert found.is_searched
        assert "a search from scratch may find" in str(found)


def test_each_alternative_is_told() -> None:
    told: list[Progress] = []
    done = searched(1)
    found = explain(done, done.completed.main.ops[0].results[0], tell=told.append)
    count = len(found.alternatives) - 1
    assert count > 1
    assert [each.doing for each in told if each.doing.startswith("alternative")] == [
        f"alternative {number} of {count}" for number in range(1, count + 1)
    ]


def test_an_op_of_a_stage_is_split_within_the_stage() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 4))
    done = autopar.compile(layers, torch.ones(6, 8), mesh="pp=2,tp=2", pipeline="pp")
    found = [autopar.explain(done, op.results[0]) for op in done.serial.main.ops]
    others = [each for op in found for each in op.alternatives if not each.present]
    assert others
    assert not [each for each in others if each.problem or "pp" in each.text]
