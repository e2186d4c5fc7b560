"""Stages whose meshes have different shapes: at several indices of the pipeline's axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autopar
from autopar import annotate
from autopar.analysis.profiling import profile_build
from autopar.base.errors import AutoparError
from autopar.cost import memory_timeline
from autopar.ir.builds.files import read_build
from autopar.ir.parts import programs_of
from autopar.ir.program import CALL, Program, called
from autopar.ir.serde import program_from_bytes, program_to_bytes
from autopar.ir.text import parse_program, print_program
from autopar.pipeline.recorded import recorded_options
from autopar.runtime.job.processes import Processes
from tests.parallel import pipelines
from tests.partition.pipeline.models import (
    Decoder,
    batch_of,
    compiled,
    on_one_device,
    on_virtual_mesh,
    optimizer_of,
)
from tests.partition.pipeline.random_steps import RandomStep
from tests.runtime.job.real import run_ranks

FEW, MANY = 3, 100
RECOMPUTED = {"layers.1": "recompute"}


@pytest.mark.parametrize(
    ("mesh", "stages", "strategy", "schedule", "options"),
    [
        ("pp=4", (3, 1), "data:pp", "1f1b", {}),
        ("pp=4", (1, 3), "auto", "1f1b", {}),
        ("pp=4", (1, 3), None, "gpipe", {"tied": True}),
        ("pp=3,dp=2", (2, 1), "data:dp,data:pp", "zb-h1", {"tied": True, "skips": True}),
        ("pp=6", (2, 4), "fsdp:pp", "1f1b", {"skips": True}),
        ("dp=2,pp=3", (1, 2), "data:dp,tensor:pp", "zb-h2", {}),
        ("pp=4", (1, 2, 1), "tensor:pp", "1f1b", {"tied": True}),
        ("pp=5", (2, 3), "data:pp", "interleaved", {"skips": True}),
        ("pp=4", (3, 1), "auto", "zb-v", {"tied": True}),
        ("pp=5", (2, 1, 2), "data:pp", "dualpipe-v", {}),
    ],
)
def test_stages_of_other_shapes_train_as_one_device(
    mesh: str,
    stages: Sequence[int],
    strategy: str | None,
    schedule: str,
    options: dict[str, bool],
    tmp_path: Path,
) -> None:
    turns = 2 if schedule in ("interleaved", "zb-v", "dualpipe-v") else 1
    model = Decoder(len(stages) * turns, layers=6, **options)
    step = compiled(model, 3, mesh=mesh, stages=stages, strategy=strategy, schedule=schedule)
    step.save(tmp_path / "build")
    found = on_virtual_mesh(tmp_path / "build", batch_of(6))
    assert found == pytest.approx(on_one_device(model, 3), rel=1e-5)


@pytest.mark.parametrize(
    "seed", [*range(FEW), *(pytest.param(s, marks=pytest.mark.slow) for s in range(FEW, MANY))]
)
def test_random_pipelines_of_other_shapes_train_as_one_device(tmp_path: Path, seed: int) -> None:
    step = RandomStep.of(seed, widths=True)
    step.compiled().save(tmp_path / "build")
    found = step.on_virtual_mesh(tmp_path / "build")
    assert found == pytest.approx(step.on_one_device(), rel=1e-9, abs=1e-12)


def trained(processes: Processes, builds: Sequence[tuple[Path, int, str]]) -> list[list[float]]:
    """Trains with one build after the other in the same processes."""
    found = []
    for build, seed, mesh in builds:
        with autopar.load(build, processes=processes) as trainer:
            found.append(RandomStep.of(seed, mesh, widths=True).trained(trainer))
    return found


@pytest.mark.parametrize("count", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_processes_compute_what_the_virtual_mesh_does(tmp_path: Path, count: int) -> None:
    builds, wanted = [], []
    for seed in range(1000, 1000 + 8 * count):
        step, build = RandomStep.of(seed, "pp=2", widths=True), tmp_path / f"{seed}"
        if step.options["mesh"] == "pp=4" and len(builds) < count:
            step.compiled().save(build)
            builds.append((build, seed, "pp=2"))
            wanted.append(step.on_virtual_mesh(build))
    assert run_ranks(4, trained, builds) == [wanted] * 4


@pytest.mark.parametrize(
    ("mesh", "stages", "strategy", "microbatches", "rows"),
    [
        ("pp=4", (3, 1), "data:pp", 3, 7),
        ("pp=4", (1, 3), "auto", 2, 4),
        ("dp=2,pp=3", (1, 2), "data:dp,tensor:pp", 4, 9),
        ("pp=5", (2, 1, 2), "tensor:pp", 1, 3),
    ],
)
@pytest.mark.parametrize("is_open", [False, True])
def test_a_batch_of_inference_passes_stages_of_other_shapes(
    mesh: str,
    stages: Sequence[int],
    strategy: str,
    microbatches: int,
    rows: int,
    is_open: bool,
    tmp_path: Path,
) -> None:
    model = Decoder(len(stages), layers=6, skips=True).eval()
    autopar.compile(
        model,
        batch_of(rows)[0],
        mesh=mesh,
        stages=stages,
        strategy=strategy,
        pipeline="pp",
        microbatches=microbatches,
        dynamic={"ids": {0: "batch"}} if is_open else None,
    ).save(tmp_path / "build")
    for count in (rows, 2, 11, 1) if is_open else (rows,):
        ids = batch_of(count)[0]
        found = autopar.runtime.run(tmp_path / "build", {"ids": ids}, virtual=True)["output"]
        torch.testing.assert_close(found, model(ids))


def test_checkpoints_go_from_one_shape_to_another(tmp_path: Path) -> None:
    model = Decoder(2, layers=6, tied=True)
    on: list[dict[str, Any]] = [
        {"mesh": "pp=3,dp=2", "stages": (2, 1), "strategy": "auto"},
        {"mesh": "pp=4", "stages": (1, 3), "strategy": "fsdp:pp"},
        {"mesh": "pp=2"},
        {"mesh": "pp=4", "stages": (3, 1), "strategy": "fsdp:pp"},
    ]
    batch, losses = batch_of(8), []
    for at, options in enumerate(on):
        compiled(model, 4, **options).save(tmp_path / f"{at}")
        with autopar.load(tmp_path / f"{at}", virtual=True) as trainer:
            if at:
                trainer.load_checkpoint(tmp_path / "state")
            losses.append(float(trainer.step(batch)))
            trainer.save_checkpoint(tmp_path / "state")
    assert losses == pytest.approx(on_one_device(model, 4, len(on)), rel=1e-5)


@pytest.mark.parametrize("strategy", ["auto", "data:pp,data:dp"])
def test_a_plan_names_runs_of_the_axis(strategy: str, tmp_path: Path) -> None:
    model, options = Decoder(2, layers=6), {"mesh": "pp=3,dp=2", "stages": (1, 2)}
    first = compiled(model, 4, strategy=strategy, **options)
    (tmp_path / "plan.yaml").write_text(first.plan())
    again = compiled(model, 4, plan=tmp_path / "plan.yaml", **options)
    assert "pp: 1..2" in first.plan()
    said = [
        [line for line in each.plan().splitlines() if "#" not in line] for each in (first, again)
    ]
    assert said[0] == said[1]
    assert again.price() == first.price()


@pytest.mark.parametrize("strategy", ["auto", "data:pp"])
def test_programs_on_runs_are_text_and_bytes(strategy: str) -> None:
    step = compiled(Decoder(2), 3, mesh="pp=4", stages=(3, 1), strategy=strategy)
    for program in (step.serial, step.partitioned, *step.deployment.programs):
        assert parse_program(print_program(program)) == program
        assert program_from_bytes(program_to_bytes(program)) == program


def test_a_build_knows_its_stages(tmp_path: Path) -> None:
    compiled(Decoder(2), 3, mesh="pp=4", stages=(3, 1)).save(tmp_path / "build")
    build = read_build(tmp_path / "build")
    assert recorded_options(build).widths == (3, 1)
    first, *others = profile_build(tmp_path / "build")
    assert "rank 0 of 4" in first.title
    assert others


@pytest.mark.parametrize("strategy", [None, "data:pp"])
def test_limits_of_memory_hold_on_every_stage(strategy: str | None, tmp_path: Path) -> None:
    model = Decoder(2, layers=8)
    options = {"mesh": "pp=4", "stages": (3, 1), "strategy": strategy, "schedule": "gpipe"}
    usual = compiled(model, 6, **options)
    limit = round(0.95 * max(map(peak_of, programs_of(usual.partitioned).kinds)))
    step = compiled(model, 6, memory=limit, chunks={}, **options)
    assert max(map(peak_of, programs_of(step.partitioned).kinds)) <= limit
    step.save(tmp_path / "build")
    found = on_virtual_mesh(tmp_path / "build", batch_of(12))
    assert found == pytest.approx(on_one_device(model, 6), rel=1e-5)


def test_a_process_without_a_stage_has_nothing_to_compute_again() -> None:
    model, options = Decoder(2, layers=8), {"mesh": "pp=3", "strategy": None}
    step = compiled(model, 3, activations=RECOMPUTED, **options)
    calls = [len(called(program.main)) for program in step.deployment.programs]
    assert sorted(calls)[:2] == [0, 2]


@pytest.mark.parametrize("strategy", [None, "data:pp"])
def test_a_stage_may_have_all_indices(strategy: str | None, tmp_path: Path) -> None:
    """It is on all of the mesh then, and still a stage: of functions that are computed again."""
    model = Decoder(1, layers=6)
    options = {"mesh": "pp=2", "stages": (2,), "strategy": strategy, "activations": RECOMPUTED}
    step = compiled(model, 4, **options)
    calls = [op.arg("callee") for op in step.deployment.programs[0].main.ops if op.kind == CALL]
    assert set(calls) == {"stage0.forward", "stage0.weight"}
    step.save(tmp_path / "build")
    found = on_virtual_mesh(tmp_path / "build", batch_of(8))
    assert found == pytest.approx(on_one_device(model, 4), rel=1e-5)


def peak_of(kind: tuple[Program, Mapping[str, int]]) -> int:
    return memory_timeline(*kind).peak_bytes


class Dropping(nn.Module):
    """Layers with dropout between them, in two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for at, layer in enumerate(self.layers):
            with annotate.pipeline_stage(at // 2):
                x = F.dropout(torch.tanh(layer(x)), 0.3)
        return x


def test_dropout_is_the_same_on_every_shape(tmp_path: Path) -> None:
    model, batch = Dropping(), (torch.randn(8, 8), torch.randn(8, 8))

    def losses(name: str, **options: Any) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        given = {"loss": F.mse_loss, "optimizer": optimizer, "accumulate": 4, "pipeline": "pp"}
        autopar.compile(model, batch, **given, **options).save(tmp_path / name)
        return on_virtual_mesh(tmp_path / name, batch)

    wanted = losses("one", mesh="pp=1")
    for stages in ((3, 1), (1, 3), (2, 2)):
        found = losses(f"{stages}", mesh="pp=4", stages=stages, strategy="data:pp")
        assert found == pytest.approx(wanted, rel=1e-6)


def test_a_loop_of_the_user_trains_stages_of_other_shapes() -> None:
    cases = [
        ("tied", {"mesh": "pp=4", "stages": (3, 1), "strategy": "fsdp:pp"}),
        ("deep", {"mesh": "pp=4", "stages": (2, 2), "strategy": "data:pp"}),
        ("marked", {"mesh": "pp=4", "stages": "auto"}),
    ]
    assert run_ranks(4, pipelines.compared, cases) == [[]] * 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"mesh": "pp=4", "stages": (3, 2)},
            r"stages=\(3, 2\): 3 \+ 2 are 5 indices, but axis 'pp' of pp=4 has 4; give widths that",
        ),
        ({"mesh": "pp=4", "stages": (4, 0)}, r"stages=\(4, 0\): give how many indices of the"),
        ({"mesh": "pp=4", "stages": "3,x"}, "stages='3,x': give how many indices of the"),
        ({"mesh": "pp=4", "stages": 4}, "stages=4: give how many indices of the"),
        ({"mesh": "pp=4", "stages": (2.0, 2)}, "give how many indices of the"),
        ({"mesh": "4", "stages": (3, 1), "pipeline": ""}, "is for a pipeline; say along which"),
        ({"mesh": "4", "stages": "auto", "pipeline": ""}, "is for a pipeline; say along which"),
    ],
)
def test_other_widths_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(AutoparError, match=said):
        compiled(Decoder(2), 3, **options)


