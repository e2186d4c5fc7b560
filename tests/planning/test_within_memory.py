"""Within memory: sharding and recomputation decided together are monotone, and never too large."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import autopar
from autopar.annotate import apply_mesh, parse_mesh
from autopar.base.units import human_bytes, parse_bytes
from autopar.compiled import CompiledModel
from autopar.completion.problem.problem import Problem
from autopar.completion.search.bounds.lagrangian import least_seconds_within
from autopar.completion.search.forecast import Forecast
from autopar.cost import Cluster, evaluate, memory_timeline
from autopar.frontend.torch import Recipe, capture
from autopar.partition.recompute import DoesNotFit, recompute
from autopar.planning import walk, within_memory
from autopar.planning.lowering import Lowering
from autopar.planning.planner import Planner
from autopar.planning.walk import LoweredPlan
from autopar.planning.within_memory import Within
from tests.zoo.models import ZOO, Example

NO_CHUNKS: dict[str, int] = {}
"""What is computed one part after another has tests of its own."""

PARTS = (1.1, 0.95, 0.85, 0.75, 0.65, 0.55, 0.45, 0.35)
"""Limits, as parts of what the fastest plan holds."""


def perceptron(seed: int) -> Example:
    """A perceptron of random widths with skips, whose weights or activations may be the larger."""
    draw = torch.Generator().manual_seed(seed)
    width, rows = (int(torch.randint(4, 9, (), generator=draw)) ** 2 for _ in range(2))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [int(torch.randint(1, 5, (), generator=draw)) * width for _ in range(4)]
            self.up = nn.ModuleList(nn.Linear(width, size) for size in layers)
            self.down = nn.ModuleList(nn.Linear(size, width) for size in layers)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for up, down in zip(self.up, self.down, strict=True):
                x = x + down(F.gelu(up(x)))
            return x

    def batch(_: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(4 * rows, width), torch.zeros(4 * rows, width)

    return Example(Model(), batch, F.mse_loss)


EXAMPLES: dict[str, Callable[[], Example]] = {
    "gpt2": ZOO["gpt2"],
    "resnet": ZOO["resnet"],
    **{f"perceptron {seed}": lambda seed=seed: perceptron(seed) for seed in range(6)},
}


def plans(example: Example, cluster: str = "cpu", *, trains: bool = True) -> Within:
    """Returns the plans of a training step, or of the forward pass, on 2x2."""
    mesh, known = parse_mesh("2x2"), Cluster.load(cluster)
    optimizer = torch.optim.AdamW(example.model.parameters())
    recipe = Recipe(loss=example.loss, optimizer=optimizer) if trains else Recipe()
    batch = example.batch(0) if trains else example.batch(0)[0]
    program = apply_mesh(capture(example.model, batch, recipe, mesh).program, mesh)
    problem = Problem.from_program(program, known)
    return Planner(problem, Lowering(known, problem.planner)).within


@pytest.mark.parametrize(
    "name",
    [
        "perceptron 0",
        *(pytest.param(name, marks=pytest.mark.slow) for name in EXAMPLES if name[-1] != "0"),
    ],
)
@pytest.mark.parametrize("cluster", ["cpu", pytest.param("h100", marks=pytest.mark.slow)])
def test_more_memory_is_never_slower_and_less_never_holds_more(name: str, cluster: str) -> None:
    within = plans(EXAMPLES[name](), cluster)
    seconds, peak = 0.0, within.base.peak_bytes
    for part in PARTS:
        limit = int(within.base.peak_bytes * part)
        try:
            best = within.fastest(limit)
        except DoesNotFit:
            seconds = float("inf")
            continue
        fitted = recompute(best.plan.ranks, within.cluster, limit).program
        held = memory_timeline(fitted).peak_bytes
        assert held <= min(limit, peak)
        assert best.seconds >= seconds
        assert evaluate(fitted, within.cluster).serialized_seconds == pytest.approx(best.seconds)
        seconds, peak = best.seconds, held


def check_bounds(seed: int, *, trains: bool) -> bool:
    """Checks bounds within limits; returns whether one is well above that without a limit."""
    within = plans(perceptron(seed), trains=trains)
    searches, base, rises = within.searched.searches, within.base, False
    steps = [plan for step in within.walk.steps() for plan in step.plans]
    for plan in {id(plan): plan for plan in (*within.presets, *steps)}.values():
        limit = plan.peak_bytes
        best = within.fastest(limit)
        per_byte = max(1e-12, (plan.seconds - base.seconds) / max(1, base.peak_bytes - limit))
        bound = least_seconds_within(searches, limit, plan.seconds, per_byte)
        assert bound <= best.seconds * (1 + 1e-9)
        assert within.least_seconds(best, limit) <= best.seconds
        rises |= bound > 1.1 * base.seconds
    return rises


def test_no_plan_that_fits_is_faster_than_the_bound() -> None:
    """What a plan holds is a limit that it fits into, and computing again only takes longer."""
    assert check_bounds(0, trains=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("trains", [False, True])
def test_bounds_within_limits_hold(seed: int, trains: bool) -> None:
    check_bounds(seed, trains=trains)


def compiled(strategy: str, memory: int | None = None, *, chunks: Any = NO_CHUNKS) -> CompiledModel:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    return autopar.compile(
        model,
        (torch.randn(16, 8), torch.randn(16, 8)),
        mesh="dp=2,tp=2",
        strategy=strategy,
        loss=F.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        memory=memory,
        chunks=chunks,
    )


def peak(found: CompiledModel) -> int:
    return memory_timeline(found.partitioned).peak_bytes


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
@pytest.mark.parametrize("ops", [0, pytest.param(2_000, marks=pytest.mark.slow)])
def test_seconds_fall_with_memory_also_where_presets_are_needed(
    seed: int, ops: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any limits, and in programs for which few presets are worth their time."""
    monkeypatch.setattr(within_memory, "PRESET_OPS", ops)
    within = plans(perceptron(seed))
    chance, seconds, kinds = random.Random(seed), float("inf"), set()
    for limit in sorted(int(within.base.peak_bytes * chance.uniform(0.2, 0.6)) for _ in range(60)):
        try:
            best = within.fastest(limit)
        except DoesNotFit:
            assert seconds == float("inf")
            continue
        assert best.seconds <= seconds
        seconds = best.seconds
        kinds.add(bool(best.plan.strategy))
    assert kinds, "no limit fits"


