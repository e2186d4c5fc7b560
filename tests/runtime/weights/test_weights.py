"""Weights: pieces read exactly, files checked, written the same each time."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from safetensors.torch import load_file, save_file

from autopar.base.errors import InvalidInputError
from autopar.runtime.ports.boxes import Box, Extent, box_shape, place, take, whole_box
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights


@st.composite
def boxed_shapes(draw: st.DrawFn) -> Box:
    """A box of a tensor with 0 to 3 dimensions of 1 to 3 sub-dimensions."""

    def extent() -> Extent:
        size = draw(st.integers(1, 5))
        start = draw(st.integers(0, size))
        return Extent(size, start, draw(st.integers(0, size - start)))

    dims = draw(st.integers(0, 3))
    return tuple(tuple(extent() for _ in range(draw(st.integers(1, 3)))) for _ in range(dims))


def global_tensor(box: Box) -> torch.Tensor:
    shape = [torch.Size([extent.size for extent in dim]).numel() for dim in box]
    return torch.arange(torch.Size(shape).numel()).reshape(shape)


@given(boxed_shapes())
def test_a_piece_is_where_its_indices_say(box: Box) -> None:
    whole = global_tensor(box)
    piece = take(whole, box)
    assert piece.shape == box_shape(box)
    back = torch.full_like(whole, -1)
    place(back, piece, box)
    kept = back >= 0
    assert torch.equal(back[kept], whole[kept])
    assert int(kept.sum()) == piece.numel()


def test_sub_dimensions_of_a_fused_weight() -> None:
    """q, k and v side by side, two heads of two columns each: a rank holds head 1 of each."""
    box = ((Extent(3, 0, 3), Extent(2, 1, 1), Extent(2, 0, 2)),)
    assert take(torch.arange(12), box).tolist() == [2, 3, 6, 7, 10, 11]


def test_a_piece_of_a_part_of_a_stored_weight(tmp_path: Path) -> None:
    whole = torch.arange(24.0).reshape(8, 3)
    write_weights(tmp_path / "weights", {"w": whole})
    box = ((Extent(2, 1, 1), Extent(2, 0, 2)), (Extent(3, 0, 3),))
    with WeightFile(tmp_path / "weights") as file:
        piece = file.read("w", torch.float32, (8, 3), box, region=((3, 4), (0, 3)))
    assert torch.equal(piece, whole[5:7])


DTYPES = (torch.float32, torch.bfloat16, torch.float8_e5m2, torch.int64, torch.bool, torch.uint16)


def example() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    tensors = {str(dtype): torch.randint(0, 2, (6, 4)).to(dtype) for dtype in DTYPES}
    return {**tensors, "scalar": torch.tensor(3.0), "empty": torch.empty(0, 3)}


def test_pieces_of_every_dtype_also_from_files_of_others(tmp_path: Path) -> None:
    tensors = example()
    write_weights(tmp_path / "mine", tensors)
    save_file(tensors, tmp_path / "theirs", metadata={"format": "pt"})
    rows, columns = (
        ((Extent(6, 2, 3),), (Extent(4, 0, 4),)),
        ((Extent(6, 0, 6),), (Extent(4, 1, 2),)),
    )
    for path in (tmp_path / "mine", tmp_path / "theirs"):
        pieces = []
        with WeightFile(path) as file:
            for name, tensor in tensors.items():
                shape = tuple(tensor.shape)
                pieces.append((file.read(name, tensor.dtype, shape, whole_box(shape)), tensor))
                if tensor.numel() == 24:
                    pieces.append((file.read(name, tensor.dtype, shape, rows), tensor[2:5]))
                    pieces.append((file.read(name, tensor.dtype, shape, columns), tensor[:, 1:3]))
        # Also after the file is closed.
        assert all(p.is_contiguous() and p.tolist() == t.tolist() for p, t in pieces)


def test_what_is_written_is_a_safetensors_file(tmp_path: Path) -> None:
    tensors = example()
    write_weights(tmp_path / "w", tensors)
    loaded = load_file(tmp_path / "w")
    assert loaded.keys() == tensors.keys()
    assert all(loaded[name].tolist() == tensor.tolist() for name, tensor in tensors.items())


def test_the_same_tensors_give_the_same_bytes(tmp_path: Path) -> None:
    tensors = example()
    write_weights(tmp_path / "a", tensors)
    write_weights(tmp_path / "b", dict(reversed(tensors.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_piece_of_a_large_file_touches_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "large"
    write_weights(path, {"w": torch.zeros(4096, 1024)})
    box = ((Extent(4096, 17, 1),), (Extent(1024, 0, 1024),))
    with WeightFile(path) as file:
        before = _resident()
        file.read("w", torch.float32, (4096, 1024), box)
        assert _resident() - before < 4 * 2**20


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_wrong_weights_are_clear_errors(tmp_path: Path) -> None:
    write_weights(tmp_path / "w", {"fc.weight": torch.ones(2, 3)})
    with WeightFile(tmp_path / "w") as file:
        with pytest.raises(
            InvalidInputError, match=r"no weight 'fc.weigth'; did you mean fc.weight"
        ):
            file.read("fc.weigth", torch.float32, (2, 3), whole_box((2, 3)))
        with pytest.raises(InvalidInputError, match=r"is float32\[2, 3\].*expects float32\[3, 2\]"):
            file.read("fc.weight", torch.float32, (3, 2), whole_box((3, 2)))
    with pytest.raises(InvalidInputError, match=r"can't store torch.complex128"):
        write_weights(tmp_path / "c", {"c": torch.ones(1, dtype=torch.complex128)})


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00", b"\xff" * 64, b"\x02" + b"\x00" * 7 + b"[]", b"\x04" + b"\x00" * 7 + b"null"],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"weights|safetensors"):
        WeightFile(tmp_path / "w")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    write_weights(tmp_path / "w", example())
    whole = (tmp_path / "w").read_bytes()
    for length in range(0, len(whole), 37):
        (tmp_path / "w").write_bytes(whole[:length])
        with pytest.raises(InvalidInputError):
            WeightFile(tmp_path / "w")
    with pytest.raises(InvalidInputError, match=r"can't read weights from .*missing"):
        WeightFile(tmp_path / "missing")
