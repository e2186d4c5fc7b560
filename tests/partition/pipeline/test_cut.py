"""Cuts into stages: the best there are, wherever the work is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import autopar
from autopar import annotate
from autopar.cost import Cluster
from autopar.ir.program import Program
from autopar.partition.pipeline.schedules import SCHEDULES
from autopar.partition.pipeline.tasks import FORWARD
from autopar.planning.cut import FINENESS, LEAST, best_way
from autopar.planning.cut_costs import Costs
from autopar.planning.price import price
from tests.partition.pipeline.models import (
    FREE_LINKS,
    Decoder,
    batch_of,
    compiled,
    on_one_device,
    on_virtual_mesh,
)

SECONDS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=2, max_size=8)


def step_seconds(costs: Costs, cuts: Sequence[int]) -> float:
    """Returns what a step takes, by its definition."""
    ends = (0, *cuts, len(costs.before) - 1)
    sent = [0.0, *(costs.sent[cut] for cut in cuts), 0.0]
    stages = [costs.before[end] - costs.before[begin] for begin, end in pairwise(ends)]
    cycles = [seconds + 2 * sum(ends) for seconds, ends in zip(stages, pairwise(sent), strict=True)]
    return sum(stages) + 2 * sum(sent) + (costs.microbatches - 1) * max(cycles)


@settings(deadline=None)
@given(seconds=SECONDS, microbatches=st.integers(1, 6), stages=st.integers(1, 4))
def test_no_other_cuts_are_better(
    seconds: list[tuple[int, int]], microbatches: int, stages: int
) -> None:
    before, sent = [0.0], [0.0]
    for own, after in seconds:
        before.append(before[-1] + own)
        sent.append(float(after))
    costs = Costs({FORWARD: before}, sent, microbatches)
    way = best_way(costs, stages)
    assert (way is None) == (len(seconds) < stages)
    least = LEAST * before[-1] / stages
    places = [
        cuts
        for cuts in combinations(range(1, len(seconds)), stages - 1)
        if all(
            before[end] - before[begin] >= least
            for begin, end in pairwise((0, *cuts, len(seconds)))
        )
    ]
    if way is None or not places:
        return
    best = min(step_seconds(costs, cuts) for cuts in places)
    assert costs.step_seconds(way) == pytest.approx(best)
    assert step_seconds(costs, way.cuts[:-1]) == pytest.approx(best)


class Unbalanced(nn.Module):
    """Layers of which one is wider than others, between an embedding and a head."""

    def __init__(self, vocabulary: int, widths: Sequence[int], stages: Sequence[int] = ()) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, 32)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 32)) for width in widths
        )
        self.head = nn.Linear(32, vocabulary)
        self.stages = stages

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.tokens(ids)
        for at, layer in enumerate(self.layers):
            if not self.stages:
                x = x + layer(x)
                continue
            with annotate.pipeline_stage(self.stages[at]):
                x = x + layer(x)
        logits: Tensor = self.head(x)
        return logits


def cut(model: nn.Module, cluster: Cluster) -> Program:
    """Returns a step whose stages the model says, or are cut as a cluster has it."""
    ids = torch.zeros(16, 32, dtype=torch.long)
    return autopar.compile(
        model,
        (ids, ids),
        loss=lambda logits, target: F.cross_entropy(logits.flatten(0, 1), target.flatten()),
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        accumulate=4,
        mesh="pp=2",
        pipeline="pp",
        strategy=None,
        cluster=cluster,
    ).partitioned


CLUSTERS = {"cpu": Cluster.load("cpu"), "free": FREE_LINKS}


@pytest.mark.parametrize("vocabulary", [50, 2000])
def test_no_cut_between_layers_is_better(vocabulary: int) -> None:
    widths = (256, 256, 256, 768, 256)
    own = {
        name: price(cut(Unbalanced(vocabulary, widths), cluster), cluster).overlapped_seconds
        for name, cluster in CLUSTERS.items()
    }
    for first in range(1, len(widths)):
        stages = [int(at >= first) for at in range(len(widths))]
        between = cut(Unbalanced(vocabulary, widths, stages), CLUSTERS["cpu"])
        for name, cluster in CLUSTERS.items():
            assert own[name] <= price(between, cluster).overlapped_seconds * (1 + FINENESS), name


@pytest.mark.parametrize(
    ("mesh", "strategy", "schedule", "options"),
    [
        ("pp=2", None, "1f1b", {}),
        ("pp=4", None, "gpipe", {"tied": True}),
        ("pp=3,tp=2", "tensor:tp", "zb-h1", {"skips": True}),
        ("dp=2,pp=3", "data:dp", "1f1b", {"tied": True, "skips": True}),
        ("pp=2", None, "interleaved", {"skips": True}),
        ("pp=2", None, "zb-v", {"tied": True}),
    ],
)
def test_a_model_that_is_cut_trains_as_on_one_device(
    mesh: str, strategy: str | None, schedule: str, options: dict[str, bool], tmp_path: Path
) -> None:
    model = Decoder(1, **options)
    step = compiled(model, 3, mesh=mesh, strategy=strategy, schedule=schedule)
    stages = step.mesh.axis_size("pp") * SCHEDULES[schedule].turns
    assert {op.stage for op in step.serial.main.ops} == set(range(stages))
    assert "stage 1 from " in step.summary()
    step.save(tmp_path / "build")
    found = on_virtual_mesh(tmp_path / "build", batch_of(6))
    assert found == pytest.approx(on_one_device(model, 3), rel=1e-5)


def test_what_is_made_of_parameters_is_where_it_is_read() -> None:
    model = Decoder(1, layers=6).bfloat16()
    step = autopar.compile(
        model,
        batch_of(8),
        loss=lambda logits, target: F.cross_entropy(logits.flatten(0, 1), target.flatten()),
        optimizer=torch.optim.AdamW(model.parameters()),
        accumulate=4,
        master_dtype=torch.float32,
        mesh="pp=2",
        pipeline="pp",
        strategy=None,
    )
    held = [
        {
            name
            for name, value in part.main.values.items()
            if "layers." in name and 0 not in value.shape
        }
        & {port.name for port in part.signature.inputs if port.role == "parameter"}
        for part in step.deployment.programs
    ]
    assert all(held)
    assert held[0].isdisjoint(held[1])
