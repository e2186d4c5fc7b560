"""Weights: a rank's pieces, read from a safetensors file that is never read as a whole.

The file is mapped into memory and only the pages of the rank's pieces are touched, whatever the
piece: a block of rows, a block of columns, or the sub-dimensions of a fused dimension.

The safetensors package reads; `weight_writing` writes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from autopar.base.arguments import PATH, expect
from autopar.base.errors import InvalidInputError, near_misses
from autopar.ir.builds.files import Build
from autopar.ir.builds.manifest import WeightDigests
from autopar.runtime.files.digest import tensor_bytes
from autopar.runtime.job.closing import Closing
from autopar.runtime.ports.boxes import Box, Region, box_shape, exposed, narrowed, take
from autopar.runtime.weights.digests import Checking
from autopar.runtime.weights.dtypes import converted, is_convertible
from autopar.runtime.weights.sources import sources_of
from autopar.runtime.weights.writing import DTYPE_NAMES, Entry

STORED_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
"""By their names in safetensors files."""

_COMPILE_AGAIN = "compile again"
_GIVE_OTHERS = "give weights of the model that was compiled"


class _Open(NamedTuple):
    path: Path
    file: Any
    remedy: str
    checking: Checking | None


class WeightFile(Closing):
    """Safetensors files, open for reading pieces.

    A context manager. Tensors that were read stay valid after it is closed.

    Args:
        paths: The files, or folders of Hugging Face's (see `weight_sources`); the first that has
            a tensor counts.
        build: A build whose weights count after those. What is read of them is compared with
            their digests, if it has any; whether it was right is known when the file is closed.

    Raises:
        InvalidInputError: If a file is missing or is not a safetensors file, or the build's is
            damaged.

    Attributes:
        entries: The tensors, by name.
        given: Names of the tensors that each of `paths` has.
    """

    def __init__(self, *paths: str | os.PathLike[str], build: Build | None = None) -> None:
        self.entries: dict[str, Entry] = {}
        self.given: dict[str, frozenset[str]] = {}
        self._files: dict[str, _Open] = {}
        self._checking: Checking | None = None
        for path in paths:
            self._open_given(path)
        if build is not None and build.weights_path is not None:
            self._open_checked(build.weights_path, build.manifest.weights)

    def _open_given(self, path: str | os.PathLike[str]) -> None:
        names: dict[str, Path] = {}
        for source in sources_of(path):
            found = set(self._open(source.path, _GIVE_OTHERS))
            if missing := [name for name in source.names if name not in found]:
                raise InvalidInputError(
                    f"{source.path} has no tensor {missing[0]!r}, though the index beside it says"
                    " so; copy the whole folder again"
                )
            if twice := [name for name in found if name in names]:
                raise InvalidInputError(
                    f"tensor {twice[0]!r} is in {names[twice[0]]} and in {source.path}; which of"
                    " them counts can't be told, so take one away"
                )
            names.update(dict.fromkeys(found, source.path))
        self.given[str(path)] = frozenset(names)

    def _open_checked(self, path: Path, digests: WeightDigests | None) -> None:
        self._checking = None if digests is None else Checking(path, digests)
        self._open(path, _COMPILE_AGAIN, self._checking)

    def _open(self, path: Path, remedy: str, checking: Checking | None = None) -> list[str]:
        """Opens a file and returns the names of its tensors."""
        try:
            file = cast(Any, safe_open(path, framework="pt"))
        except OSError as error:
            raise InvalidInputError(f"can't read weights from {path}: {error}") from error
        except SafetensorError as error:
            raise InvalidInputError(
                f"{path} is not a complete safetensors file ({error}); write it again"
            ) from error
        names = list(file.keys())
        for name in names:
            if name in self.entries:
                continue
            stored = file.get_slice(name)
            if (dtype := STORED_DTYPES.get(stored.get_dtype())) is None:
                raise InvalidInputError(
                    f"{path}: tensor {name!r} has the unsupported dtype {stored.get_dtype()}"
                )
            self.entries[name] = Entry(dtype, tuple(stored.get_shape()))
            self._files[name] = _Open(path, file, remedy, checking)
        return names

    def read(
        self,
        name: str,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        box: Box,
        device: torch.device | str = "cpu",
        region: Region | None = None,
        shared: bool = False,
    ) -> Tensor:
        """Returns a rank's piece of a tensor.

        It is in memory of its own, or in that to which the file is mapped, of which there is one
        copy for all processes of a host. Who writes there gets pages of its own.

        Args:
            name: Its name in the file.
            dtype: What the program expects.
            shape: The global shape that the program expects.
            box: The rank's piece.
            device: Where the piece goes.
            region: The part of the tensor that the box is a piece of; all of it by default.
            shared: Whether it may be memory to which the file is mapped. It is where it can be: in
                main memory, of a contiguous piece, as the file has it. The file must be a build's,
                which nobody writes to: a new build takes the place of its folder.

        Raises:
            InvalidInputError: If there is no such tensor or it is of another dtype or shape.
        """
        self.expect(name, dtype, shape)
        path, file, _, checking = self._files[name]
        whole = file.get_tensor(name)
        mapped = narrowed(whole, region)
        if checking is not None:
            part = exposed(mapped, box)
            as_it_is = whole.dtype == dtype and torch.device(device).type == "cpu"
            if as_it_is and part.is_contiguous():
                if not (shared and part.numel() and _is_aligned(part)):
                    return checking.copied(name, whole, part).reshape(box_shape(box))
                checking.read(name, whole, part)
                return _by_itself(part).reshape(box_shape(box))
            checking.read(name, whole, part)
        piece = converted(take(mapped, box), dtype, f"weight {name!r} in {path}")
        shares = piece.untyped_storage().data_ptr() == mapped.untyped_storage().data_ptr()
        return piece.to(device, copy=shares)

    def mapped(self, name: str) -> Tensor:
        """Returns a tensor that is there, of which nothing is read before somebody looks at it."""
        found: Tensor = self._files[name].file.get_tensor(name)
        return found

    def expect(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Refuses a tensor that isn't what a program expects.

        Raises:
            InvalidInputError: If there is no such tensor or it is of another dtype or shape.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise InvalidInputError(self._absent(name))
        if entry.shape != shape or not is_convertible(entry.dtype, dtype):
            found = self._files[name]
            raise InvalidInputError(
                f"weight {name!r} in {found.path} is {_type(entry.dtype, entry.shape)}, the program"
                f" expects {_type(dtype, shape)}; {found.remedy}"
            )

    def check(self, name: str) -> None:
        """Compares all of a tensor with its digests; the file's closing says what it found."""
        _, file, _, checking = self._files[name]
        if checking is not None:
            whole = file.get_tensor(name)
            checking.read(name, whole, whole)

    def _absent(self, name: str) -> str:
        if not self._files:
            return (
                f"a build without weights has no weight {name!r}; give a safetensors file with"
                " weights=, or compile a model whose tensors have values"
            )
        places = dict.fromkeys(str(each.path) for each in self._files.values())
        hint = near_misses(name, self.entries)
        remedy = next(iter(self._files.values())).remedy
        return f"{' and '.join(places)} has no weight {name!r}{hint}; {remedy}"

    def close(self) -> None:
        """Unmaps the files.

        Raises:
            InvalidInputError: If something of what was read is damaged.
        """
        self._files.clear()
        checking, self._checking = self._checking, None
        if checking is not None:
            checking.close()


def weight_paths(given: str | Path | Sequence[str | Path]) -> tuple[str | Path, ...]:
    """Returns one path or several as several."""
    paths = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    for path in paths:
        expect(replace(PATH, words="the path of a file or folder, or a list of them"), weights=path)
    return paths


def _is_aligned(part: Tensor) -> bool:
    """Returns whether kernels may read a tensor where it is, also as one of complex numbers.

    Those of complex128 end the process otherwise; files align tensors to 8 bytes.
    """
    return part.data_ptr() % min(2 * part.element_size(), 16) == 0


def _by_itself(part: Tensor) -> Tensor:
    """Returns a contiguous part of a file's memory as a tensor that isn't a view of all of it."""
    return torch.frombuffer(tensor_bytes(part), dtype=part.dtype).view(part.shape)


def _type(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
