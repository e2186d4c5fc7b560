"""Search finds plans for models from elsewhere, and none of the usual presets is faster."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from autopar.annotate import apply_mesh, parse_mesh
from autopar.base.errors import AnnotationError
from autopar.completion.complete import planned
from autopar.completion.problem.problem import Problem
from autopar.completion.search.incumbents import strategies
from autopar.completion.search.watch import Watch
from autopar.cost import Cluster
from autopar.frontend.torch import Recipe, capture
from tests.zoo.models import ZOO

CLUSTERS = ("cpu", "a100", "h100", "mi300x", "torus")
SHAPES = ("3x2", "2x2x2", "8")
PRESETS = 16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "cluster"),
    [*(("dp=2,tp=4", each) for each in CLUSTERS), *((each, "h100") for each in SHAPES)],
)
@pytest.mark.parametrize("name", ZOO)
def test_no_preset_is_faster(name: str, shape: str, cluster: str) -> None:
    example = ZOO[name]()
    recipe = Recipe(loss=example.loss, optimizer=torch.optim.AdamW(example.model.parameters()))
    mesh = parse_mesh(shape)
    captured = capture(example.model, example.batch(0), recipe, mesh)
    program = apply_mesh(captured.program, mesh)
    known = Cluster.load(cluster)
    problem = Problem.from_program(program, known)
    seconds = planned(problem, "auto", Watch()).seconds
    for strategy in islice(strategies(mesh), PRESETS):
        try:
            preset = planned(problem, strategy, Watch())
        except AnnotationError:
            continue
        assert seconds <= preset.seconds * (1 + 1e-6), strategy
