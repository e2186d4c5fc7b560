"""Offloading, the third choice, priced by the link; and what users say of activations."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import autopar
from autopar import annotate
from autopar.analysis.profiling import profile_compiled
from autopar.base.errors import AnnotationError
from autopar.compiled import CompiledModel
from autopar.cost import Cluster, evaluate, memory_timeline
from autopar.cost.links import HostLink
from autopar.ir.program import Program
from autopar.ir.serde import program_from_bytes, program_to_bytes
from autopar.ir.text import parse_program, print_program
from autopar.ir.verify import verify_structure
from autopar.partition.recompute import recompute
from autopar.partition.recompute.beside import beside
from autopar.partition.recompute.choice import Choice
from autopar.partition.recompute.copies import write_copies
from autopar.partition.recompute.replay import replay
from autopar.partition.recompute.tape import Tape, tape_of
from autopar.partition.recompute.way import Way
from tests.judges.tracking import executed

NO_LINK = Cluster.load("cpu")
FAST = replace(NO_LINK, host_link=HostLink("fast", 1e-6, 2e-11))
SLOW = replace(NO_LINK, host_link=HostLink("slow", 1e-5, 1e-9))
STEPS = 2


class Layers(nn.Module):
    """Layers with dropout, each of which a user may wrap."""

    def __init__(self, wrapped: str = "", dropout: float = 0.2) -> None:
        super().__init__()
        self.wrapped = wrapped
        self.first = nn.Linear(16, 16)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.Dropout(dropout))
            for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + self.called(layer, F.layer_norm(x, (16,)))
        return x

    def called(self, layer: nn.Module, x: Tensor) -> Tensor:
        if self.wrapped in ("reentrant", "not reentrant"):
            found: Tensor = checkpoint(layer, x, use_reentrant=self.wrapped == "reentrant")
            return found
        if self.wrapped == "marked":
            with annotate.activations("recompute"):
                return torch.clone(layer(x))
        if self.wrapped == "offloaded":
            x = annotate.offload(x, "cpu")
        return torch.as_tensor(layer(x))


def batch() -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(1)
    return torch.randn(512, 16, generator=drawn), torch.randn(512, 16, generator=drawn)


def squares(found: Tensor, wanted: Tensor) -> Tensor:
    """A loss that takes no more memory than it says, unlike torch's kernel for it."""
    return ((found - wanted) ** 2).mean()


def compiled(
    wrapped: str = "", mesh: str = "1", dropout: float = 0.2, **options: Any
) -> CompiledModel:
    """Returns a step that may be computed again or wait in the host's memory, not in chunks."""
    torch.manual_seed(0)
    model = Layers(wrapped, dropout).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    options = {"cluster": NO_LINK, "chunks": {}, "effort": 0.1, **options}
    return autopar.compile(model, batch(), mesh=mesh, loss=squares, optimizer=optimizer, **options)


def trained(found: CompiledModel) -> tuple[list[float], Mapping[str, Tensor]]:
    with tempfile.TemporaryDirectory() as folder:
        found.save(f"{folder}/build")
        with autopar.load(f"{folder}/build", virtual=True) as trainer:
            losses = [trainer.step(batch()).item() for _ in range(STEPS)]
            return losses, dict(trainer.state_dict())


def assert_trains_alike(found: CompiledModel, mesh: str = "1") -> None:
    losses, state = trained(found)
    expected, other = plainly_trained(mesh)
    assert losses == expected
    for name, tensor in other.items():
        assert torch.equal(state[name], tensor), name


@cache
def unlimited(mesh: str = "1") -> CompiledModel:
    return compiled(mesh=mesh)


@cache
def plainly_trained(mesh: str) -> tuple[list[float], Mapping[str, Tensor]]:
    return trained(unlimited(mesh))


