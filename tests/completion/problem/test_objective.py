"""What completion says a plan takes is what the evaluator finds in the ranks' program."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from autopar.annotate import Pin, apply_mesh, apply_pins, parse_mesh
from autopar.base.errors import AnnotationError
from autopar.completion import Legalize
from autopar.completion.complete import planned
from autopar.completion.problem.problem import Problem
from autopar.completion.search.watch import Watch
from autopar.cost import Cluster, CommunicationModel, ReshardPlanner
from autopar.cost.evaluation import evaluate
from autopar.frontend.torch import Recipe, capture
from autopar.ir.program import Program
from autopar.ir.unroll import unrolled
from autopar.partition import Coalesce, Partition, Prefetch
from tests.completion.search.enumerated import CLUSTERS, random_program
from tests.fuzz.programs import random_case
from tests.fuzz.programs import random_pins as pins_of
from tests.given.random_pins import random_pins
from tests.zoo.models import ZOO

MESHES = ("4", "3", "2x2", "4x2", "2x2x2")
STRATEGIES = ("auto", "data:0", "fsdp:0", "zero1:0", "tensor:0", "tensor:0,sequence:0", "context:0")
EXACT = 1e-6
"""Relative difference from the evaluator."""


def check(program: Program, cluster: Cluster, strategy: str | None) -> None:
    """Checks the seconds of a completed program."""
    assert program.mesh is not None
    planner = ReshardPlanner(CommunicationModel(cluster, program.mesh))
    done = planned(Problem.from_program(program, cluster, planner), strategy, Watch())
    ranks = Partition(cluster, planner)(Legalize(cluster, planner)(done.program))
    ranks = unrolled(ranks)
    joined = Prefetch()(Coalesce(cluster)(ranks))
    seconds = evaluate(joined, cluster).serialized_seconds
    assert seconds == pytest.approx(done.seconds, rel=EXACT)
    assert seconds <= evaluate(ranks, cluster).serialized_seconds * (1 + EXACT)


@pytest.mark.parametrize("seed", range(8))
def test_seconds_of_random_plans_are_those_of_the_ranks(seed: int) -> None:
    chance = random.Random(seed)
    program, mesh = random_program(chance), parse_mesh(chance.choice(MESHES))
    cluster = Cluster.load(chance.choice(CLUSTERS))
    check(apply_mesh(program, mesh), cluster, "auto")
    for number in range(2):
        pins = random_pins(program, mesh, "objective", number)
        check(apply_mesh(apply_pins(program, mesh, pins), mesh), cluster, None)


def check_case(seed: int) -> None:
    """Checks a random program of any ops, windows among them, as searched and with pins."""
    chance, case = random.Random(seed), random_case(seed)
    mesh, cluster = case.options.mesh, Cluster.load(chance.choice(CLUSTERS))
    for strategy, pins in (("auto", ()), (None, pins_of(case.program, mesh, chance))):
        check(apply_mesh(apply_pins(case.program, mesh, pins), mesh), cluster, strategy)


@pytest.mark.parametrize("seed", range(6))
def test_seconds_of_any_program_are_those_of_the_ranks(seed: int) -> None:
    check_case(seed)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(1, 4))
def test_seconds_of_many_programs_are_those_of_the_ranks(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        check_case(seed)


def test_windows_are_made_once_for_all_that_read_them() -> None:
    images = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(3, 2, 1))
    images.extend([nn.Conv2d(4, 4, 5, padding=2), nn.Flatten(), nn.Linear(256, 2)])
    optimizer = torch.optim.SGD(images.parameters(), momentum=0.9)
    recipe = Recipe(loss=nn.functional.mse_loss, optimizer=optimizer, clip_grad_norm=1.0)
    batch = torch.ones(2, 3, 16, 16), torch.ones(2, 2)
    for mesh in map(parse_mesh, ("3", "2x2")):
        program = capture(images, batch, recipe, mesh).program
        (name,) = (p.name for p in program.signature.inputs if p.shape == batch[0].shape)
        pins = (Pin(name, (-1, -1, (mesh.dim_names[-1],), -1), "here"),)
        placed = apply_mesh(apply_pins(program, mesh, pins), mesh)
        check(placed, Cluster.load("h100"), None)
        check(placed, Cluster.load("cpu"), "zero1:0")


def check_model(name: str, mesh: str, cluster: str, *strategies: str, accumulate: int = 1) -> None:
    """Checks the step of a model of the zoo with search and presets."""
    example = ZOO[name]()
    optimizer = torch.optim.AdamW(example.model.parameters())
    recipe = Recipe(loss=example.loss, optimizer=optimizer, accumulate=accumulate)
    shape = parse_mesh(mesh)
    program = apply_mesh(capture(example.model, example.batch(0), recipe, shape).program, shape)
    for strategy in strategies:
        try:
            check(program, Cluster.load(cluster), strategy)
        except AnnotationError:
            continue  # the preset finds nothing to split


def test_seconds_of_a_training_step_are_those_of_the_ranks() -> None:
    check_model("gpt2", "dp=2,tp=4", "h100", "auto", "data:0", "tensor:0,sequence:0")


@pytest.mark.parametrize("mesh", [pytest.param("dp=2,tp=4", marks=pytest.mark.slow), "a=3"])
def test_seconds_of_microbatches_are_those_of_the_ranks(mesh: str) -> None:
    check_model("gpt2", mesh, "h100", "auto", "data:0", "fsdp:0", "tensor:0", accumulate=2)
    check_model("llama", mesh, "cpu", "auto", "zero1:0", accumulate=4)
    check_model("resnet", mesh, "cpu", "auto", "data:0", accumulate=2)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("mesh", ["a=3", "dp=2,tp=4"])
@pytest.mark.parametrize("name", ZOO)
def test_seconds_of_models_are_those_of_the_ranks(name: str, mesh: str, cluster: str) -> None:
    check_model(name, mesh, cluster, *STRATEGIES)