class TwoHeads(nn.Module):
    """A head on the first stage, another one on the last, and a skip over what is in between."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.aside, self.head = nn.Linear(8, 1), nn.Linear(8, 16)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        first, up, down = self.layers
        x = first(self.tokens(ids)).relu()
        aside = self.aside(x)
        with annotate.pipeline_stage(1):
            return self.head(x + down(up(x).tanh()).relu()), aside


def loss_of_both(heads: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    logits, aside = heads
    return F.cross_entropy(logits.flatten(0, 1), target.flatten()) + aside.square().mean()


def losses_of_both(rows: int) -> list[float]:
    """Returns the losses of a training on one device."""
    model, (ids, target) = TwoHeads(), batch_of(rows)
    optimizer, losses = optimizer_of(model), []
    for _ in range(3):
        optimizer.zero_grad()
        value = loss_of_both(model(ids), target)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


@pytest.mark.parametrize("choice", ["recompute", "offload"])
@pytest.mark.parametrize(
    ("stages", "strategy", "rows", "schedule"),
    [
        ((2, 2), "data:pp", 9, "1f1b"),
        ((2, 2), None, 7, "1f1b"),
        ((3, 1), "tensor:pp", 7, "zb-h2"),
        ((1, 3), "data:pp", 9, "gpipe"),
    ],
)
def test_ranks_of_a_wide_stage_agree_on_what_is_computed_again(
    stages: Sequence[int],
    strategy: str | None,
    rows: int,
    schedule: str,
    choice: str,
    tmp_path: Path,
) -> None:
    model = TwoHeads()
    step = autopar.compile(
        model,
        batch_of(rows),
        loss=loss_of_both,
        optimizer=optimizer_of(model),
        accumulate=3,
        mesh="pp=4",
        pipeline="pp",
        stages=stages,
        strategy=strategy,
        schedule=schedule,
        activations={"*": choice},
    )
    step.save(tmp_path / "build")
    assert on_virtual_mesh(tmp_path / "build", batch_of(rows)) == pytest.approx(
        losses_of_both(rows), rel=1e-5
    )