def test_presets_that_keep_least_are_tried_however_large_a_program_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walk, "PRICES", ())
    monkeypatch.setattr(within_memory, "PRESET_OPS", 0)
    limit = peak(compiled("fsdp:dp,tensor:tp"))
    assert peak(compiled("auto", limit)) <= limit


@pytest.mark.parametrize("chunks", [NO_CHUNKS, pytest.param(None, marks=pytest.mark.slow)])
def test_what_misses_by_a_lot_is_said_to(chunks: Any) -> None:
    with pytest.raises(DoesNotFit, match="more than the limit of 1000 B; raise the limit") as miss:
        compiled("auto", 1000, chunks=chunks)
    # What it says would be enough is.
    advised = re.search(
        r"raise the limit to (\S+ \w+), or split .* over at least (\d+) times", str(miss.value)
    )
    assert advised is not None
    assert int(advised[2]) > 1
    for limit in (parse_bytes(advised[1]), miss.value.least_bytes):
        assert peak(compiled("auto", limit, chunks=chunks)) <= limit


def test_no_other_plan_is_made_where_the_fastest_fits() -> None:
    within = plans(perceptron(0))
    assert within.fastest(within.base.peak_bytes).plan is within.base
    assert not {"walk", "presets"} & vars(within).keys()


def said(step: CompiledModel) -> dict[str, list[str]]:
    """Returns what a summary says of the plan and of memory."""
    found = [each for each in step.report if each.category == "search"]
    return {each.subject: each.detail.split("; ") for each in found}


def milliseconds(text: str) -> float:
    """Returns the time that a line of a summary begins with."""
    number, unit, *_ = text.split()
    return float(number) * {"ms": 1, "us": 1e-3}[unit]


def step(memory: int | None, **choices: dict[str, str]) -> CompiledModel:
    """Compiles the step of a perceptron, nothing of it in chunks."""
    example = perceptron(0)
    optimizer = torch.optim.AdamW(example.model.parameters())
    arguments = {"mesh": "2x2", "loss": example.loss, "optimizer": optimizer, "chunks": NO_CHUNKS}
    return autopar.compile(example.model, example.batch(0), memory=memory, **arguments, **choices)


