"""Memory of a rank: what it loads at the start, and what a step adds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from autopar.ir.builds.files import read_build
from autopar.modules import compile
from autopar.runtime.execute.specialize import specialize
from autopar.runtime.ports.ports import read_weights
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.weights import weights as weight_files
from autopar.runtime.weights.weights import WeightFile

WIDTH, LAYERS = 64, 6
PARAMETER = WIDTH * WIDTH * 4
"""Bytes of a parameter."""


class Peak(TorchDispatchMode):
    """Counts the bytes of the storages that live, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.most = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.see(tensor)
        self.most = max(self.most, sum(self.storages.values()))
        return result

    def see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.storages[storage] = storage.nbytes()


def stack() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def training(folder: Path, optimizer: Callable[..., torch.optim.Optimizer], mesh: str) -> Path:
    torch.manual_seed(0)
    model = stack()
    x = torch.randn(4, WIDTH)
    split = {"*.weight": ["tp", None]} if mesh != "1" else {}
    options: dict[str, Any] = {"optimizer": optimizer(model.parameters(), 0.01)}
    compiled = compile(
        model, (x, x), mesh=mesh, strategy="none", shard=split, loss=mse_loss, **options
    )
    compiled.save(folder)
    return folder


@contextmanager
def mapped_sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Lists the bytes of the tensors of a file that are mapped, one after another."""
    sizes: list[int] = []
    read = weight_files.take

    def counted(tensor: Tensor, box: Any) -> Tensor:
        sizes.append(tensor.nbytes)
        return read(tensor, box)

    with monkeypatch.context() as patch:
        patch.setattr(weight_files, "take", counted)
        yield sizes


def test_a_rank_loads_its_slices_one_parameter_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = read_build(training(tmp_path / "b", torch.optim.Adam, "tp=4"))
    deployment = build.deployment
    program = specialize(deployment.program_of(1), deployment.coords_of(1))
    with mapped_sizes(monkeypatch) as sizes, Peak() as peak, WeightFile(build.weights_path) as file:
        pieces = read_weights(program, file, "cpu")
    own = sum(piece.nbytes for piece in pieces.values())
    steps = 4 * LAYERS
    assert own == 3 * LAYERS * PARAMETER // 4 + steps
    assert sizes == [PARAMETER] * LAYERS
    assert peak.most <= own + PARAMETER


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop])
def test_a_step_holds_the_state_once(
    tmp_path: Path, optimizer: Callable[..., torch.optim.Optimizer]
) -> None:
    trainer = open_trainer(training(tmp_path / "b", optimizer, "1"))
    stored = trainer.ranks.stored[0]
    state = sum(tensor.nbytes for tensor in stored.values())
    places = {name: tensor.data_ptr() for name, tensor in stored.items()}
    x = torch.randn(4, WIDTH)
    with Peak() as peak:
        for tensor in stored.values():
            peak.see(tensor)
        trainer.step((x, x))
    gradients = LAYERS * PARAMETER
    # One new value while it is computed, and activations, which are small here.
    assert peak.most <= state + gradients + 3 * PARAMETER
    assert places == {name: tensor.data_ptr() for name, tensor in stored.items()}
    left = sum(tensor.nbytes for tensor in stored.values())
    assert left == state
