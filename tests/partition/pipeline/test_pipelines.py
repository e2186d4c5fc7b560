"""Pipelines train as one device, whatever their stages, meshes and schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autopar
from autopar.base.errors import AnnotationError, InvalidInputError
from autopar.ir.builds.files import read_build
from autopar.pipeline.decided import Decided
from autopar.runtime.job.processes import Processes
from tests.partition.pipeline.models import (
    Decoder,
    batch_of,
    compiled,
    loss,
    moved,
    on_one_device,
    on_virtual_mesh,
    optimizer_of,
)
from tests.runtime.job.real import run_ranks


@pytest.mark.parametrize(
    ("stages", "microbatches", "options"),
    [
        (1, 4, {"mesh": "pp=1"}),
        (1, 4, {"mesh": "pp=1,dp=2", "strategy": "data:dp", "schedule": "interleaved"}),
        (2, 4, {"mesh": "pp=2"}),
        (2, 4, {"mesh": "pp=2", "schedule": "gpipe"}),
        (2, 4, {"mesh": "pp=2", "schedule": "zb-h1"}),
        (4, 5, {"mesh": "pp=2", "schedule": "zb-h1"}),
        (4, 5, {"mesh": "pp=2"}),
        (2, 4, {"mesh": "pp=2", "schedule": "zb-h2"}),
        (4, 5, {"mesh": "pp=2", "schedule": "zb-v"}),
        (6, 4, {"mesh": "pp=3", "schedule": "zb-v"}),
        (4, 5, {"mesh": "pp=2", "schedule": "dualpipe-v"}),
        (6, 1, {"mesh": "pp=3", "schedule": "dualpipe-v"}),
        (5, 2, {"mesh": "pp=2", "schedule": "dualpipe-v"}),
        (3, 2, {"mesh": "pp=3"}),
        (2, 4, {"mesh": "pp=2,dp=2", "strategy": "fsdp:dp"}),
        (2, 4, {"mesh": "dp=3,pp=2", "strategy": "data:dp"}),
        (2, 4, {"mesh": "pp=2,tp=2", "strategy": "tensor:tp"}),
        (4, 4, {"mesh": "pp=2,dp=2", "strategy": "auto"}),
    ],
)
@pytest.mark.parametrize("model", [{}, {"tied": True, "skips": True}])
def test_losses_are_those_of_one_device(
    tmp_path: Path,
    stages: int,
    microbatches: int,
    options: dict[str, Any],
    model: dict[str, bool],
) -> None:
    torch.manual_seed(0)
    decoder = Decoder(stages, **model)
    compiled(decoder, microbatches, **{"strategy": None, **options}).save(tmp_path / "build")
    found = on_virtual_mesh(tmp_path / "build", batch_of(2 * microbatches))
    assert found == pytest.approx(on_one_device(decoder, microbatches), rel=1e-5)


class TwoOutputs(nn.Module):
    """Logits of the last stage beside those of the first, as an auxiliary loss reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder, self.aside = Decoder(2), nn.Linear(8, 16)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.decoder(ids), self.aside(self.decoder.tokens(ids))


def both(logits: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    return loss(logits[0], target) + 0.5 * loss(logits[1], target)


def test_outputs_of_several_stages_are_in_the_loss(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, (ids, target) = TwoOutputs(), batch_of(8)
    step = autopar.compile(
        model,
        (ids, target),
        mesh="pp=2",
        loss=both,
        optimizer=optimizer_of(model),
        accumulate=4,
        pipeline="pp",
    )
    step.save(tmp_path / "build")
    found = on_virtual_mesh(tmp_path / "build", (ids, target))
    optimizer, wanted = optimizer_of(model), []
    for _ in range(3):
        optimizer.zero_grad()
        wanted.append(both(model(ids), target))
        wanted[-1].backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert found == pytest.approx([each.item() for each in wanted], rel=1e-5)


def test_neighbours_exchange_an_activation_and_its_gradient() -> None:
    found = moved(compiled(Decoder(2), 3, mesh="pp=2", strategy=None))
    wanted = [(phase, at) for phase in ("forward", "backward") for at in range(3)]
    # Both sides have each, and the loss goes to all at the end.
    assert sorted(found) == sorted([*wanted, ("forward", 0)] * 2)


def trained(processes: Processes, build: Path, microbatches: int) -> list[float]:
    with autopar.load(build, processes=processes) as trainer:
        return [float(trainer.step(batch_of(2 * microbatches))) for _ in range(3)]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "zb-v", "dualpipe-v"])
def test_processes_compute_the_bits_of_the_virtual_mesh(tmp_path: Path, schedule: str) -> None:
    torch.manual_seed(0)
    build = tmp_path / "build"
    compiled(Decoder(4), 4, mesh="pp=2", strategy=None, schedule=schedule).save(build)
    assert run_ranks(2, trained, build, 4) == [on_virtual_mesh(build, batch_of(8))] * 2


def test_a_build_remembers_its_stages(tmp_path: Path) -> None:
    step = compiled(Decoder(3), 2, mesh="pp=2,dp=2", strategy="data:dp", schedule="gpipe")
    step.save(tmp_path / "build")
    decided = Decided.of_build(read_build(tmp_path / "build"))
    assert (decided.options.pipeline, decided.options.schedule) == ("pp", "gpipe")
    first, second = (frozenset({("pp", index)}) for index in (0, 1))
    assert decided.problem.stages == {0: first, 1: second, 2: first}
    assert decided.lowering(decided.completed).ranks.main == step.ranks.main
    assert autopar.plan_of(step).splitlines()[1] == (
        "# It is for a pipeline of 3 stages along pp, schedule gpipe, and a batch in 2"
        " microbatches: say so again where you compile with it."
    )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mesh": "pp=2", "pipeline": "stages"}, AnnotationError, "the mesh has no such axis"),
        ({"devices": 2}, InvalidInputError, "give mesh= in the place of devices="),
        (
            {"mesh": "pp=2", "schedule": "2f2b"},
            InvalidInputError,
            "'1f1b' or 'interleaved' or 'gpipe'",
        ),
    ],
)
def test_what_is_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compiled(Decoder(2), 2, **options)


def test_a_model_with_fewer_ops_than_stages_is_refused() -> None:
    with pytest.raises(AnnotationError, match="too few ops to be cut into 64 stages"):
        compiled(Decoder(1, layers=1), 2, mesh="pp=64", cluster="h100")
