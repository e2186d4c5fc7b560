"""Input and output files of the user."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from autopar.ir.errors import InvalidInputError
from autopar.runtime.files import read_arrays, save_arrays


def test_arrays_come_back_as_saved(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([True, False])}
    for suffix in (".npz", ".safetensors"):
        path = tmp_path / f"arrays{suffix}"
        save_arrays(path, tensors)
        found = read_arrays([str(path)])
        assert all(torch.equal(torch.as_tensor(found[n]), t) for n, t in tensors.items())


def test_one_array_is_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    found = read_arrays([f"x={tmp_path / 'a.npy'}"])
    assert isinstance(found["x"], np.memmap)


def test_what_npz_cannot_hold_is_said(tmp_path: Path) -> None:
    tensors = {"logits": torch.ones(1, dtype=torch.bfloat16)}
    with pytest.raises(InvalidInputError, match=r"output 'logits' is bf16.*\.safetensors"):
        save_arrays(tmp_path / "a.npz", tensors)
    save_arrays(tmp_path / "a.safetensors", tensors)


def npy(header: str) -> bytes:
    """A .npy file without elements."""
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("x={0}/missing.npy", "can't read input .*missing.npy"),
        ("{0}/missing.npz", "can't read input .*missing.npz"),
        ("{0}/a.txt", "expected NAME=FILE.npy"),
        ("x={0}/a.txt", "expected a .npy file"),
        ("x={0}/bad.npy", "can't read input .*bad.npy"),
        ("{0}/bad.npz", "can't read input .*bad.npz"),
        ("x={0}/cut.npy", r"can't read input .*cut.npy: .*EOF in multi-line"),
        ("x={0}/long.npy", "can't read input .*long.npy: Python int too large"),
        ("{0}/long.npz", "can't read input .*long.npz: Python int too large"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, spec: str, message: str) -> None:
    (tmp_path / "bad.npy").write_bytes(b"nonsense")
    (tmp_path / "bad.npz").write_bytes(b"nonsense")
    (tmp_path / "cut.npy").write_bytes(npy("{'shape': ("))
    long = npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**64},)}}")
    (tmp_path / "long.npy").write_bytes(long)
    with zipfile.ZipFile(tmp_path / "long.npz", "w") as archive:
        archive.writestr("x.npy", long)
    with pytest.raises(InvalidInputError, match=message):
        read_arrays([spec.format(tmp_path)])


def test_an_input_given_twice(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(InvalidInputError, match="x is given twice"):
        read_arrays([f"x={tmp_path / 'a.npy'}"] * 2)


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"must end in .npz or .safetensors"):
        save_arrays(tmp_path / "a.txt", {})
    with pytest.raises(InvalidInputError, match=r"folder .*none doesn't exist"):
        save_arrays(tmp_path / "none" / "a.npz", {})
