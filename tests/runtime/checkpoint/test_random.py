"""Tensors of any type on any mesh, saved, damaged, and read on another mesh: right, or refused."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from autopar.base.errors import InvalidInputError
from autopar.runtime.checkpoint.checkpoint import open_checkpoint, read_checkpoint, write_checkpoint
from autopar.runtime.checkpoint.files import rectangles_of
from autopar.runtime.checkpoint.series import Place
from autopar.runtime.files.digest import tensor_bytes
from autopar.runtime.job.messages import Messages
from autopar.runtime.kernels.table import TORCH_DTYPES
from autopar.runtime.ports.boxes import Box, Extent, box_shape, is_empty, take
from autopar.runtime.state.state import Content, Held, Key, Piece

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is disabled", "ignore:ComplexHalf support is experimental"
)

MESHES = ((1,), (2,), (3,), (3, 2), (2, 2, 2))
Boxes = list[Box]


def drawn_tensor(draw: random.Random) -> Tensor:
    """Returns a tensor of any dtype and shape, small ones and empty ones too, with any bits."""
    dtype = draw.choice(list(TORCH_DTYPES.values()))
    shape = [draw.choice((0, 1, 2, 3, 4, 6, 7, 12)) for _ in range(draw.choice((0, 1, 1, 2, 2, 3)))]
    if draw.random() < 0.05:
        shape = [517, 301]
    raw = bytearray(draw.randbytes(prod(shape) * dtype.itemsize))
    if dtype == torch.bool:
        raw = bytearray(byte & 1 for byte in raw)
    flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.reshape(shape).clone()


def drawn_boxes(draw: random.Random, shape: Sequence[int], mesh: Sequence[int]) -> Boxes:
    """Returns which piece each rank of a mesh holds: each axis splits a sub-dimension, or none."""
    subs = [drawn_factors(draw, size) for size in shape]
    places = [(dim, at) for dim, factors in enumerate(subs) for at in range(len(factors))]
    draw.shuffle(places)
    split = {}
    for axis, size in enumerate(mesh):
        if places and draw.random() < 0.75:
            dim, at = places.pop()
            split[dim, at] = axis, drawn_cuts(draw, subs[dim][at], size)

    def extent(dim: int, at: int, coords: Sequence[int]) -> Extent:
        size = subs[dim][at]
        if (dim, at) not in split:
            return Extent(size, 0, size)
        axis, cuts = split[dim, at]
        start, end = cuts[coords[axis] : coords[axis] + 2]
        return Extent(size, start, end - start)

    return [
        tuple(
            tuple(extent(dim, at, coords) for at in range(len(factors)))
            for dim, factors in enumerate(subs)
        )
        for coords in itertools.product(*map(range, mesh))
    ]


def drawn_factors(draw: random.Random, size: int) -> list[int]:
    divisors = [each for each in range(2, size) if size % each == 0]
    if not divisors or draw.random() < 0.6:
        return [size]
    first = draw.choice(divisors)
    return [first, size // first]


def drawn_cuts(draw: random.Random, size: int, parts: int) -> list[int]:
    return [0, *sorted(draw.randint(0, size) for _ in range(parts - 1)), size]


class Case:
    """Tensors, and how two meshes hold them."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.tensors = [drawn_tensor(draw) for _ in range(draw.randint(1, 6))]
        self.keys: list[tuple[Key, ...]] = [
            tuple(("model", f"t{at}.{name}") for name in range(draw.choice((1, 1, 1, 2))))
            for at in range(len(self.tensors))
        ]
        self.values: dict[Key, object] = {("trainer", "steps"): draw.randrange(2**40)}
        self.size = 0

    def contents(self, fill: Callable[[Tensor, Box], Tensor]) -> list[Content]:
        """Returns what each rank of a drawn mesh holds."""
        mesh = self.draw.choice(MESHES)
        self.size = prod(mesh)
        boxes = [drawn_boxes(self.draw, tensor.shape, mesh) for tensor in self.tensors]
        return [
            Content(
                [
                    self.held(keys, tensor, of_tensor[rank], fill)
                    for keys, tensor, of_tensor in zip(self.keys, self.tensors, boxes, strict=True)
                ],
                self.values,
            )
            for rank in range(self.size)
        ]

    def held(
        self, keys: tuple[Key, ...], tensor: Tensor, box: Box, fill: Callable[[Tensor, Box], Tensor]
    ) -> Held:
        shape = tuple(tensor.shape)
        pieces = [] if is_empty(box) else [Piece(fill(tensor, box), box, shape)]
        return Held(keys, tensor.dtype, shape, pieces)

    def save(self, folder: Path) -> None:
        """Saves on a mesh, whose ranks are threads; of what several hold, one of them writes."""
        ranks = list(range(len(contents := self.contents(take))))
        self.draw.shuffle(ranks)
        known: set[tuple[int, Box]] = set()
        for rank in ranks:
            held = contents[rank].tensors
            for at, each in enumerate(held):
                if each.pieces and (at, each.pieces[0].box) in known:
                    held[at] = each._replace(pieces=())  # type: ignore[index]
                known.update((at, piece.box) for piece in each.pieces)
        store = dist.HashStore()
        threads = [
            threading.Thread(target=self.save_rank, args=(folder, contents[rank], store, rank))
            for rank in ranks
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert folder.is_dir()

    def save_rank(self, folder: Path, content: Content, store: Store, rank: int) -> None:
        messages = Messages(store, rank, self.size)
        write_checkpoint(Place(folder), content, rectangles_of(content), messages)

    def check(self, folder: Path) -> None:
        """Reads on a mesh, and compares every bit."""
        for content in self.contents(noise):
            values = read_checkpoint(folder, open_checkpoint(folder), content)
            assert values == self.values
            for held, tensor in zip(content.tensors, self.tensors, strict=True):
                for piece in held.pieces:
                    expected = take(tensor, piece.box)
                    assert tensor_bytes(piece.tensor) == tensor_bytes(expected)

    def check_with_torch(self, folder: Path) -> None:
        """Reads with DCP, which can't read what is empty into every type."""
        read = {
            ".".join(map(str, keys[0])): torch.zeros_like(tensor)
            for keys, tensor in zip(self.keys, self.tensors, strict=True)
            if tensor.numel()
        }
        dcp.load(read, checkpoint_id=folder, no_dist=True)
        whole = [tensor for tensor in self.tensors if tensor.numel()]
        for found, tensor in zip(read.values(), whole, strict=True):
            assert tensor_bytes(found) == tensor_bytes(tensor)


def noise(tensor: Tensor, box: Box) -> Tensor:
    size = prod(box_shape(box)) * tensor.dtype.itemsize
    filled = torch.full((size,), tensor.dtype == torch.bool, dtype=torch.uint8)
    return filled.view(tensor.dtype).reshape(box_shape(box))


def flip(draw: random.Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def zero(draw: random.Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    at = draw.randrange(len(content) + 1)
    content[at : at + 512] = bytes(len(content[at : at + 512]))
    path.write_bytes(content)


def cut(draw: random.Random, path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(len(content) + 1)])


def grow(draw: random.Random, path: Path) -> None:
    content = path.read_bytes()
    at = draw.randrange(len(content) + 1)
    path.write_bytes(content[:at] + draw.randbytes(draw.choice((1, 64))) + content[at:])


def remove(draw: random.Random, path: Path) -> None:
    path.unlink()


def swap(draw: random.Random, path: Path) -> None:
    other = draw.choice(sorted(path.parent.iterdir()))
    path.write_bytes(other.read_bytes())


DAMAGES = (flip, flip, flip, zero, cut, grow, remove, swap)


def damaged(case: Case, folder: Path, copy: Path) -> bool:
    """Damages a file of a copy and reads it; returns whether it was refused."""
    shutil.copytree(folder, copy)
    case.draw.choice(DAMAGES)(case.draw, case.draw.choice(sorted(copy.iterdir())))
    try:
        case.check(copy)
    except InvalidInputError:
        return True
    finally:
        shutil.rmtree(copy)
    return False


def run(seeds: Sequence[int], folder: Path, damages: int) -> tuple[int, int]:
    """Returns how many damaged checkpoints were refused, and how many read as they were saved."""
    refused = read = 0
    for seed in seeds:
        case = Case(seed)
        try:
            case.save(folder / "c")
            case.check(folder / "c")
            case.check_with_torch(folder / "c")
            for _ in range(damages):
                if damaged(case, folder / "c", folder / "d"):
                    refused += 1
                else:
                    read += 1
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        shutil.rmtree(folder / "c")
    return refused, read


def test_some(tmp_path: Path) -> None:
    refused, _ = run(range(30), tmp_path, 4)
    assert refused > 50


@pytest.mark.slow
def test_many(tmp_path: Path) -> None:
    refused, read = run(range(1000, 1600), tmp_path, 10)
    print(f"{refused} damaged ones refused, {read} read as they were saved")
    assert refused > 2500
