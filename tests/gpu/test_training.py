"""Training steps on the device: as one CPU trains, and the same in every run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar import ProcessMesh
from autopar.cost import memory_timeline
from autopar.runtime.job.processes import Processes
from tests.gpu.places import PLACE, Note, exact, needs_gpu
from tests.runtime.job.real import run_ranks
from tests.zoo.models import ZOO
from tests.zoo.test_training import WITHOUT_SEQUENCE, mesh_of
from tests.zoo.training import (
    TOLERANCE,
    compare,
    compile_step,
    example_optimizer,
    loss_of,
    train_eagerly,
    train_on_mesh,
)

pytestmark = pytest.mark.slow

HALF = ("gpt2", "llama", "vit", "resnet")
HALF_TOLERANCE = 1e-2
"""Of gradients by 16-bit products, relative to the largest."""

PEAK_TOLERANCE = 0.03


@pytest.fixture(autouse=True)
def exactly() -> Iterator[None]:
    with exact():
        yield


@pytest.mark.parametrize("model", ZOO)
def test_steps_train_as_a_cpu_does(model: str, tmp_path: Path, note: Note) -> None:
    example = ZOO[model]()
    strategy = "fsdp:a,tensor:b" if model == WITHOUT_SEQUENCE else "fsdp:a,context:b"
    compile_step(example, mesh_of("2x2"), strategy, {}, tmp_path / "b", device=PLACE.type)
    found, expected = train_on_mesh(tmp_path / "b", example, PLACE), train_eagerly(example)
    compare(found, expected)
    pairs = zip(found.losses, expected.losses, strict=True)
    worst = max(abs(a - b) / abs(b) for a, b in pairs)
    note(f"{worst:.1e}", f"of losses, {TOLERANCE:.0e} is allowed")


@pytest.mark.parametrize("model", HALF)
def test_products_of_16_bits_are_close(model: str, tmp_path: Path, note: Note) -> None:
    """A step of plain SGD with a rate of 1 leaves parameters less their gradients."""
    example = ZOO[model]()
    made = autopar.compile(
        example.model,
        example.batch(0),
        mesh=1,
        loss=example.loss,
        optimizer=torch.optim.SGD(example.model.parameters(), 1.0),
        autocast=torch.bfloat16,
        device=PLACE,
    )
    made.save(tmp_path)
    before = {name: each.detach().clone() for name, each in example.model.named_parameters()}
    with autopar.load(tmp_path, virtual=True, device=PLACE) as trainer:
        trainer.step(example.batch(0))
        after = trainer.state_dict()
    loss_of(example, example.model, 0).backward()  # type: ignore[no-untyped-call]
    wanted = {name: each.grad for name, each in example.model.named_parameters()}
    largest = max(float(each.abs().max()) for each in wanted.values() if each is not None)
    error = max(
        float((before[name] - after[name] - each).abs().max())
        for name, each in wanted.items()
        if each is not None
    )
    note(f"{error / largest:.1e}", f"of the largest gradient, {HALF_TOLERANCE:.0e} is allowed")
    assert error <= HALF_TOLERANCE * largest


@pytest.mark.parametrize("model", ["gpt2", "mixtral", "resnet"])
def test_runs_are_equal_to_the_bit(model: str, tmp_path: Path) -> None:
    example = ZOO[model]()
    compile_step(example, mesh_of("2"), "fsdp:a", {}, tmp_path / "b", device=PLACE.type)
    first, second = (train_on_mesh(tmp_path / "b", example, PLACE) for _ in range(2))
    assert first.losses == second.losses
    assert [n for n, each in first.state.items() if not torch.equal(each, second.state[n])] == []


OTHERWISE: dict[str, dict[str, Any]] = {
    "state and update on the host": {"offload": "optimizer", "update": "host"},
    "activations on the host": {"activations": {"transformer.h.*": "offload"}},
    "a loop": {"accumulate": 3},
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_transfers_and_loops_train_alike(name: str, tmp_path: Path) -> None:
    """What is moved beside what is computed is there when it is read."""
    example = ZOO["gpt2"]()
    made = autopar.compile(
        example.model,
        example.batch(0),
        mesh=2,
        strategy="none",
        optimizer=example_optimizer(example.model),
        clip_grad_norm=1.0,
        device=PLACE,
        **OTHERWISE[name],
    )
    made.save(tmp_path)
    compare(train_on_mesh(tmp_path, example, PLACE), train_eagerly(example))


STEPS = 5


def _train_alone(processes: Processes, build: str, options: dict[str, Any]) -> list[float]:
    example = ZOO["gpt2"]()
    with exact(), autopar.load(build, processes=processes, **options) as trainer:
        assert trainer.ranks.device.type == PLACE.type
        losses = [trainer.step(example.batch(number % 3)) for number in range(STEPS)]
        trainer.check_losses()
        return [loss.item() for loss in losses]


ALONE: dict[str, dict[str, Any]] = {
    "op by op": {"torch_compile": False},
    "compiled": {"torch_compile": True, "check_loss": "later"},
    "replayed": {"torch_compile": False, "cuda_graphs": True},
    "compiled and replayed": {"cuda_graphs": True},
}


@pytest.mark.parametrize(
    "how", [pytest.param(e, marks=needs_gpu if "replayed" in e else ()) for e in ALONE]
)
def test_a_process_on_its_own_trains_alike(how: str, tmp_path: Path) -> None:
    """On a GPU that is nccl, with one rank."""
    example = ZOO["gpt2"]()
    compile_step(example, ProcessMesh([0]), "none", {}, tmp_path / "b", device=PLACE.type)
    (found,) = run_ranks(1, _train_alone, str(tmp_path / "b"), ALONE[how])
    with autopar.load(tmp_path / "b", virtual=True) as trainer:
        expected = [trainer.step(example.batch(number % 3)).item() for number in range(STEPS)]
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=0)


def _gpt(dtype: torch.dtype) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": 4, "n_embd": 512, "n_head": 8, "n_positions": 1024, "vocab_size": 50257}
    drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = GPT2LMHeadModel(GPT2Config(**sizes, **drop, use_cache=False)).to(dtype).train()
    ids = torch.randint(0, 50257, (8, 1024))
    return model, {"input_ids": ids, "labels": ids}


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_peaks_are_as_predicted(dtype: torch.dtype, tmp_path: Path, note: Note) -> None:
    model, batch = _gpt(dtype)
    optimizer = torch.optim.AdamW(model.parameters())
    made = autopar.compile(model, batch, mesh=1, optimizer=optimizer, device=PLACE)
    made.save(tmp_path)
    timeline = memory_timeline(made.deployment.programs[0])
    with autopar.load(tmp_path, virtual=True, device=PLACE) as trainer:
        trainer.step(batch)
        there = torch.cuda.memory_allocated(PLACE)
        torch.cuda.reset_peak_memory_stats(PLACE)
        trainer.step(batch)
        beyond = torch.cuda.max_memory_allocated(PLACE) - there
    # What libraries hold for themselves is there before.
    error = (timeline.peak_bytes - timeline.stored_bytes - beyond) / timeline.peak_bytes
    note(f"{error:+.1%}", f"of the peak, {PEAK_TOLERANCE:.0%} is allowed")
    assert abs(error) <= PEAK_TOLERANCE
