"""What an import of an ONNX file returns."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autopar.frontend.recognize import Recognize
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

    def recognized(self, kept: AbstractSet[str] = frozenset()) -> ImportedModel:
        """Returns the model with one op for what its file spells out as many.

        Args:
            kept: Names of values that must stay, as the user pins them.
        """
        program = Recognize(self._numbers(), frozenset(kept))(self.program)
        names = {port.name for port in program.signature.inputs}
        weights = {name: weight for name, weight in self.weights.items() if name in names}
        return replace(self, program=program, weights=weights)

    def _numbers(self) -> dict[str, float]:
        """Returns the constants of one element."""
        values = self.program.main.values
        return {
            name: float(weight)
            for name, weight in self.weights.items()
            if values[name].role == "constant" and weight.numel() == 1
        }