@cache
def offloaded() -> CompiledModel:
    return compiled(cluster=FAST, memory=peak(unlimited()) // 2)


@cache
def plain() -> Program:
    return unlimited().partitioned


def tape(cluster: Cluster) -> Tape:
    return tape_of(plain(), cluster)


def peak(found: CompiledModel) -> int:
    return memory_timeline(found.partitioned).peak_bytes


def transfers(program: Program) -> list[str]:
    return [op.kind for op in program.main.ops if "offload" in dict(op.plan)]


def made_again(program: Program) -> set[str]:
    return {text for op in program.main.ops for key, text in op.plan if key == "recompute"}


@pytest.mark.parametrize("mesh", ["1", pytest.param("2", marks=pytest.mark.slow), "dp=2,tp=2"])
def test_what_is_offloaded_is_trained_alike_to_the_bit(mesh: str) -> None:
    most = peak(unlimited(mesh))
    found = compiled(mesh=mesh, cluster=FAST, memory=most * 8 // 10)
    assert transfers(found.partitioned)
    assert peak(found) <= most * 8 // 10
    assert_trains_alike(found, mesh)


def test_a_link_makes_less_memory_do_and_never_costs_time() -> None:
    choices = [Choice(tape(cluster)) for cluster in (NO_LINK, SLOW, FAST)]
    assert choices[2].smallest.peak_bytes < choices[0].smallest.peak_bytes
    most = choices[0].unconstrained.peak_bytes
    for limit in range(choices[0].smallest.peak_bytes, most, most // 16):
        points = [choice.fastest(limit) for choice in choices]
        seconds = [point.added_seconds for point in points if point is not None]
        assert len(seconds) == 3
        assert seconds[2] <= seconds[1] + 1e-12 <= seconds[0] + 2e-12


def test_more_memory_is_never_slower_nor_less_memory_larger() -> None:
    choice = Choice(tape(FAST))
    low, most = choice.smallest.peak_bytes, choice.unconstrained.peak_bytes
    limits = [low + (most - low) * at // 30 for at in range(31)]
    points = [choice.fastest(limit) for limit in limits]
    known = [point for point in points if point is not None]
    assert len(known) == len(limits)
    assert all(point.peak_bytes <= limit for point, limit in zip(known, limits, strict=True))
    for less, more in pairwise(known):
        assert more.added_seconds <= less.added_seconds
        assert more.peak_bytes >= less.peak_bytes


def test_nothing_is_offloaded_where_the_host_has_no_memory_of_its_own() -> None:
    choice = Choice(tape(NO_LINK))
    assert not choice.smallest.way.offloaded
    assert not transfers(recompute(plain(), NO_LINK, choice.smallest.peak_bytes).program)


def test_seconds_and_bytes_are_what_the_evaluators_say() -> None:
    known = tape(FAST)
    least = Choice(known).smallest.peak_bytes
    found = recompute(plain(), FAST, least)
    before, after = evaluate(plain(), FAST), evaluate(found.program, FAST)
    assert found.added_seconds == after.serialized_seconds - before.serialized_seconds
    assert found.added_seconds == pytest.approx(Choice(known).smallest.added_seconds)
    sent = [at for at, op in enumerate(found.program.main.ops) if op.kind == "autopar.offload"]
    nbytes = sum(after.costs[at].transferred_bytes for at in sent)
    assert FAST.host_link is not None
    expected = 2 * (len(sent) * FAST.host_link.alpha_seconds + nbytes * 2e-11)
    assert after.transfer_seconds == pytest.approx(expected)
    assert memory_timeline(found.program).host_bytes == found.host_bytes == nbytes
    assert before.transfer_seconds == memory_timeline(plain()).host_bytes == 0


def test_transfers_run_beside_computation_at_no_higher_peak() -> None:
    known = tape(SLOW)
    way = Way(offloaded=frozenset(list(known.offload_candidates)[::3]))
    steps = replay(known, way, range(len(known.ops)))
    program = plain().with_main(write_copies(known, steps))
    found = beside(program, SLOW)
    verify_structure(found)
    assert memory_timeline(found).peak_bytes == memory_timeline(program).peak_bytes
    before, after = evaluate(program, SLOW), evaluate(found, SLOW)
    assert after.serialized_seconds == pytest.approx(before.serialized_seconds)
    assert after.overlapped_seconds < before.overlapped_seconds * 0.99
    assert after.overlapped_seconds >= max(after.transfer_seconds / 2, after.compute_seconds)


def test_transfers_are_stored_and_shown() -> None:
    program = recompute(plain(), FAST, peak(unlimited()) // 2).program
    assert transfers(program)
    assert program_from_bytes(program_to_bytes(program)) == program
    assert parse_program(print_program(program)) == program
    assert " offload host " in print_program(program)


def test_the_report_says_what_is_offloaded() -> None:
    found = offloaded()
    entries = {entry.category: entry for entry in found.report}
    count = transfers(found.partitioned).count("autopar.offload")
    assert entries["offload"].subject == f"{count} tensors"
    assert "in the host's memory" in entries["offload"].detail


def test_profiles_and_comparisons_show_what_is_offloaded() -> None:
    found = offloaded()
    (profile,) = profile_compiled(found.serial, found.deployment, FAST)
    assert profile.timeline.host_bytes == memory_timeline(found.partitioned).host_bytes > 0
    assert "offloaded; transfers take" in str(profile)
    assert profile.as_dict()["host_bytes"] == profile.timeline.host_bytes
    total = sum(node.seconds for node in profile.nodes)
    assert total == pytest.approx(profile.serialized_seconds)
    assert "host's memory" in str(autopar.diff(found, compiled(cluster=FAST)))


@pytest.mark.parametrize("part", [0.4, 0.7])
def test_memory_is_what_is_tracked_and_the_host_s_is_apart(part: float) -> None:
    """On the CPU, the host's memory is tracked with the device's."""
    found = compiled(dropout=0.0)
    program = found.partitioned
    limit = int(memory_timeline(program).peak_bytes * part)
    program = recompute(program, FAST, limit).program
    timeline = memory_timeline(program)
    assert timeline.peak_bytes <= limit
    assert timeline.host_bytes > 0
    both = map(sum, zip(timeline.at_bytes, timeline.lifetimes.host_bytes(), strict=True))
    assert executed(program, found.weights).peak_bytes == max(both)


@pytest.mark.parametrize("wrapped", ["reentrant", "not reentrant", "marked"])
def test_checkpoints_are_computed_again_but_for_what_leaves_them(wrapped: str) -> None:
    found = compiled(wrapped)
    again = made_again(found.partitioned)
    for layer in range(4):
        assert any(name.startswith(f"layers.{layer}.1.gelu") for name in again)
    # What enters and leaves a layer is kept.
    assert not any("layer_norm" in name or name.startswith("add") for name in again)
    assert peak(found) < peak(unlimited())
    assert_trains_alike(found)


@pytest.mark.parametrize(
    ("wrapped", "pins", "results"),
    [("offloaded", {}, 3), ("", {"layers.*.1.gelu*": "offload"}, 1)],
)
def test_what_is_marked_is_offloaded(wrapped: str, pins: dict[str, str], results: int) -> None:
    """A norm has its statistics besides."""
    found = compiled(wrapped, activations=pins)
    assert transfers(found.partitioned).count("autopar.offload") == 4 * results
    assert_trains_alike(found)


def test_pins_are_obeyed_by_the_choice() -> None:
    limit = peak(unlimited()) * 7 // 10
    free = compiled(memory=limit)
    saved = {"layers.1": "save", "layers.2.1.gelu*": "recompute"}
    found = compiled(memory=limit, activations=saved)
    assert any(name.startswith("layers.1.") for name in made_again(free.partitioned))
    again = made_again(found.partitioned)
    assert not any(name.startswith("layers.1.") for name in again)
    assert any(name.startswith("layers.2.1.gelu") for name in again)
    assert peak(found) <= limit
    assert_trains_alike(found)


def test_the_last_pin_of_an_activation_counts() -> None:
    found = compiled(activations={"layers.*": "recompute", "layers.*.0.*": "save"})
    again = made_again(found.partitioned)
    assert any(".1.gelu" in name for name in again)
    assert not any(".0.addmm" in name for name in again)


@pytest.mark.parametrize("name", ["[0]", "a/b"])
def test_pins_name_modules_of_any_name(name: str) -> None:
    model = nn.Sequential()
    for each in (name, "last"):
        model.add_module(each, nn.Sequential(nn.Linear(4, 4), nn.GELU()))
    found = autopar.compile(
        model,
        (torch.ones(8, 4), torch.ones(8, 4)),
        mesh="2",
        strategy="data",
        loss=F.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        activations={name: "recompute"},
    )
    again = made_again(found.partitioned)
    assert again
    assert all(made.startswith(f"{name}.") for made in again)


def test_files_and_plans_carry_pins(tmp_path: Path) -> None:
    file = tmp_path / "pins.yaml"
    file.write_text("activations:\n  layers.*: recompute\n  layers.3.1.gelu*: offload\n")
    first = compiled(plan=file)
    assert made_again(first.partitioned)
    assert transfers(first.partitioned)
    saved = tmp_path / "plan.yaml"
    autopar.save_plan(first, saved)
    assert "layers.*: recompute" in saved.read_text()
    second = compiled(plan=saved)
    ops = [each.partitioned.main.ops for each in (first, second)]
    assert [(op.kind, op.results, op.plan) for op in ops[0]] == [
        (op.kind, op.results, op.plan) for op in ops[1]
    ]


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"layer.*": "recompute"}, "'layer.*' matches no module or activation"),
        ({"layer.1": "save"}, r"; did you mean layers\.1"),
        ({"layers.*": "recomputed"}, "'recomputed' is none of save, recompute, offload"),
    ],
)
def test_pins_that_can_t_be_meant_are_refused(pins: dict[str, str], message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        compiled(activations=pins)


def test_pins_of_a_program_without_a_backward_pass_are_refused() -> None:
    with pytest.raises(AnnotationError, match="Linear has no backward pass, so no activation"):
        autopar.compile(
            torch.nn.Linear(4, 4), torch.ones(8, 4), mesh="2", activations={"*": "offload"}
        )
