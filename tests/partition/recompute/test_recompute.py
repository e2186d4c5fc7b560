"""Recomputation: the same losses with less memory, and ever less memory with ever more copies."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar import ProcessMesh
from autopar.base.errors import InvalidInputError
from autopar.base.units import human_bytes
from autopar.compiled import CompiledModel
from autopar.cost import Cluster, memory_timeline
from autopar.ir.program import Op, Program
from autopar.ir.verify import verify_structure
from autopar.partition.recompute import DoesNotFit, recompute
from autopar.partition.recompute.choice import Choice
from autopar.partition.recompute.copies import write_copies
from autopar.partition.recompute.replay import replay
from autopar.partition.recompute.tape import tape_of
from autopar.partition.recompute.way import Point, Way
from tests.zoo.models import ZOO, Example

STEPS = 2
CLUSTER = Cluster.load("h100")


class Dropped(nn.Module):
    """Layers that draw random numbers."""

    def __init__(self) -> None:
        super().__init__()
        layers = ((nn.Linear(12, 12), nn.GELU(), nn.Dropout(0.3)) for _ in range(4))
        self.layers = nn.Sequential(*(each for layer in layers for each in layer))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


def dropped() -> Example:
    torch.manual_seed(0)
    drawn = torch.Generator().manual_seed(3)
    batch = (torch.randn(64, 12, generator=drawn),), torch.randn(64, 12, generator=drawn)
    return Example(Dropped().train(), lambda number: batch, F.mse_loss)


def uniform() -> Example:
    """Layers through which the same number of bytes goes everywhere."""
    torch.manual_seed(0)
    layers = [each for _ in range(20) for each in (nn.Linear(16, 16), nn.ReLU())]
    batch = (torch.randn(256, 16),), torch.randn(256, 16)
    return Example(nn.Sequential(*layers), lambda number: batch, F.mse_loss)


def large_batch() -> Example:
    """The same, of which activations make up the peak however weights are split."""
    example = dropped()
    drawn = torch.Generator().manual_seed(3)
    batch = (torch.randn(1024, 12, generator=drawn),), torch.randn(1024, 12, generator=drawn)
    return Example(example.model, lambda number: batch, F.mse_loss)


MODELS = {**ZOO, "dropped": dropped, "large batch": large_batch, "uniform": uniform}
MESHES = {
    "": (ProcessMesh((0,), ("a",)), ""),
    "ddp,tensor": (ProcessMesh([[0, 1], [2, 3]], ("a", "b")), "ddp:a,tensor:b"),
    "fsdp": (ProcessMesh((0, 1, 2, 3), ("a",)), "fsdp:a"),
}
GATHERED_AHEAD = {
    "fsdp,tensor": (ProcessMesh([[0, 1], [2, 3]], ("a", "b")), "fsdp:a,tensor:b"),
}


@dataclass(frozen=True)
class Trained:
    """What training leaves."""

    losses: list[float]
    state: Mapping[str, Tensor]


@cache
def compiled(
    model: str, mesh: str, memory: int | None = None, accumulate: int = 1
) -> CompiledModel:
    example = MODELS[model]()
    processes, strategy = {**MESHES, **GATHERED_AHEAD}[mesh]
    return autopar.compile(
        example.model,
        example.batch(0),
        mesh=processes,
        strategy=strategy,
        loss=example.loss,
        optimizer=torch.optim.AdamW(example.model.parameters(), 1e-3),
        clip_grad_norm=1.0,
        accumulate=accumulate,
        cluster=CLUSTER,
        memory=memory,
        chunks={},
    )


def trained(found: CompiledModel, model: str) -> Trained:
    with tempfile.TemporaryDirectory() as folder:
        found.save(f"{folder}/build")
        with autopar.load(f"{folder}/build", virtual=True) as trainer:
            batches = map(MODELS[model]().batch, range(STEPS))
            losses = [trainer.step(batch).item() for batch in batches]
            return Trained(losses, dict(trainer.state_dict()))


@cache
def choice(model: str, mesh: str) -> Choice:
    return Choice(tape_of(compiled(model, mesh).partitioned, CLUSTER))


@cache
def least(model: str, mesh: str, accumulate: int = 1) -> int:
    """Returns the bytes with which a step can do."""
    if accumulate == 1:
        return choice(model, mesh).smallest.peak_bytes
    with pytest.raises(DoesNotFit) as miss:
        compiled(model, mesh, 1, accumulate)
    return miss.value.least_bytes


def chosen(model: str, mesh: str, count: int) -> list[tuple[int, Point]]:
    """Returns the plans for some limits, from the smallest to the largest."""
    found, low = choice(model, mesh), least(model, mesh)
    most = found.unconstrained.peak_bytes
    limits = [low + (most - low) * at // (count - 1) for at in range(count)]
    points = [found.fastest(limit) for limit in limits]
    return [(limit, each) for limit, each in zip(limits, points, strict=True) if each is not None]


def copies(program: Program) -> list[Op]:
    return [op for op in program.main.ops if "recompute" in dict(op.plan)]


def is_changed(program: Program) -> bool:
    """Whether something is computed again, or offloaded."""
    ops = [op for function in program.functions.values() for op in function.ops]
    return any({"recompute", "offload"} & dict(op.plan).keys() for op in ops)


CASES = [
    ("gpt2", "", 1),
    ("gpt2", "ddp,tensor", 1),
    ("large batch", "fsdp", 1),
    ("dropped", "ddp,tensor", 2),
    ("uniform", "", 1),
    ("resnet", "", 1),
    ("gpt2", "fsdp", 2),
    ("resnet", "fsdp", 1),
    ("resnet", "ddp,tensor", 1),
    *((model, mesh, 1) for model in ("llama", "t5", "mixtral", "whisper") for mesh in MESHES),
]
FAST = 4
WEIGHTS_ALONE = {("t5", "fsdp"), ("whisper", "fsdp")}


@pytest.mark.parametrize(
    ("model", "mesh", "accumulate"),
    [*CASES[:FAST], *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES[FAST:])],
)
def test_training_is_the_same_to_the_bit(model: str, mesh: str, accumulate: int) -> None:
    small = compiled(model, mesh, least(model, mesh, accumulate), accumulate)
    # Where gathered weights make up the peak, as in small batches of fsdp, nothing can be done.
    assert is_changed(small.partitioned) != ((model, mesh) in WEIGHTS_ALONE)
    found = trained(small, model)
    expected = trained(compiled(model, mesh, accumulate=accumulate), model)
    assert found.losses == expected.losses
    for name, tensor in expected.state.items():
        assert torch.equal(found.state[name], tensor), name


@pytest.mark.parametrize(
    ("model", "mesh"),
    [
        ("gpt2", ""),
        ("resnet", "ddp,tensor"),
        *(
            pytest.param(model, mesh, marks=pytest.mark.slow)
            for model in ("gpt2", "llama", "t5", "mixtral", "whisper", "vit", "resnet", "dropped")
            for mesh in MESHES
        ),
    ],
)
def test_more_memory_is_never_slower_nor_less_memory_larger(model: str, mesh: str) -> None:
    points = chosen(model, mesh, 40)
    assert len(points) == 40
    assert all(point.peak_bytes <= limit for limit, point in points)
    assert points[-1][1].added_seconds == 0
    assert (points[0][1].added_seconds > 0) != ((model, mesh) in WEIGHTS_ALONE)
    for (_, less), (_, more) in pairwise(points):
        assert more.added_seconds <= less.added_seconds
        assert more.peak_bytes >= less.peak_bytes


@pytest.mark.parametrize(
    ("model", "mesh"),
    [
        ("large batch", "fsdp"),
        ("resnet", "ddp,tensor"),
        *(
            pytest.param(model, mesh, marks=pytest.mark.slow)
            for model in ("gpt2", "llama", "t5", "mixtral", "whisper", "vit", "resnet", "dropped")
            for mesh in MESHES
        ),
    ],
)
def test_plans_are_what_the_evaluators_say_of_their_programs(model: str, mesh: str) -> None:
    program = compiled(model, mesh).partitioned
    for limit, point in chosen(model, mesh, 6):
        found = recompute(program, CLUSTER, limit)
        assert point.peak_bytes == memory_timeline(found.program).peak_bytes
        assert found.added_seconds == pytest.approx(point.added_seconds, rel=1e-6, abs=1e-12)


def test_copies_say_what_they_are() -> None:
    program = compiled("gpt2", "").partitioned
    found = recompute(program, CLUSTER, least("gpt2", "")).program
    made = {op.results[0]: op for op in program.main.ops}
    for op in copies(found):
        original = made[dict(op.plan)["recompute"]]
        assert (op.phase, op.loc, op.dist) == ("backward", original.loc, original.dist)
        assert op.kind == original.kind
    rest = [op.results for op in found.main.ops if "recompute" not in dict(op.plan)]
    assert sorted(rest) == sorted(op.results for op in program.main.ops)


def test_running_statistics_are_renewed_once() -> None:
    tape = choice("resnet", "").tape
    everything = Way(frozenset(at for at, op in enumerate(tape.again) if op is not None))
    steps = replay(tape, everything, range(len(tape.ops)))
    program = compiled("resnet", "").partitioned.with_main(write_copies(tape, steps))
    verify_structure(program)
    kinds = [op.kind for op in copies(program)]
    assert "aten._native_batch_norm_legit.no_stats" in kinds
    assert "aten._native_batch_norm_legit_functional.default" not in kinds


@pytest.mark.parametrize("mesh", ["fsdp,tensor", "ddp,tensor"])
def test_every_value_is_made_once_and_priced_as_it_is_run(mesh: str) -> None:
    found = choice("dropped", mesh)
    program = compiled("dropped", mesh).partitioned
    for plan in ("everything", "smallest"):
        everything = Way(frozenset(at for at, op in enumerate(found.tape.again) if op is not None))
        way = everything if plan == "everything" else found.smallest.way
        steps = replay(found.tape, way, range(len(found.tape.ops)))
        verify_structure(program.with_main(write_copies(found.tape, steps)))
    limit = found.smallest.peak_bytes
    fitted = recompute(program, CLUSTER, limit)
    assert fitted.peak_bytes == memory_timeline(fitted.program).peak_bytes <= limit


def test_the_report_says_what_is_computed_again() -> None:
    limit = least("gpt2", "")
    found = compiled("gpt2", "", limit)
    (entry,) = (entry for entry in found.report if entry.category == "recompute")
    assert entry.subject == f"{len(copies(found.partitioned))} ops"
    assert human_bytes(limit) in entry.detail
    assert not [e for e in compiled("gpt2", "").report if e.category == "recompute"]


def test_a_limit_that_all_fits_into_changes_nothing() -> None:
    program = compiled("gpt2", "").partitioned
    found = recompute(program, CLUSTER, 2**40)
    assert found.program is program
    assert found.added_seconds == 0


def test_layers_of_one_width_are_computed_again_as_far_as_needed() -> None:
    found = choice("uniform", "")
    peak = found.unconstrained.peak_bytes
    points = [found.fastest(int(peak * part)) for part in (0.95, 0.8, 0.6)]
    added = [point.added_seconds for point in points if point is not None]
    assert len(added) == 3
    assert 0 < added[0] < added[1] < added[2]


def test_too_little_memory_is_said_by_how_much() -> None:
    with pytest.raises(InvalidInputError, match=r"more than the limit of 50\.0 KiB; raise"):
        compiled("gpt2", "", 50 * 2**10)
