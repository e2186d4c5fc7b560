"""Damage of a build's weights is noticed by who reads what is damaged, and named."""

from __future__ import annotations

import math
import random
from functools import partial
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from safetensors import safe_open
from safetensors.torch import load_file

from autopar.base.errors import InvalidInputError
from autopar.ir.builds.files import Build, read_build
from autopar.ir.builds.manifest import Manifest
from autopar.runtime.api import load, run, verify
from autopar.runtime.files.checked_build import check_files
from autopar.runtime.ports.boxes import Box, Extent, exposed, take, whole_box
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.weights import digests as weight_digests
from autopar.runtime.weights.digests import touched
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_digested
from tests.runtime.training.steps import LAYOUTS, training_build

ROWS = 4096


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """What has two weights of 4 MiB, of 16 blocks each, and one of few bytes."""
    torch.manual_seed(0)
    weights = {name: torch.randn(ROWS, 256) for name in ("first", "second")}
    path = tmp_path / "weights.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_digests, "BLOCK_BYTES", 1 << 18)
        entry, digests = write_digested(path, {**weights, "tiny": torch.ones(3)})
    return Build(tmp_path, Manifest("0", files=(entry,), weights=digests), "")


def start_of(path: Path, name: str) -> int:
    """Returns where a tensor starts in a file."""
    size = int.from_bytes(path.read_bytes()[:8], "little")
    with safe_open(path, framework="pt") as file:
        sizes = {each: file.get_tensor(each).nbytes for each in file.keys()}  # noqa: SIM118
    before = sorted(sizes)[: sorted(sizes).index(name)]
    return 8 + size + sum(sizes[each] for each in before)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 16]))


def rows(start: int, length: int) -> Box:
    return ((Extent(ROWS, start, length),), (Extent(256, 0, 256),))


def read(build: Build, name: str, box: Box) -> None:
    with WeightFile(build=build) as file:
        file.read(name, torch.float32, (ROWS, 256), box)


def test_whoever_reads_a_flipped_bit_is_told_the_tensor(build: Build) -> None:
    assert build.weights_path is not None
    flip(build.weights_path, start_of(build.weights_path, "second") + 1000 * 1024 + 3)
    read(build, "first", whole_box((ROWS, 256)))
    read(build, "second", rows(2048, 2048))
    for box in (
        rows(1000, 1),
        whole_box((ROWS, 256)),
        ((Extent(ROWS, 0, ROWS),), (Extent(256, 7, 3),)),
        ((Extent(4, 0, 4), Extent(1024, 999, 2)), (Extent(256, 0, 256),)),
    ):
        with pytest.raises(
            InvalidInputError,
            match=r"weights\.safetensors is damaged: tensor 'second', in its bytes 786432 to"
            r" 1048576, isn't as it was written; compile the model again, or copy",
        ):
            read(build, "second", box)


def test_any_flipped_bit_is_noticed(build: Build) -> None:
    assert build.weights_path is not None
    path, draw = build.weights_path, random.Random(0)
    size = path.stat().st_size
    places = [*range(0, 400, 7), *(draw.randrange(size) for _ in range(30)), size - 1]
    for at in places:
        flip(path, at)
        with pytest.raises(InvalidInputError, match=r"weights\.safetensors is damaged"):
            check_files(build)
        flip(path, at)
    check_files(build)


def test_all_damaged_tensors_are_named(build: Build) -> None:
    assert build.weights_path is not None
    for name in ("first", "tiny"):
        flip(build.weights_path, start_of(build.weights_path, name))
    with pytest.raises(InvalidInputError, match=r"tensor 'first'.*tensor 'tiny'"):
        check_files(build)


@given(st.data())
def test_the_blocks_that_are_compared_are_those_with_elements(data: st.DataObject) -> None:
    """By brute force over all elements."""

    def extent() -> Extent:
        size = data.draw(st.integers(1, 5))
        start = data.draw(st.integers(0, size))
        return Extent(size, start, data.draw(st.integers(0, size - start)))

    counts = data.draw(st.lists(st.integers(1, 3), max_size=3))
    box: Box = tuple(tuple(extent() for _ in range(count)) for count in counts)
    shape = [math.prod(extent.size for extent in dim) for dim in box]
    whole = torch.arange(math.prod(shape)).reshape(shape)
    block = data.draw(st.integers(1, 12))
    part = exposed(whole, box)
    expected = sorted({element // block for element in part.flatten().tolist()})
    assert touched(whole, part, block * whole.element_size()) == expected


SMALL = (6, 40)


@pytest.fixture(scope="module")
def many_blocks(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """What has a weight of 960 bytes, of 60 blocks."""
    path = tmp_path_factory.mktemp("many") / "weights.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_digests, "BLOCK_BYTES", 16)
        entry, digests = write_digested(path, {"w": torch.randn(SMALL)})
    return Build(path.parent, Manifest("0", files=(entry,), weights=digests), "")


@given(st.data())
def test_a_piece_is_right_or_refused(many_blocks: Build, data: st.DataObject) -> None:
    """Of a file with a flipped bit, pieces are read that have it, or share a block, or don't."""

    def extent(size: int) -> Extent:
        start = data.draw(st.integers(0, size))
        return Extent(size, start, data.draw(st.integers(0, size - start)))

    assert many_blocks.weights_path is not None
    path = many_blocks.weights_path
    rows = data.draw(st.sampled_from([(6,), (2, 3)]))
    columns = data.draw(st.sampled_from([(40,), (5, 8)]))
    boxes = [
        (tuple(map(extent, rows)), tuple(map(extent, columns)))
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    whole = load_file(path)["w"]
    numbers = torch.arange(whole.numel()).reshape(SMALL)
    block = data.draw(st.integers(0, 59))
    blocks = [{each // 4 for each in take(numbers, box).flatten().tolist()} for box in boxes]
    shared = data.draw(st.booleans())
    flip(path, at := path.stat().st_size - whole.nbytes + 16 * block)
    try:
        with WeightFile(build=many_blocks) as file:
            read = [file.read("w", torch.float32, SMALL, box, shared=shared) for box in boxes]
        assert not any(block in touched for touched in blocks)
        for found, box in zip(read, boxes, strict=True):
            assert torch.equal(found, take(whole, box))
    except InvalidInputError:
        assert any(block in touched for touched in blocks)
    finally:
        flip(path, at)


def damaged_training(folder: Path) -> Path:
    path = training_build(folder / "b", LAYOUTS[5])
    weights = path / "weights.safetensors"
    flip(weights, weights.stat().st_size - 1)
    return path


def test_a_trainer_does_not_start_from_damaged_weights(tmp_path: Path) -> None:
    path = damaged_training(tmp_path)
    with pytest.raises(InvalidInputError, match=r"weights\.safetensors is damaged: tensor '"):
        open_trainer(path, virtual=True)
    with pytest.raises(InvalidInputError, match=r"weights\.safetensors is damaged: tensor '"):
        load(path, virtual=True)


def test_nothing_runs_on_damaged_weights(tmp_path: Path) -> None:
    path = damaged_training(tmp_path)
    in_here = (partial(run, virtual=True), partial(run, serial=True))
    for use in (*in_here, verify):
        with pytest.raises(InvalidInputError, match=r"weights\.safetensors is damaged: tensor '"):
            use(path, {})
    assert read_build(path).serial
