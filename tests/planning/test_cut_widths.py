"""Widths of stages: the best there are by their definition, and faster than equal ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import autopar
from autopar import annotate
from autopar.cost import Cluster
from autopar.partition.pipeline.tasks import FORWARD
from autopar.planning.cut import LEAST
from autopar.planning.cut_costs import Costs
from autopar.planning.cut_widths import best_widths
from autopar.planning.price import price
from tests.partition.pipeline.models import FREE_LINKS
from tests.partition.pipeline.test_cut import Unbalanced

OPS = st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9))
"""Of an op: its seconds, those to send what is behind it, and the bytes of its parameters."""


def costs_of(ops: Sequence[tuple[int, int, int]], microbatches: int) -> Costs:
    before, sent, stored = [0.0], [0.0], [0.0]
    for own, after, nbytes in ops:
        before.append(before[-1] + own)
        sent.append(float(after))
        stored.append(stored[-1] + nbytes)
    return Costs(
        {FORWARD: before},
        sent,
        microbatches,
        stored=stored,
        reduced=lambda nbytes, width: nbytes * (width - 1) / width,
    )


def step_seconds(costs: Costs, cuts: Sequence[int], widths: Sequence[int]) -> float:
    """Returns what a step takes, by its definition."""
    ends = (0, *cuts, len(costs.before) - 1)
    sent = [0.0, *(costs.sent[cut] for cut in cuts), 0.0]
    stages = []
    for (begin, end), width in zip(pairwise(ends), widths, strict=True):
        computed = (costs.before[end] - costs.before[begin]) / width
        nbytes = costs.stored[end] - costs.stored[begin]
        stages.append(computed + nbytes * (width - 1) / width / costs.microbatches)
    cycles = [seconds + 2 * sum(ends) for seconds, ends in zip(stages, pairwise(sent), strict=True)]
    return sum(stages) + 2 * sum(sent) + (costs.microbatches - 1) * max(cycles)


def compositions(indices: int, stages: int) -> Iterator[tuple[int, ...]]:
    for ends in combinations(range(1, indices), stages - 1):
        yield tuple(end - begin for begin, end in pairwise((0, *ends, indices)))


@settings(deadline=None, max_examples=60)
@given(
    ops=st.lists(OPS, min_size=2, max_size=12),
    microbatches=st.integers(2, 6),
    stages=st.integers(1, 4),
    more=st.integers(0, 4),
)
def test_no_other_cuts_and_widths_are_better(
    ops: list[tuple[int, int, int]], microbatches: int, stages: int, more: int
) -> None:
    costs, indices = costs_of(ops, microbatches), stages + more
    way = best_widths(costs, stages, indices)
    assert (way is None) == (len(ops) < stages)
    if way is None:
        return
    least = LEAST * costs.before[-1] / indices

    def fits(cuts: Sequence[int], widths: Sequence[int]) -> bool:
        parts = zip(pairwise((0, *cuts, len(ops))), widths, strict=True)
        return all(
            costs.before[end] - costs.before[begin] >= least * width
            for (begin, end), width in parts
        )

    every = [
        step_seconds(costs, cuts, widths)
        for cuts in combinations(range(1, len(ops)), stages - 1)
        for widths in compositions(indices, stages)
        if fits(cuts, widths)
    ]
    assert sum(way.widths) == indices
    assert costs.step_seconds(way) == pytest.approx(step_seconds(costs, way.cuts[:-1], way.widths))
    if every:
        assert costs.step_seconds(way) <= min(every) * (1 + 1e-9)
        if fits(way.cuts[:-1], way.widths):
            assert costs.step_seconds(way) == pytest.approx(min(every))


def compiled(
    model: nn.Module, cluster: Cluster | str, stages: object, **options: object
) -> autopar.CompiledModel:
    ids = torch.zeros(32, 32, dtype=torch.long)
    return autopar.compile(
        model,
        (ids, ids),
        loss=lambda logits, target: F.cross_entropy(logits.flatten(0, 1), target.flatten()),
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        accumulate=4,
        pipeline="pp",
        cluster=cluster,
        stages=stages,  # type: ignore[arg-type]
        **{"mesh": "pp=4", **options},  # type: ignore[arg-type]
    )


def seconds_of(step: autopar.CompiledModel) -> float:
    return price(step.partitioned, step.options.cluster).overlapped_seconds


@pytest.mark.parametrize("cluster", ["cpu", "h100", "free"])
def test_widths_that_are_chosen_beat_equal_ones(cluster: str) -> None:
    """One layer is three times as wide as the others, and the vocabulary has 50,000 words."""
    hardware = FREE_LINKS if cluster == "free" else Cluster.load(cluster)
    with torch.device("meta"):
        model = Unbalanced(50_000, (256, 256, 768, 256))
    chosen = compiled(model, hardware, "auto")
    assert seconds_of(chosen) < min(
        seconds_of(compiled(model, hardware, stages)) for stages in (None, (2, 2))
    )
    assert chosen.options.widths in [
        widths for stages in (2, 3) for widths in compositions(4, stages)
    ]
    said = ",".join(map(str, chosen.options.widths))
    assert f"stages   {said} is the fastest\n" in chosen.summary()


def test_widths_that_are_chosen_are_the_fastest_of_all() -> None:
    with torch.device("meta"):
        model = Unbalanced(5_000, (256,) * 6 + (768,) + (256,) * 3)
    hardware = Cluster.load("h100")
    found = seconds_of(compiled(model, hardware, "auto", strategy="data:pp"))
    every = [widths for stages in (2, 3, 4) for widths in compositions(4, stages)]
    least = min(
        seconds_of(compiled(model, hardware, widths, strategy="data:pp")) for widths in every
    )
    assert found == pytest.approx(least)


class Marked(nn.Module):
    """Two stages, of which the second one computes three times as much."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for at, layer in enumerate(self.layers):
            with annotate.pipeline_stage(min(at, 1)):
                x = torch.tanh(layer(x))
        return x


def test_stages_that_are_marked_get_the_indices_that_they_need() -> None:
    with torch.device("meta"):
        model = Marked()
        batch = (torch.zeros(1024, 256), torch.zeros(1024, 256))
    step = autopar.compile(
        model,
        batch,
        loss=F.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        accumulate=4,
        mesh="pp=4",
        pipeline="pp",
        cluster=FREE_LINKS,
        stages="auto",
    )
    assert step.options.widths == (1, 3)


@pytest.mark.parametrize("schedule", ["auto", "interleaved"])
def test_a_schedule_is_chosen_with_widths(schedule: str) -> None:
    with torch.device("meta"):
        model = Unbalanced(20_000, (256, 256, 256))
    step = compiled(model, "cpu", "auto", mesh="pp=3", schedule=schedule)
    said = [entry.subject for entry in step.report if entry.category == "search"]
    assert "stages" in said
    assert ("schedule" in said) == (schedule == "auto")
    assert step.options.schedule != "auto"
