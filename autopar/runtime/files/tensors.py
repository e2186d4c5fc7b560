"""Tensors in files of the user: `.npy`, `.npz` and `.safetensors`."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError, os_reason
from autopar.ir.expr.expression import Expr, IntExpr
from autopar.runtime.files.atomic_write import atomic_write
from autopar.runtime.kernels.table import IR_DTYPES
from autopar.runtime.ports.boxes import whole_box
from autopar.runtime.ports.ports import Arrays
from autopar.runtime.weights.sources import check_regular
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights

SUFFIXES = (".npz", ".safetensors")

MAX_HEADER_BYTES = 1 << 16
"""How much of an array is looked at to know what it is; numpy writes less."""

Type = tuple[str, tuple[IntExpr, ...]]
"""dtype and shape, in which sizes may be open."""

Types = Mapping[str, Type]
"""What inputs have to be, by label."""


def read_arrays(specs: Iterable[str], expected: Types) -> dict[str, Any]:
    """Returns arrays by name from `name=file.npy`, or from files that hold several.

    `.npy` files are mapped, so that a rank reads only its piece. Of what is in another file and is
    no input, or of another type, nothing is read: it comes as a tensor on the meta device.

    Args:
        specs: The files.
        expected: What inputs have to be.

    Raises:
        InvalidInputError: If a file can't be read or a name is given twice.
    """
    arrays: dict[str, Any] = {}
    for spec in specs:
        name, equals, path = spec.partition("=")
        found = {name: _read_npy(Path(path))} if equals else _read_several(Path(spec), expected)
        if twice := sorted(found.keys() & arrays.keys()):
            raise InvalidInputError(f"--input {spec}: {', '.join(twice)} is given twice")
        arrays.update(found)
    return arrays


def save_arrays(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors by name to an `.npz` or `.safetensors` file.

    The file appears when it is complete; until then an older one stays.

    Raises:
        InvalidInputError: If the file can't be written or can't hold a dtype.
    """
    check_output(path)
    with atomic_write(path) as beside:
        if path.suffix == ".safetensors":
            write_weights(beside, tensors)
        else:
            import numpy

            numpy.savez(beside, **{name: _numpy(name, tensor) for name, tensor in tensors.items()})


def check_output(path: Path) -> None:
    """Refuses an output file that can't be written, before anything runs.

    Raises:
        InvalidInputError: If the suffix is unknown, the path is a folder's, or there is no folder
            for it that can be written.
    """
    if path.suffix not in SUFFIXES:
        raise InvalidInputError(f"output {path}: the name must end in {' or '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise InvalidInputError(f"output {path}: the folder {path.parent} doesn't exist")
    if path.is_dir():
        raise InvalidInputError(f"output {path}: it is a folder; name a file")
    if not os.access(path.absolute().parent, os.W_OK):
        raise InvalidInputError(f"output {path}: the folder {path.parent} can't be written")


def _numpy(name: str, tensor: Tensor) -> Any:
    try:
        return tensor.detach().cpu().numpy()
    except TypeError as error:
        dtype = IR_DTYPES[tensor.dtype]
        raise InvalidInputError(
            f"output {name!r} is {dtype}, which .npz can't hold; write a .safetensors file"
        ) from error


def _read_npy(path: Path) -> Any:
    import numpy

    if path.suffix != ".npy":
        raise InvalidInputError(f"input {path}: after NAME= expected a .npy file")
    check_regular(path, "input")
    try:
        return numpy.lib.format.open_memmap(path, mode="c")
    except Exception as error:  # Headers go through Python's own parsers, which raise anything.
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> InvalidInputError:
    reason = os_reason(error) if isinstance(error, OSError) else str(error) or type(error).__name__
    return InvalidInputError(f"can't read input {path}: {reason}")


def _read_several(path: Path, expected: Types) -> Arrays:
    if path.suffix == ".safetensors":
        return _read_safetensors(path, expected)
    if path.suffix == ".npz":
        return _read_npz(path, expected)
    raise InvalidInputError(f"input {path}: expected NAME=FILE.npy, or a .npz or .safetensors file")


def _read_safetensors(path: Path, expected: Types) -> Arrays:
    with WeightFile(path) as file:
        return {
            name: file.read(name, *entry, whole_box(entry.shape))
            if _fits(expected.get(name), IR_DTYPES[entry.dtype], entry.shape)
            else _unread(path, name, *entry)
            for name, entry in file.entries.items()
        }


def _fits(expected: Type | None, dtype: str | None, shape: Sequence[int]) -> bool:
    """Returns whether an array is as one is expected; open sizes are for others to judge."""
    if expected is None or expected[0] != dtype or len(expected[1]) != len(shape):
        return False
    pairs = zip(expected[1], shape, strict=True)
    return all(isinstance(size, Expr) or size == have for size, have in pairs)


def _read_npz(path: Path, expected: Types) -> Arrays:
    check_regular(path, "input")
    try:
        with zipfile.ZipFile(path) as archive:
            names = [each for each in archive.namelist() if each.endswith(".npy")]
            return {
                (name := each.removesuffix(".npy")): _read_member(
                    path, name, archive, each, expected.get(name)
                )
                for each in names
            }
    except InvalidInputError:
        raise
    except Exception as error:  # As do archives, and what unpacks them.
        raise _unreadable(path, error) from error


def _read_member(
    path: Path, name: str, archive: zipfile.ZipFile, member: str, expected: Type | None
) -> Any:
    """Reads an array of an archive, whose data may be much more than the archive."""
    import numpy

    shape, dtype = _npy_header(archive, member)
    found = _torch_dtype(path, name, dtype)
    if not _fits(expected, IR_DTYPES.get(found), shape):
        return _unread(path, name, found, shape)
    with archive.open(member) as file:
        return numpy.lib.format.read_array(file, allow_pickle=False)


def _npy_header(archive: zipfile.ZipFile, member: str) -> tuple[tuple[int, ...], Any]:
    """Returns the shape and dtype of an array without reading it."""
    from numpy.lib import format as npy

    with archive.open(member) as file:
        start: IO[bytes] = io.BytesIO(file.read(MAX_HEADER_BYTES))
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    version = npy.read_magic(start)
    if version not in read:
        raise ValueError(f"version {version} of the format of arrays is unknown")
    shape, _, dtype = read[version](start)
    return shape, dtype


def _torch_dtype(path: Path, name: str, dtype: Any) -> torch.dtype:
    import numpy

    try:
        return torch.as_tensor(numpy.empty(0, dtype)).dtype
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"can't read input {path}: array {name!r} has dtype {dtype}, which tensors can't have"
        ) from error


def _unread(path: Path, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Returns a tensor without content for one that no input is, which needn't be read."""
    try:
        return torch.empty(shape, dtype=dtype, device="meta")
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(
            f"can't read input {path}: {name!r} has shape {list(shape)}, which no tensor has"
        ) from error
