"""Replayed steps: what a recording reads and writes is memory that stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from autopar.ir.text import parse_program
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.replay import WARM, Outputs, Replay, is_static
from autopar.runtime.execute.updates import InPlace

PROGRAM = """
parameter %w: f32[3]
input %x: f32[3]
%loss: f32[] = aten.dot.default(self=%w, tensor=%x)
%n: f32[3] = aten.sub.Tensor(self=%w, other=%x) phase=update
alias %n -> %w
return %loss, %n"""

CPU = torch.device("cpu")


class Recorder:
    """Plays the device: it does again what it was told, and its outputs are always in one place.

    Attributes:
        recorded: How often it was told.
    """

    def __init__(self) -> None:
        self.recorded = 0

    def __call__(
        self, function: Callable[[], Outputs]
    ) -> tuple[Callable[[], object], tuple[Tensor, ...]]:
        self.recorded += 1
        places: list[Tensor] = []

        class Outputs(tuple[Tensor, ...]):
            def __iter__(self) -> Iterator[Tensor]:
                return iter(places)

        def replay() -> None:
            loss, stored = function()
            first = places[0].copy_(loss) if places else loss
            places[:] = first, stored

        return replay, Outputs()


def test_replays_compute_what_is_given_and_keep_what_is_stored() -> None:
    program = parse_program(PROGRAM)
    recorder, w = Recorder(), torch.arange(3.0)
    code = emit(program, {}, in_place=InPlace(held=True)).forward
    replay = Replay(code, program, CPU, recorder)
    expected, losses = w.clone(), []
    for number in range(WARM + 3):
        x = torch.full((3,), float(number))
        loss, new = replay(w, x)
        losses.append((loss, float(expected.dot(x))))
        expected -= x
        assert new.data_ptr() == w.data_ptr()
        assert torch.equal(w, expected)
    # Losses of earlier steps aren't written over.
    assert [float(found) for found, _ in losses] == [wanted for _, wanted in losses]
    assert recorder.recorded == 1
    moved = w.clone()
    for _ in range(WARM + 1):
        replay(moved, torch.ones(3))
    assert recorder.recorded == 2
    assert torch.equal(moved, expected - (WARM + 1))


def test_what_cannot_be_recorded_runs_as_before() -> None:
    def refuse(function: Callable[[], Outputs]) -> tuple[Callable[[], object], Outputs]:
        raise RuntimeError("the host waits here\nand more")

    program, w = parse_program(PROGRAM), torch.zeros(3)
    replay = Replay(emit(program, {}, in_place=InPlace()).forward, program, CPU, refuse)
    with pytest.warns(UserWarning, match="aren't replayed as CUDA graphs: the host waits here$"):
        _ = [replay(w, torch.ones(3)) for _ in range(WARM + 3)]
    assert w.tolist() == [-WARM - 3.0] * 3


def test_guards_of_the_host_are_not_recorded() -> None:
    program = parse_program(PROGRAM)
    found = [
        is_static(program, emit(program, {}, in_place=each))
        for each in (InPlace(lambda loss, refusal: None), InPlace(held=True), InPlace())
    ]
    assert found == [False, True, True]
