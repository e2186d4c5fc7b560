"""What a device holds less, predicted and measured, if state waits in the host's memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autopar.cost import memory_timeline
from autopar.ir.emitted import OFFLOAD, RELOAD
from autopar.ir.memory.transfers import hosted
from autopar.ir.program import Program
from autopar.partition.offload import OffloadState
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.specialize import specialize
from autopar.runtime.execute.updates import InPlace
from tests.cost.memory.test_measured_memory import arguments
from tests.judges.tracking import Tracking
from tests.partition.offload.models import ALL, LAYERS, OPTIMIZERS, STATE, compiled, stack

WIDTH = 32
WEIGHT = WIDTH * WIDTH * 4
KINDS = {"adam": 2, "momentum": 1}
"""Tensors of state per parameter."""


class OnDevice(Tracking):
    """Counts the storages that aren't in the host's memory, which on a CPU are no others."""

    def __init__(self, device: Iterable[Tensor], host: Iterable[Tensor]) -> None:
        self._host = {tensor.untyped_storage()._cdata for tensor in host}
        super().__init__(device)

    def see(self, tensor: Tensor) -> None:
        if tensor.untyped_storage()._cdata not in self._host:
            super().see(tensor)


def measured(program: Program, weights: Mapping[str, Tensor]) -> int:
    """Returns the most bytes that the device holds in a step."""
    concrete = specialize(program, {})
    there = hosted(concrete)
    module = emit(concrete, {}, "cpu", InPlace(lambda loss, refusal: None))
    given = dict(zip(concrete.main.inputs, arguments(concrete, weights), strict=True))
    device = [tensor for name, tensor in given.items() if name not in there]
    host = [tensor for name, tensor in given.items() if name in there]
    with OnDevice(device, host) as seen, torch.no_grad():
        results = module.forward(*given.values())
    del results
    return seen.peak_bytes


def without_bias(offload: Any, optimizer: str, **options: Any) -> Any:
    return compiled(offload, optimizer, stack(WIDTH, bias=False), **options)


@pytest.mark.parametrize("optimizer", KINDS)
def test_a_device_holds_two_buckets_of_the_state(optimizer: str) -> None:
    kinds = KINDS[optimizer]
    before = memory_timeline(without_bias([], optimizer).partitioned)
    found = memory_timeline(without_bias(STATE, optimizer).partitioned)
    state, bucket = LAYERS * kinds * WEIGHT, kinds * WEIGHT
    assert found.host_bytes == state
    assert found.stored_bytes == before.stored_bytes - state
    # All gradients are there when the update begins.
    at = _first_update(before.lifetimes.ops), _first_update(found.lifetimes.ops)
    assert found.at_bytes[at[1]] == before.at_bytes[at[0]] - (state - 2 * bucket)


def test_a_device_holds_two_buckets_of_all() -> None:
    before = memory_timeline(without_bias([], "adam").partitioned)
    found = memory_timeline(without_bias(ALL, "adam").partitioned)
    state, bucket = LAYERS * 3 * WEIGHT, 3 * WEIGHT
    at = _first_update(before.lifetimes.ops), _first_update(found.lifetimes.ops)
    assert found.at_bytes[at[1]] == before.at_bytes[at[0]] - (state - 2 * bucket)
    # Forward and backward need parameters alone.
    same = {
        op.results: held for op, held in zip(before.lifetimes.ops, before.at_bytes, strict=True)
    }
    for op, held in zip(found.lifetimes.ops, found.at_bytes, strict=True):
        if op.phase != "update" and op.results in same:
            assert same[op.results] - held >= state - 2 * WEIGHT


@pytest.mark.parametrize("offload", [STATE, ALL, ("*/*.weight", "0.weight")])
@pytest.mark.parametrize("extra", [{}, {"clip_grad_norm": 0.1, "accumulate": 2}], ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_is_predicted_is_measured(
    optimizer: str, extra: dict[str, Any], offload: tuple[str, ...]
) -> None:
    found = compiled(offload, optimizer, **extra)
    assert (
        measured(found.partitioned, found.weights) == memory_timeline(found.partitioned).peak_bytes
    )


def test_no_more_than_one_bucket_is_under_way() -> None:
    ops = compiled(ALL, "adam", accumulate=2).partitioned.main.ops
    under_way = 0
    for op in ops:
        if op.kind == RELOAD:
            under_way += 1
        elif op.kind == "autopar.end_reload":
            under_way -= 1
        assert under_way <= 6  # A weight and its bias, with two kinds of state each.
    assert under_way == 0


def test_new_content_is_written_over_the_old_one_once() -> None:
    main = compiled(ALL, "adam").partitioned.main
    sent = {op.results[0]: op.args[-1] for op in main.ops if op.kind == OFFLOAD}
    assert len(sent) == LAYERS * 2 * 3
    aliases = dict(main.aliases)
    assert all(aliases[name] == over.name for name, (_, over) in sent.items())


def test_a_tied_weight_stays_from_its_first_to_its_last_reader() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = stack()
            self.outer = nn.Linear(32, 32, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.outer(self.inner(self.outer(x)))

    found = compiled(ALL, "adam", Tied())
    reloads = [op for op in found.partitioned.main.ops if op.kind == RELOAD]
    own = [op.phase for op in reloads if op.operands[0] == "outer.weight"]
    assert own == ["forward", "backward", "update"]
    assert (
        measured(found.partitioned, found.weights) == memory_timeline(found.partitioned).peak_bytes
    )


def test_nothing_is_written_where_nothing_is_offloaded() -> None:
    program = compiled([], "adam").partitioned
    assert OffloadState(())(program) is program


def _first_update(ops: Any) -> int:
    return next(at for at, op in enumerate(ops) if "fused" in op.kind)
