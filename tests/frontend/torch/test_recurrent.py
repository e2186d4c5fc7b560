"""Recurrent layers in models: one op each, which trains on a mesh as on one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import autopar
from autopar.base.errors import InvalidInputError
from autopar.cost import Cluster, evaluate
from autopar.frontend.torch import Captured, Recipe, capture
from autopar.ir.mesh import ProcessMesh
from tests.zoo.models import Example
from tests.zoo.training import check

BATCH, STEPS, INPUTS, HIDDEN = 5, 6, 7, 8
"""A batch that no mesh here divides."""


class Recurrent(nn.Module):
    """Layers over what is computed of the input; the state is read too if that is asked for."""

    def __init__(self, kind: type[nn.RNNBase], state: bool = False, **options: Any) -> None:
        super().__init__()
        self.inner = nn.Linear(INPUTS, INPUTS)
        self.layers = kind(INPUTS, HIDDEN, **options)  # type: ignore[arg-type]
        self.start = nn.Parameter(torch.zeros(self.layers.num_layers, 1, HIDDEN)) if state else None

    def forward(self, x: Tensor) -> Tensor:
        given = None
        if self.start is not None:
            count = x.shape[0 if self.layers.batch_first else 1]
            start = self.start.expand(-1, count, -1).contiguous()
            given = (start, start) if isinstance(self.layers, nn.LSTM) else start
        outputs, last = self.layers(self.inner(x), given)
        found: Tensor = outputs.sum(-1)
        if self.start is not None:
            found = found + (last[1] if isinstance(last, tuple) else last).sum()
        return found


def example(kind: type[nn.RNNBase], **options: Any) -> Example:
    torch.manual_seed(0)
    shape = (BATCH, STEPS) if options.get("batch_first") else (STEPS, BATCH)

    def batch(number: int) -> tuple[tuple[Tensor], Tensor]:
        generator = torch.Generator().manual_seed(number)
        return (torch.randn(*shape, INPUTS, generator=generator),), torch.zeros(shape)

    return Example(Recurrent(kind, **options), batch, F.mse_loss)


Case = tuple[type[nn.RNNBase], dict[str, Any], str, str]

FAST: list[Case] = [
    (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}, "2", "ddp:a"),
    (nn.LSTM, {"state": True}, "2x2", "ddp:a,tensor:b"),
    (nn.GRU, {"num_layers": 2, "batch_first": True, "bias": False}, "2x2", "auto"),
]
REST: list[Case] = [
    (nn.LSTM, {"proj_size": 3}, "3", "fsdp:a"),
    (nn.GRU, {"state": True, "num_layers": 2}, "3", "zero2:a"),
    (nn.RNN, {"bidirectional": True}, "2", "auto"),
    (nn.RNN, {"nonlinearity": "relu"}, "3", "ddp:a"),
]
TRAINED = [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in REST)]

MESHES = {"2": (2,), "3": (3,), "2x2": (2, 2)}


@pytest.mark.parametrize(("kind", "options", "mesh", "strategy"), TRAINED)
def test_layers_train_as_on_one_device(
    kind: type[nn.RNNBase], options: dict[str, Any], mesh: str, strategy: str
) -> None:
    shape = MESHES[mesh]
    check(example(kind, **options), ProcessMesh.of_shape(shape, ("a", "b")[: len(shape)]), strategy)


def trained(found: Example) -> Captured:
    recipe = Recipe(found.loss, optimizer=torch.optim.SGD(found.model.parameters(), 0.1))
    return capture(found.model, found.batch(0), recipe)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_layers_are_one_op_with_one_gradient(kind: type[nn.RNNBase]) -> None:
    program = trained(example(kind, num_layers=3, bidirectional=True)).program
    kinds = [op.kind for op in program.main.ops if "recurrent" in op.kind]
    assert kinds == ["autopar.recurrent", "autopar.recurrent_backward"]


def test_the_batch_is_what_is_split() -> None:
    found = example(nn.GRU, batch_first=True)
    compiled = autopar.compile(
        found.model,
        found.batch(0),
        mesh="2",
        loss=found.loss,
        optimizer=torch.optim.SGD(found.model.parameters(), 0.1),
        strategy="ddp",
    )
    values = compiled.partitioned.main.values
    (op,) = (each for each in compiled.partitioned.main.ops if each.kind == "autopar.recurrent")
    assert values[op.results[0]].shape != compiled.completed.main.values[op.results[0]].shape
    assert not any(entry.category == "replicated" for entry in compiled.report)


@pytest.mark.parametrize("grown", [False, True], ids=["forward", "trained"])
@pytest.mark.parametrize("dropped", [False, True], ids=["whole", "dropped"])
def test_what_is_dropped_between_layers_is_drawn(grown: bool, dropped: bool) -> None:
    found = example(nn.LSTM, num_layers=2, dropout=0.5 if dropped else 0.0)
    captured = trained(found) if grown else capture(found.model, *found.batch(0)[0])
    kinds = [op.kind for op in captured.program.main.ops]
    assert kinds.count("autopar.dropout") == dropped
    assert kinds.count("autopar.recurrent") == 1 + dropped
    found.model.eval()
    kinds = [op.kind for op in capture(found.model, *found.batch(0)[0]).program.main.ops]
    assert "autopar.dropout" not in kinds


class Packed(nn.Module):
    """Layers over sequences of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(INPUTS, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([6, 5, 5, 2, 1]))
        found: Tensor = self.layers(packed)[0].data
        return found


def test_packed_sequences_are_refused_with_the_line() -> None:
    with pytest.raises(InvalidInputError, match=r"test_recurrent.*depends on the values"):
        capture(Packed(), torch.randn(STEPS, BATCH, INPUTS))


@pytest.mark.parametrize("inputs", [False, True], ids=["given", "computed"])
@pytest.mark.parametrize("state", [False, True], ids=["zeros", "learned"])
@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
def test_flops_are_those_of_torch_and_of_the_forward_pass_again(
    kind: type[nn.RNNBase], state: bool, inputs: bool
) -> None:
    """Kernels for CPUs take GRUs apart, so that torch's counter sees their products."""
    found = example(kind, num_layers=2, state=state)
    if not inputs:
        found.model.inner = nn.Identity()
    (x,), target = found.batch(0)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        found.model.layers(x)
    again = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        F.mse_loss(found.model(x), target).backward()
    captured = trained(found)
    counted = evaluate(captured.program, Cluster.load("cpu")).flops
    assert counted == counter.get_total_flops() + again
