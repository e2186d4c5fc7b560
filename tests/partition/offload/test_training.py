"""What waits in the host's memory is trained as if it didn't, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import autopar
from autopar.ir.emitted import RELOAD
from autopar.ir.memory.transfers import DEVICE, HOST, hosted
from autopar.ir.parts import parts_of
from tests.partition.offload.models import (
    ALL,
    OPTIMIZERS,
    STATE,
    assert_trains_alike,
    batch,
    compiled,
    plainly_trained,
    stack,
    state_of,
    train_on_a_rank,
    trained,
)
from tests.runtime.job.real import run_ranks

MESHES: tuple[dict[str, Any], ...] = (
    {"mesh": "1", "strategy": "data"},
    {"mesh": "2", "strategy": "data"},
    {"mesh": "2", "strategy": "fsdp"},
    {"mesh": "2", "strategy": "zero1"},
    {"mesh": "dp=2,tp=2", "strategy": "fsdp:dp,tensor:tp"},
)
EXTRAS: tuple[dict[str, Any], ...] = (
    {"clip_grad_norm": 0.1},
    {"accumulate": 2},
    {"clip_grad_norm": 0.1, "accumulate": 2},
    {"autocast": torch.bfloat16},
)
UPDATES = pytest.mark.parametrize("update", [DEVICE, HOST])
PIPELINES = (("zb-h1", "pp=2,dp=2"), ("zb-v", "pp=2"))
CHANGES = (
    ("with", "without"),
    ("without", "with"),
    ("with", "with"),
    ("with", "host"),
    ("host", "without"),
)


@UPDATES
@pytest.mark.parametrize("offload", [STATE, ALL, ("parameters",), ("exp_avg/*",), ("*.weight",)])
def test_a_step_with_adam(offload: tuple[str, ...], update: str) -> None:
    found = compiled(offload, update=update)
    assert hosted(found.partitioned)
    assert_trains_alike(found, "adam")


@UPDATES
@pytest.mark.parametrize("extra", EXTRAS, ids=str)
def test_clipping_accumulation_and_mixed_precision(extra: dict[str, Any], update: str) -> None:
    assert_trains_alike(compiled(ALL, update=update, **extra), "adam", **extra)


@UPDATES
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_other_optimizers(optimizer: str, update: str) -> None:
    assert_trains_alike(compiled(ALL, optimizer, update=update), optimizer)


@UPDATES
@pytest.mark.parametrize("mesh", MESHES[1:], ids=str)
def test_meshes(mesh: dict[str, Any], update: str) -> None:
    found = compiled(ALL, update=update, **mesh)
    assert hosted(found.partitioned)
    assert_trains_alike(found, "adam", **mesh)


@pytest.mark.slow
@UPDATES
@pytest.mark.parametrize("offload", [STATE, ALL])
@pytest.mark.parametrize("extra", EXTRAS, ids=str)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_all_of_it_together(
    optimizer: str,
    mesh: dict[str, Any],
    extra: dict[str, Any],
    offload: tuple[str, ...],
    update: str,
) -> None:
    options = {**mesh, **extra}
    found = compiled(offload, optimizer, update=update, **options)
    assert_trains_alike(found, optimizer, **options)


@UPDATES
@pytest.mark.parametrize(
    ("schedule", "mesh"),
    [("1f1b", "pp=2"), *(pytest.param(*each, marks=pytest.mark.slow) for each in PIPELINES)],
)
def test_stages_of_a_pipeline(schedule: str, mesh: str, update: str) -> None:
    """Each stage keeps its own buckets."""
    options = {"mesh": mesh, "pipeline": "pp", "schedule": schedule, "accumulate": 4}
    options["strategy"] = "data:dp" if "dp" in mesh else "none"
    found = compiled(ALL, clip_grad_norm=0.1, update=update, **options)
    assert_trains_alike(found, "adam", clip_grad_norm=0.1, **options)
    parts = parts_of(found.partitioned)
    assert len(parts) == 2
    for part in parts:
        ops = (op for function in part.functions.values() for op in function.ops)
        reloads = {op.operands[0] for op in ops if op.kind == RELOAD}
        assert 0 < len(reloads) < len(hosted(found.partitioned))


@UPDATES
def test_processes_train_alike_and_skip_what_is_not_finite(tmp_path: Path, update: str) -> None:
    options = {"mesh": "2", "strategy": "fsdp"}
    compiled(ALL, update=update, **options).save(tmp_path / "build")
    expected, wanted = plainly_trained("adam", tuple(options.items()))
    for losses, state in run_ranks(2, train_on_a_rank, str(tmp_path / "build")):
        assert losses == expected
        assert state == {name: tensor.tolist() for name, tensor in wanted.items()}


def test_master_weights_wait_too(tmp_path: Path) -> None:
    halves = tuple(each.bfloat16() for each in batch())
    losses = []
    for at, (offload, update) in enumerate(((ALL, DEVICE), (ALL, HOST), ((), DEVICE))):
        model = stack().bfloat16()
        found = autopar.compile(
            model,
            halves,
            mesh="2",
            strategy="fsdp",
            loss=torch.nn.functional.mse_loss,
            optimizer=OPTIMIZERS["adam"](model),
            master_dtype=torch.float32,
            offload=offload,
            update=update,
        )
        found.save(tmp_path / f"{at}")
        with autopar.load(tmp_path / f"{at}", virtual=True) as trainer:
            losses.append([trainer.step(halves).item() for _ in range(3)])
    assert losses[0] == losses[1] == losses[2]


@pytest.mark.parametrize("offload", [STATE, ALL])
def test_steps_that_overflow_are_skipped_on_the_host_too(offload: tuple[str, ...]) -> None:
    found = {}
    for waits, update in ((offload, HOST), ((), DEVICE)):
        model = stack()
        step = autopar.compile(
            model,
            batch(),
            mesh="2",
            strategy="fsdp",
            loss=torch.nn.functional.mse_loss,
            optimizer=OPTIMIZERS["adam"](model),
            autocast=torch.float16,
            scaler=torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=2),
            offload=waits,
            update=update,
        )
        found[update] = trained(step, steps=14)
    (losses, state), (expected, wanted) = found[HOST], found[DEVICE]
    assert losses == expected
    assert losses[0] == losses[1] != losses[-1]
    assert all(torch.equal(state[name], tensor) for name, tensor in wanted.items())


def test_checkpoints_go_on_with_and_without(tmp_path: Path) -> None:
    """Saved in the middle with state in the host's memory, read without; and the other way."""
    for name, offload in (("with", ALL), ("without", []), ("host", ALL)):
        update = HOST if name == "host" else DEVICE
        compiled(offload, mesh="2", strategy="fsdp", update=update).save(tmp_path / name)
    with autopar.load(tmp_path / "without", virtual=True) as trainer:
        expected = [trainer.step(batch()).item() for _ in range(4)]
        wanted = state_of(trainer)
    for first, second in CHANGES:
        folder = tmp_path / f"{first}-{second}"
        with autopar.load(tmp_path / first, virtual=True) as trainer:
            losses = [trainer.step(batch()).item() for _ in range(2)]
            trainer.save_checkpoint(folder)
        with autopar.load(tmp_path / second, virtual=True) as trainer:
            trainer.load_checkpoint(folder)
            losses += [trainer.step(batch()).item() for _ in range(2)]
            found = state_of(trainer)
        assert losses == expected
        assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
