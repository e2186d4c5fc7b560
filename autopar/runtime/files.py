"""Tensors in files of the user: `.npy`, `.npz` and `.safetensors`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from autopar.ir.errors import InvalidInputError
from autopar.runtime.boxes import whole_box
from autopar.runtime.kernels import IR_DTYPES
from autopar.runtime.ports import Arrays
from autopar.runtime.replacing import replacing
from autopar.runtime.weight_writing import write_weights
from autopar.runtime.weights import WeightFile

SUFFIXES = (".npz", ".safetensors")


def read_arrays(specs: Iterable[str]) -> dict[str, Any]:
    """Returns arrays by name from `name=file.npy`, or from files that hold several.

    `.npy` files are mapped, so that a rank reads only its piece.

    Raises:
        InvalidInputError: If a file can't be read or a name is given twice.
    """
    arrays: dict[str, Any] = {}
    for spec in specs:
        name, equals, path = spec.partition("=")
        found = {name: _read_npy(Path(path))} if equals else _read_several(Path(spec))
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
    with replacing(path) as beside:
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
    try:
        return numpy.load(path, mmap_mode="c", allow_pickle=False)
    except Exception as error:  # Headers go through Python's own parsers, which raise anything.
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> InvalidInputError:
    reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    return InvalidInputError(f"can't read input {path}: {reason}")


def _read_several(path: Path) -> Arrays:
    import numpy

    if path.suffix == ".safetensors":
        with WeightFile(path) as file:
            return {
                name: file.read(name, entry.dtype, entry.shape, whole_box(entry.shape))
                for name, entry in file.entries.items()
            }
    if path.suffix != ".npz":
        raise InvalidInputError(
            f"input {path}: expected NAME=FILE.npy, or a .npz or .safetensors file"
        )
    try:
        with numpy.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # As do archives, and what unpacks them.
        raise _unreadable(path, error) from error
