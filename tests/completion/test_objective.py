"""What completion says a plan takes is what the evaluator finds in the ranks' program."""

from __future__ import annotations

import random

import pytest
import torch

from autopar.annotate import apply_mesh, apply_pins, parse_mesh
from autopar.completion import Complete, Legalize
from autopar.cost import Cluster, CommunicationModel, ReshardPlanner
from autopar.cost.evaluation import evaluate
from autopar.frontend.torch import Recipe, capture
from autopar.ir.errors import AnnotationError
from autopar.ir.program import Program
from autopar.partition import Coalesce, Partition, Prefetch
from tests.completion.enumerated import CLUSTERS, random_program
from tests.random_pins import random_pins
from tests.zoo.models import ZOO

MESHES = ("4", "3", "2x2", "4x2", "2x2x2")
STRATEGIES = ("auto", "data:0", "fsdp:0", "zero1:0", "tensor:0", "tensor:0,sequence:0", "context:0")
EXACT = 1e-6
"""Relative difference from the evaluator."""


def check(program: Program, cluster: Cluster, strategy: str | None) -> None:
    """Checks the seconds of a completed program."""
    assert program.mesh is not None
    planner = ReshardPlanner(CommunicationModel(cluster, program.mesh))
    done = Complete(cluster, strategy, planner).decide(program)
    ranks = Partition(cluster, planner)(Legalize(cluster, planner)(done.program))
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


def check_model(name: str, mesh: str, cluster: str, *strategies: str) -> None:
    """Checks the step of a model of the zoo with search and presets."""
    example = ZOO[name]()
    recipe = Recipe(loss=example.loss, optimizer=torch.optim.AdamW(example.model.parameters()))
    shape = parse_mesh(mesh)
    program = apply_mesh(capture(example.model, example.batch(0), recipe, shape).program, shape)
    for strategy in strategies:
        try:
            check(program, Cluster.load(cluster), strategy)
        except AnnotationError:
            continue  # the preset finds nothing to split


def test_seconds_of_a_training_step_are_those_of_the_ranks() -> None:
    check_model("gpt2", "dp=2,tp=4", "h100", "auto", "data:0", "tensor:0,sequence:0")


@pytest.mark.slow
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("mesh", ["a=3", "dp=2,tp=4"])
@pytest.mark.parametrize("name", ZOO)
def test_seconds_of_models_are_those_of_the_ranks(name: str, mesh: str, cluster: str) -> None:
    check_model(name, mesh, cluster, *STRATEGIES)
