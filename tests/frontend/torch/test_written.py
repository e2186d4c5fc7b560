"""Tensors that `forward` writes or leaves somewhere: state of a program, or a reason to refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch import capture
from autopar.ir.program import Program

Forward = Callable[["Model", Tensor], Tensor]


class Model(nn.Module):
    """Does what a test wants to buffers of all kinds, and to plain attributes."""

    buffer: Tensor
    tied: Tensor
    part: Tensor

    def __init__(self, does: Forward) -> None:
        super().__init__()
        self.does = does
        self.register_buffer("buffer", torch.zeros(4, 6))
        self.register_buffer("other", torch.zeros(4, 6))
        self.register_buffer("tied", self.other)
        self.register_buffer("none", None)
        self.register_buffer("whole", torch.zeros(4, 6))
        self.register_buffer("part", self.whole[1:])
        self.kept = torch.zeros(4, 6)
        self.unset: Tensor | None = None
        self.keys: list[Tensor] = []
        self.notes = Notes()

    def forward(self, x: Tensor) -> Tensor:
        return self.does(self, x)


@dataclass
class Notes:
    """An object of the user's."""

    last: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)


def captured(does: Forward) -> Program:
    return capture(Model(does), torch.randn(4, 6)).program


def aliases(program: Program) -> list[str]:
    """Returns the labels of the buffers that are written."""
    labels = {port.name: port.label for port in program.signature.inputs}
    return [labels[source] for _, source in program.main.aliases]


def assigned(model: Model, x: Tensor) -> Tensor:
    model.buffer = model.buffer + x
    return model.buffer * 2


def of_both_names(model: Model, x: Tensor) -> Tensor:
    model.other = model.tied = model.tied + x
    return model.other * 2


def test_what_is_assigned_to_a_buffer_is_its_new_content() -> None:
    assert aliases(captured(assigned)) == ["buffer"]
    assert aliases(captured(of_both_names)) == ["other"]


def returned(model: Model, x: Tensor) -> Tensor:
    model.buffer.add_(x)
    return model.buffer


def given(model: Model, x: Tensor) -> Tensor:
    model.buffer = x
    model.other = model.tied = x
    return x * 2


def test_new_content_is_neither_an_input_nor_another_output() -> None:
    for does in (returned, given):
        main = captured(does).main
        assert len(set(main.outputs)) == len(main.outputs)
        assert set(main.outputs).isdisjoint(main.inputs)


class Named(Model):
    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"buffer": self.does(self, x)}


def test_an_output_may_be_called_as_a_buffer_is() -> None:
    program = capture(Named(assigned), torch.randn(4, 6)).program
    assert [port.label for port in program.signature.outputs] == ["buffer", "buffer.new"]


def wider(model: Model, x: Tensor) -> Tensor:
    model.buffer = (model.buffer + x).double()
    return x * 2


def longer(model: Model, x: Tensor) -> Tensor:
    model.buffer = torch.cat([model.buffer, x])
    return x * 2


def made(model: Model, x: Tensor) -> Tensor:
    model.none = x if model.none is None else model.none + x
    return x * 2


def unset(model: Model, x: Tensor) -> Tensor:
    model.buffer = None  # type: ignore[assignment]
    return x * 2


def untied(model: Model, x: Tensor) -> Tensor:
    model.tied = model.tied + x
    return x * 2


def seen_through(model: Model, x: Tensor) -> Tensor:
    model.part.add_(x[1:])
    return x * 2


def summed(model: Model, x: Tensor) -> Tensor:
    model.kept = model.kept + x
    return model.kept * 2


def started(model: Model, x: Tensor) -> Tensor:
    model.unset = x if model.unset is None else model.unset + x
    return model.unset * 2


def listed(model: Model, x: Tensor) -> Tensor:
    model.keys.append(x)
    return torch.cat(model.keys)


def nested(model: Model, x: Tensor) -> Tensor:
    y = x + model.notes.last["x"][0] if model.notes.last else x
    model.notes.last = {"x": (y, x)}
    return y * 2


def stood_up(model: Model, x: Tensor) -> Tensor:
    return x.t_() * 2


def shortened(model: Model, x: Tensor) -> Tensor:
    model.buffer.resize_(3, 6)
    return x * 2


@pytest.mark.parametrize(
    ("does", "problem"),
    [
        (stood_up, r"changes the shape of 'x' in place, from \[4, 6\] to \[6, 4\]"),
        (shortened, r"changes the shape of 'buffer' in place, from \[4, 6\] to \[3, 6\]"),
        (wider, r"makes float64\[4, 6\] of buffer 'buffer', which is float32\[4, 6\]"),
        (longer, r"makes float32\[8, 6\] of buffer 'buffer'.*final shape"),
        (made, r"makes float32\[4, 6\] of buffer 'none', which is None"),
        (unset, r"makes None of buffer 'buffer'"),
        (untied, "buffer 'tied', which is 'other' too"),
        (seen_through, "writes to 'part', which shares memory with 'whole'"),
        (summed, "left in the attribute 'kept'.*register_buffer"),
        (started, "left in the attribute 'unset'"),
        (listed, "left in the attribute 'keys'"),
        (nested, "left in the attribute 'notes'"),
    ],
)
def test_what_a_program_cannot_keep_is_refused(does: Forward, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        captured(does)


def noted(model: Model, x: Tensor) -> Tensor:
    model.unset = x * 3
    model.keys = [model.unset]
    model.notes.last["x"] = (x,)
    return x * 2


def test_what_is_only_noted_does_no_harm() -> None:
    program = captured(noted)
    assert [op.kind for op in program.main.ops] == ["aten.mul.Tensor"]
    assert not program.main.aliases
