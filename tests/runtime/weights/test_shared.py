"""Weights that nobody writes are in memory that all who have a build open share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import autopar
from autopar.ir.builds.files import read_build
from autopar.runtime.execute.session import Session
from autopar.runtime.ports.boxes import Box, Extent
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.weights.weights import WeightFile
from tests.runtime.training.steps import LAYOUTS, training_build

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is mapped")

FILE = "weights.safetensors"


class Counting(torch.nn.Module):
    """A layer that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 6)
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x) + self.calls


@pytest.fixture
def build(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    autopar.compile(Counting(), (torch.ones(4, 8),), mesh=1).save(tmp_path / "build")
    return tmp_path / "build"


def is_in_file(tensor: Tensor, name: str = FILE) -> bool:
    """Whether the memory of a tensor is a file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *rest = line.split()
        start, end = (int(each, 16) for each in span.split("-"))
        if start <= tensor.data_ptr() < end:
            return rest[-1].endswith(name)
    return False


def rows(start: int, length: int, columns: int = 8) -> Box:
    return ((Extent(6, start, length),), (Extent(8, 0, columns),))


def test_pieces_that_the_file_has_as_they_are_wanted_are_not_copied(build: Path) -> None:
    with WeightFile(build=read_build(build)) as file:
        name = next(each for each in file.entries if each.endswith("weight"))
        whole = file.read(name, torch.float32, (6, 8), rows(0, 6), shared=True)
        piece = file.read(name, torch.float32, (6, 8), rows(2, 3), shared=True)
        columns = file.read(name, torch.float32, (6, 8), rows(0, 6, 3), shared=True)
        own = file.read(name, torch.float32, (6, 8), rows(2, 3))
        none = file.read(name, torch.float32, (6, 8), rows(6, 0), shared=True)
    stored = load_file(build / FILE)[name]
    assert is_in_file(whole)
    assert is_in_file(piece)
    assert not is_in_file(columns)
    assert not is_in_file(own)
    assert none.shape == (0, 8)
    for found, wanted in ((whole, stored), (piece, stored[2:5]), (columns, stored[:, :3])):
        assert torch.equal(found, wanted)
    assert piece.untyped_storage().nbytes() == piece.nbytes


def test_who_writes_to_shared_memory_has_pages_of_his_own(build: Path) -> None:
    before = (build / FILE).read_bytes()
    one, other = Session(build), Session(build)
    with one, other:
        wanted = {name: tensor.clone() for name, tensor in other.state_dict().items()}
        one.load_state_dict({name: tensor + 1 for name, tensor in wanted.items()})
        assert all(torch.equal(each, wanted[name]) for name, each in other.state_dict().items())
    assert (build / FILE).read_bytes() == before


def test_sessions_share_what_their_program_does_not_write(build: Path) -> None:
    with Session(build) as session:
        found = {name: is_in_file(tensor) for name, tensor in session.weights.items()}
        session.run({"x": torch.ones(4, 8)})
        calls = session.state_dict()["calls"]
    assert sorted(found.values()) == [False, True, True]
    assert calls.tolist() == [1.0] * 6
    assert (
        load_file(build / FILE)[next(name for name, each in found.items() if not each)].sum() == 0
    )


def test_what_is_trained_is_not_shared(tmp_path: Path) -> None:
    build = training_build(tmp_path / "build", LAYOUTS[0])
    with open_trainer(build, virtual=True) as trainer:
        stored = [each for rank in trainer.ranks.stored.values() for each in rank.values()]
        assert not any(map(is_in_file, stored))
