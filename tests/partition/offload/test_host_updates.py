"""Updates that the host carries out where their state waits: which ops those are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autopar
from autopar.base.errors import AnnotationError, InvalidInputError, VerificationError
from autopar.compiled import CompiledModel
from autopar.cost import Cluster, evaluate, memory_timeline
from autopar.ir.emitted import END_OFFLOAD, OFFLOAD, RELOAD
from autopar.ir.memory.transfers import DEVICE, EITHER, HOST, hosted, is_on_host, on_host
from autopar.ir.program import Op, Program
from autopar.ir.program_pb2 import File
from autopar.ir.serde import HOST_VERSION, program_from_bytes, program_to_bytes
from autopar.ir.text import parse_program, print_program
from autopar.ir.verify import verify_structure
from tests.partition.offload.models import (
    ALL,
    LAYERS,
    OPTIMIZERS,
    STATE,
    batch,
    compiled,
    stack,
    trained,
)
from tests.partition.offload.on_device import measured

WEIGHT = 32 * 32 * 4
CPU = Cluster.load("cpu")
FORCED: dict[str, Any] = {"update": HOST}


def updates(found: CompiledModel) -> list[Op]:
    return [op for op in found.partitioned.main.ops if op.phase == "update"]


def by_host(found: CompiledModel) -> list[Op]:
    return [op for op in updates(found) if is_on_host(op)]


def moved(found: CompiledModel, kind: str, numbers: bool = False) -> list[str]:
    """Returns the tensors that cross the link in an update."""
    values = found.partitioned.main.values
    names = [op.operands[0] for op in updates(found) if op.kind == kind]
    return [name for name in names if numbers or values[name].shape]


# What goes where.


def test_state_stays_and_gradients_go_down() -> None:
    found = compiled(ALL, **FORCED)
    assert sorted(moved(found, OFFLOAD)) == sorted(
        f"grad/{at}.{part}" for at in range(0, 2 * LAYERS, 2) for part in ("weight", "bias")
    )
    assert not moved(found, RELOAD)
    assert Counter(op.kind for op in by_host(found)) == {
        "aten._fused_adam.tensor_lr": 2 * LAYERS,
        "aten.add.Scalar": 2 * LAYERS,
    }
    # The count of steps is where the state is; the learning rate goes there once.
    assert "step/0.weight" in hosted(found.partitioned)
    numbers = set(moved(found, OFFLOAD, numbers=True)) - set(moved(found, OFFLOAD))
    assert numbers == {"lr"}


def test_a_parameter_on_the_device_goes_down_and_comes_up() -> None:
    found = compiled(STATE, model=stack(bias=False), **FORCED)
    weights = [f"{at}.weight" for at in range(0, 2 * LAYERS, 2)]
    down = {*weights, *(f"grad/{each}" for each in weights)}
    assert set(moved(found, OFFLOAD)) == down
    assert moved(found, RELOAD) == [f"{each}.new" for each in weights]


@pytest.mark.parametrize("offload", [STATE, ALL])
def test_no_more_than_two_buckets_are_under_way(offload: tuple[str, ...]) -> None:
    found = compiled(offload, model=stack(bias=False), clip_grad_norm=0.1, **FORCED)
    down, up, most = 0, 0, 0
    values = found.partitioned.main.values
    for op in updates(found):
        nbytes = WEIGHT if values[op.results[0]].shape else 0
        down += {OFFLOAD: nbytes, END_OFFLOAD: -nbytes}.get(op.kind, 0)
        up += {RELOAD: nbytes, "autopar.end_reload": -nbytes}.get(op.kind, 0)
        most = max(most, down, up)
    assert down == up == 0
    assert most == 2 * (WEIGHT if offload == ALL else 2 * WEIGHT)


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_the_device_holds_nothing_of_the_state(optimizer: str) -> None:
    options: dict[str, Any] = {"model": stack(bias=False), "mesh": "1"}
    before = memory_timeline(compiled([], optimizer, **options).partitioned)
    found = compiled(STATE, optimizer, **options, **FORCED)
    timeline = memory_timeline(found.partitioned)
    kinds = {"adam": 2, "momentum": 1}[optimizer]
    numbers = 4 * LAYERS * (optimizer == "adam")
    assert timeline.stored_bytes == before.stored_bytes - LAYERS * kinds * WEIGHT - numbers
    # What comes up takes no more than the gradients did that went down.
    state = LAYERS * kinds * WEIGHT + numbers
    assert timeline.peak_bytes <= before.peak_bytes - state
    assert measured(found.partitioned, found.weights) == timeline.peak_bytes


def test_a_gradient_goes_down_before_it_is_converted() -> None:
    """Where an optimizer reads gradients of 16 bits in 32, half as much is sent."""
    found = steps_with(Converting)
    values = found.partitioned.main.values
    sent = [name for name in moved(found, OFFLOAD) if name.startswith("grad")]
    assert sent
    assert {values[name].dtype for name in sent} == {"bf16"}
    assert "aten._to_copy.default" in {op.kind for op in by_host(found)}


# Whatever the optimizer is.


class Own(torch.optim.Optimizer):
    """An optimizer of the user's with a moment per parameter.

    Its gradients may be converted first, its steps may depend on norms.
    """

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {"lr": 1e-2})

    def _init_group(self, group: dict[str, Any]) -> None:
        for weight in group["params"]:
            if "moment" not in self.state[weight]:
                moment = torch.zeros_like(weight, dtype=torch.float32)
                self.state[weight]["moment"] = moment

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            self._init_group(group)
            for weight in group["params"]:
                self.change(weight, weight.grad, self.state[weight]["moment"], group["lr"])

    def change(self, weight: Tensor, grad: Tensor, moment: Tensor, lr: float) -> None:
        raise NotImplementedError


class Converting(Own):
    def change(self, weight: Tensor, grad: Tensor, moment: Tensor, lr: float) -> None:
        moment.mul_(0.9).add_(grad.float() * 0.5)
        weight.sub_((lr * moment).to(weight.dtype))


class ByNorm(Own):
    """As LAMB: how far a step goes depends on the norm of what it would do."""

    def change(self, weight: Tensor, grad: Tensor, moment: Tensor, lr: float) -> None:
        moment.mul_(0.9).add_(grad)
        weight.sub_(moment * (lr * weight.norm() / (moment.norm() + 1)))


class Rows(Own):
    """Keeps in its state what depends on whole rows."""

    def change(self, weight: Tensor, grad: Tensor, moment: Tensor, lr: float) -> None:
        moment.copy_(0.9 * moment + grad.sum(-1, keepdim=True) + moment.sum(-1, keepdim=True))
        weight.sub_(lr * moment)


def steps_with(optimizer: Callable[..., Own], update: str = HOST, **options: Any) -> CompiledModel:
    model = stack()
    given: Any = batch()
    if optimizer is Converting:
        model, given = model.bfloat16(), tuple(each.bfloat16() for each in given)
    made = optimizer(model.parameters())
    options = {"mesh": "1", "strategy": "data", "offload": "optimizer", **options}
    return autopar.compile(
        model, given, loss=nn.functional.mse_loss, optimizer=made, update=update, **options
    )


def test_what_depends_on_norms_is_computed_by_the_device() -> None:
    found = steps_with(ByNorm)
    assert len([name for name in moved(found, RELOAD) if "moment" in name]) == 2 * LAYERS
    assert {op.kind for op in by_host(found)} <= {"aten.mul.Tensor", "aten.add.Tensor"}
    losses, state = trained(found)
    expected, wanted = trained(steps_with(ByNorm, DEVICE, offload=[]))
    assert losses == expected
    assert all(torch.equal(state[name], tensor) for name, tensor in wanted.items())


def test_state_that_depends_on_rows_comes_to_the_device() -> None:
    found = steps_with(Rows)
    assert not by_host(found)
    assert trained(found)[0] == trained(steps_with(Rows, DEVICE, offload=[]))[0]
    (entry,) = (each for each in found.report if each.category == "offload")
    assert "the host updates 0 of 8 parameters" in entry.detail


# What programs say.


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_programs_are_stored_and_shown(optimizer: str) -> None:
    program = compiled(STATE, optimizer, mesh="2", **FORCED).partitioned
    verify_structure(program)
    data = program_to_bytes(program)
    assert program_from_bytes(data) == program
    assert File.FromString(data).minimum_reader_version == HOST_VERSION
    text = print_program(program)
    assert "plan(place=host)" in text
    assert parse_program(text) == program


def changed(change: Callable[[Op], Op]) -> Program:
    """Returns a program of which the host updates parameters, with its ops changed."""
    program = compiled(ALL, **FORCED).partitioned
    ops = tuple(map(change, program.main.ops))
    assert ops != program.main.ops
    return program.with_main(replace(program.main, ops=ops))


def on_device(op: Op) -> Op:
    return replace(op, plan=()) if is_on_host(op) and "fused" in op.kind else op


def with_gradients(op: Op) -> Op:
    names = [name.removesuffix(".host") for name in op.operands]
    return op.with_operands(names) if is_on_host(op) else op


def transferring(op: Op) -> Op:
    return on_host(op) if op.kind == RELOAD else op


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            with_gradients,
            r"operand %grad/.*: expected a value in the host's memory, got one on the",
        ),
        (transferring, r"expected one that a host may compute, got autopar\.reload"),
        (on_device, r"expected %.* brought to the device"),
        (on_device, r"alias to %0\.weight: expected a new content in the host's memory"),
    ],
)
def test_the_host_reads_its_own_memory_and_nobody_else(
    change: Callable[[Op], Op], message: str
) -> None:
    with pytest.raises(VerificationError, match=message):
        verify_structure(changed(change))


def test_reports_say_who_updates() -> None:
    (entry,) = (each for each in compiled(ALL, **FORCED).report if each.category == "offload")
    assert "; the host updates 8 of 8 parameters, in " in entry.detail
    assert "the host updates" not in str(compiled(ALL).report)


def test_what_waits_nowhere_is_not_updated_by_the_host() -> None:
    for offload in (None, []):
        with pytest.raises(AnnotationError, match=r"update='host': .* and nothing does"):
            compiled(offload, **FORCED)
    with pytest.raises(InvalidInputError, match="update='hots': give 'auto' or 'host' or 'device'"):
        compiled(ALL, update="hots")


def test_builds_files_and_plans_say_who_updates(tmp_path: Path) -> None:
    found = compiled(STATE, **FORCED)
    found.save(tmp_path / "build")
    profile = autopar.profile(tmp_path / "build")
    assert profile.evaluation.host_seconds == evaluate(found.partitioned, CPU).host_seconds > 0
    assert ", updates there " in str(profile)
    assert " of updates by the host" in str(autopar.explain(found))
    assert "seconds of updates by the host" in str(autopar.diff(found, compiled(STATE)))
    autopar.save_plan(found, tmp_path / "plan.yaml")
    assert "\nupdate: host\n" in (tmp_path / "plan.yaml").read_text()
    again = compiled(None, plan=tmp_path / "plan.yaml", strategy="", update=EITHER)
    assert len(by_host(again)) == len(by_host(found))
    (tmp_path / "pins.yaml").write_text("offload: [optimizer]\nupdate: host\n")
    assert by_host(compiled(None, plan=tmp_path / "pins.yaml", update=EITHER))
    assert not by_host(compiled(None, plan=tmp_path / "pins.yaml", update=DEVICE))
    (tmp_path / "pins.yaml").write_text("offload: [optimizer]\nupdate: hots\n")
    with pytest.raises(AnnotationError, match=r"pins\.yaml:2: update is one of auto, host, device"):
        compiled(None, plan=tmp_path / "pins.yaml")
