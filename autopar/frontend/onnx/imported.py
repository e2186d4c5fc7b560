"""What an import of an ONNX file returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.program import Program

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """What an import returns.

    Attributes:
        program: The serial program, in one function.
        weights: The tensor of each of its inputs that is a parameter or constant, by value name.
            They aren't to be written to: they may be views of the file.
        report: What of the model was ignored, or done in another way than it says.
    """

    program: Program
    weights: Mapping[str, torch.Tensor]
    report: tuple[ReportEntry, ...] = ()
