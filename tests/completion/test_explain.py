"""What the report says of a completion."""

from __future__ import annotations

import torch
from torch import nn

import autopar
from autopar.base.errors import Loc
from autopar.completion import Complete, explain
from autopar.cost import Cluster, CommunicationModel, ReshardPlanner
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.program import Program
from tests.completion.text import program

CLUSTER = Cluster.load("h100")


def planner_of(program: Program) -> ReshardPlanner:
    assert program.mesh is not None
    return ReshardPlanner(CommunicationModel(CLUSTER, program.mesh))


def test_fallbacks_and_resharded_values_are_named_with_their_place() -> None:
    done = Complete(CLUSTER)(
        program(
            """
            input %x: f32[64@dp, 128] ~annotated
            %h: f32[64, 128] = custom.mystery.default(self=%x) loc("m.py", 3)
            %y: f32[64, 128] = aten.relu.default(self=%h) loc("m.py", 4)
            return %y
            """
        )
    )
    place, nbytes = Loc("m.py", 3), 64 * 128 * 4
    detail = "custom.mystery.default has no rule: all 8 processes compute all of it"
    assert explain(done, planner_of(done)) == (
        ReportEntry("replicated", "custom.mystery.default", detail, place, nbytes),
        ReportEntry("reshard", "x", "[64@dp, 128] -> [64, 128]: all_gather", place, nbytes),
        ReportEntry("origins", "3 values", "1 annotated, 1 default, 1 fallback"),
    )


def test_reductions_are_no_conflicts() -> None:
    done = Complete(CLUSTER)(
        program(
            """
            input     %x: f32[64, 128@tp] ~annotated
            parameter %w: f32[128@tp, 32] ~annotated
            %y: f32[64, 32] = aten.mm.default(self=%x, mat2=%w)
            %z: f32[64, 32] = aten.relu.default(self=%y)
            return %z
            """
        )
    )
    assert [entry.category for entry in explain(done, planner_of(done))] == ["origins"]


def test_what_a_strategy_gathers_by_itself_is_no_news() -> None:
    layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    batch = torch.randn(8, 8), torch.randn(8, 8)

    def reshards(shard: dict[str, list[str | None]]) -> list[str]:
        compiled = autopar.compile(
            *(layers, batch),
            mesh="dp=2,tp=2",
            strategy="fsdp",
            shard=shard,
            loss=nn.functional.mse_loss,
            optimizer=torch.optim.SGD(layers.parameters(), lr=0.1),
        )
        return [each.subject for each in compiled.report if each.category == "reshard"]

    assert not reshards({})
    pinned = reshards({"*.weight": ["dp", "tp"]})
    assert {"1.weight", "2.weight"} <= set(pinned)
