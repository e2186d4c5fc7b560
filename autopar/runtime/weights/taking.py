"""Takes weights from files over into tensors that are there, all or none of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from autopar.runtime.files.digest import content_of
from autopar.runtime.ports.boxes import Box, Region
from autopar.runtime.weights.names import check_names
from autopar.runtime.weights.weights import WeightFile

SMALL = 1 << 16
"""Bytes of a tensor up to which all of it is looked at."""

PLACES = 16
"""Of a larger one, at equal distances, that are looked at."""

PIECE = 1 << 12
"""Bytes that are read at each place."""


class Part(NamedTuple):
    """What a process holds of a tensor.

    Attributes:
        tensor: Its memory.
        box: Where that is in the region.
        region: The part of the whole tensor that the box is a piece of; None for all of it.
    """

    tensor: Tensor
    box: Box
    region: Region | None = None


class Wanted(NamedTuple):
    """A tensor that is to be taken over.

    Attributes:
        names: Those that it may have in the file.
        dtype, shape: What it is as a whole.
        parts: What this process holds of it.
    """

    names: tuple[str, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: Sequence[Part]


def expect_weights(path: str | os.PathLike[str], tensors: Sequence[Wanted]) -> None:
    """Makes sure that a safetensors file, or a folder with several, has tensors as they must be.

    Raises:
        InvalidInputError: If the file can't be read, or lacks a tensor or has it otherwise.
    """
    with WeightFile(path) as file:
        _expect(file, tensors)


def sampled_contents(path: str | os.PathLike[str], tensors: Sequence[Wanted]) -> dict[str, str]:
    """Returns what tensors of a file are and hold, by name: all of small ones, samples of others.

    Raises:
        InvalidInputError: If the file can't be read.
    """
    with WeightFile(path) as file:
        found = {wanted.names[0]: file.mapped(_name(file, wanted)) for wanted in tensors}
        return {name: content_of(tensor, _samples(tensor)) for name, tensor in found.items()}


def _samples(tensor: Tensor) -> list[Tensor]:
    flat = tensor.view(-1)
    if tensor.nbytes <= SMALL:
        return [flat]
    count = PIECE // tensor.element_size()
    last = flat.numel() - count
    return [flat.narrow(0, at * last // (PLACES - 1), count) for at in range(PLACES)]


def take_weights(path: str | os.PathLike[str], tensors: Sequence[Wanted]) -> None:
    """Reads what this process holds of tensors from a safetensors file, or a folder with several.

    Raises:
        InvalidInputError: If the file can't be read, or lacks a tensor or has it otherwise. No
            tensor is changed then.
    """
    with WeightFile(path) as file, torch.no_grad():
        _expect(file, tensors)
        for wanted in tensors:
            for part, read in zip(wanted.parts, _read(file, wanted), strict=True):
                part.tensor.copy_(read)


def _expect(file: WeightFile, tensors: Sequence[Wanted]) -> None:
    check_names(file.given, [wanted.names for wanted in tensors])
    for wanted in tensors:
        file.expect(_name(file, wanted), wanted.dtype, wanted.shape)
    for wanted in tensors:
        if file.entries[_name(file, wanted)].dtype != wanted.dtype:
            # A number may be too large, which only who reads it can tell.
            _read(file, wanted)


def _name(file: WeightFile, wanted: Wanted) -> str:
    return next((name for name in wanted.names if name in file.entries), wanted.names[0])


def _read(file: WeightFile, wanted: Wanted) -> list[Tensor]:
    name = _name(file, wanted)
    return [
        file.read(name, wanted.dtype, wanted.shape, part.box, region=part.region)
        for part in wanted.parts
    ]
