"""The first values of what calls write, to begin anew with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from autopar.ir.builds.files import Build
from autopar.ir.program import Program
from autopar.runtime.ports.ports import read_weights
from autopar.runtime.weights.weights import WeightFile


class FirstValues:
    """A rank's pieces as they were before the first call.

    Args:
        build: What has their values.
        files: Files that count before it.
    """

    def __init__(self, build: Build, files: Sequence[str | Path]) -> None:
        self._build = build
        self._files = files
        self._drawn: dict[str, Tensor] = {}

    def note_drawn(self, pieces: Mapping[str, Tensor]) -> None:
        """Keeps those by value name that were drawn, which no file has."""
        self._drawn = {name: piece.clone() for name, piece in pieces.items()}

    def of(
        self, program: Program, names: Collection[str], device: torch.device
    ) -> dict[str, Tensor]:
        """Returns pieces by value name.

        Args:
            program: What the rank runs.
            names: Which are wanted.
            device: Where they are to be.

        Raises:
            InvalidInputError: If a file can't be read, or nothing has them.
        """
        others = set(names) - self._drawn.keys()
        with WeightFile(*self._files, build=self._build) as file:
            read = read_weights(program, file, str(device), names=others)
        return {**self._drawn, **read}