@cache
def fastest() -> LoweredPlan:
    """Returns the fastest plan of that step."""
    return plans(perceptron(0)).base


@pytest.mark.parametrize("is_preset", [True, False])
def test_the_time_that_is_printed_is_that_of_the_step(
    is_preset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is computed again; and a plan that is a preset says so, and its time too."""
    if not is_preset:
        monkeypatch.setattr(within_memory, "PRESET_OPS", 0)
    limited = step(int(0.6 * fastest().peak_bytes))
    plan, seconds, *_ = said(limited)["auto"]
    assert plan.startswith("preset " if is_preset else "d0: ")
    assert seconds.endswith("to save memory")
    priced = autopar.profile(limited).serialized_seconds
    assert milliseconds(seconds) == pytest.approx(priced * 1e3, rel=1e-3)
    assert said(limited)["memory"][1].endswith(" without a limit")


def test_a_limit_that_does_not_bind_is_only_said_to_fit() -> None:
    limit = 2 * fastest().peak_bytes
    roomy = said(step(limit))
    assert roomy["memory"] == [f"the fastest plan fits within {human_bytes(limit)}"]
    assert milliseconds(roomy["auto"][1]) == pytest.approx(fastest().seconds * 1e3, rel=1e-3)


def test_the_time_that_is_printed_has_what_the_user_has_computed_again() -> None:
    chosen = step(None, activations={"gelu*": "recompute"})
    priced = autopar.profile(chosen).serialized_seconds
    assert priced > fastest().seconds
    _, seconds, distance, preset, *_ = said(chosen)["auto"]
    assert milliseconds(seconds) == pytest.approx(priced * 1e3, rel=1e-3)
    assert distance.endswith(" slower than the fastest that does nothing to save memory")
    assert preset.endswith(" before anything is done to save memory")


def test_what_a_plan_is_compared_with_says_whether_it_saves_memory() -> None:
    forecast = Forecast("plan", 1.0, 0.8, ("data:dp", 1.25))
    assert forecast.remark(1.0).detail.split("; ")[1:] == [
        "1 s predicted, one op after another",
        "at most 25% slower than the fastest",
        "the best preset tried, data:dp, takes 1.25 s",
    ]
    assert forecast.remark(1.0, 0.2).detail.split("; ")[1:] == [
        "1.2 s predicted, one op after another, 200 ms of it to save memory",
        "at most 50% slower than the fastest that does nothing to save memory",
        "the best preset tried, data:dp, takes 1.25 s before anything is done to save memory",
    ]


def test_a_bound_within_a_limit_is_one_of_the_plans_that_fit() -> None:
    forecast = Forecast("plan", 1.0, 0.8, is_limited=True)
    distance = "at most 50% slower than the fastest that fits"
    assert forecast.remark(1.0, 0.2).detail.split("; ")[2] == distance
    proven = Forecast("plan", 1.0, 1.0, is_limited=True)
    assert proven.remark(1.0).detail.split("; ")[2] == "no plan that fits is faster"


def test_inference_that_does_not_fit_gets_no_advice_on_training() -> None:
    with pytest.raises(DoesNotFit, match=r"raise the limit to .*, or split parameters") as miss:
        autopar.compile(nn.Linear(64, 64), torch.ones(8, 64), mesh="2", memory=1000)
    assert "again" not in str(miss.value)
    assert "microbatches" not in str(miss.value)
    assert "with the smallest of " in str(miss.value)
    # What it says would be enough is, and is said to be; a byte less isn't.
    enough = miss.value.least_bytes
    found = autopar.compile(nn.Linear(64, 64), torch.ones(8, 64), mesh="2", memory=enough)
    assert peak(found) == enough
    with pytest.raises(DoesNotFit):
        autopar.compile(nn.Linear(64, 64), torch.ones(8, 64), mesh="2", memory=enough - 1)


def test_logits_of_inference_are_split_where_presets_are_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What inference holds at its peak has a price, also where few presets are tried."""
    monkeypatch.setattr(within_memory, "PRESET_OPS", 0)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(256, 128),
        nn.Linear(128, 128),
        nn.Tanh(),
        nn.Linear(128, 256, bias=False),
        nn.LogSoftmax(-1),
    )
    limit = 200_000
    found = autopar.compile(model, torch.zeros(4, 8, dtype=torch.long), mesh="2x2", memory=limit)
    assert peak(found) <= limit
