"""ONNX Runtime as the judge of a build's outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autopar.ir.errors import InvalidInputError
from autopar.ir.program import Port, Program

if TYPE_CHECKING:
    from torch import Tensor

_SILENT = 4  # What ONNX Runtime would log is in the errors that it raises.


class OnnxRuntime:
    """An ONNX file, loaded by ONNX Runtime to run on the CPU.

    Args:
        model: The file.
        program: What was compiled from it; its inputs and outputs must be the file's.

    Raises:
        InvalidInputError: If ONNX Runtime isn't installed or refuses the file, or the file is
            another model than the one that was compiled.
    """

    def __init__(self, model: Path, program: Program) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise InvalidInputError(
                "--against needs ONNX Runtime, which isn't installed: pip install onnxruntime"
            ) from error
        if not model.is_file():
            raise InvalidInputError(f"--against {model}: there is no such file")
        from autopar.runtime.ports import user_inputs

        self.model = model
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = _SILENT
        try:
            self.session = onnxruntime.InferenceSession(
                str(model), settings, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime raises classes of its own that share no base.
            raise InvalidInputError(f"ONNX Runtime can't load {model}: {error}") from error
        self.outputs = [output.name for output in self.session.get_outputs()]
        given = [item.name for item in self.session.get_inputs()]
        self._compare_names("inputs", given, [_label(port) for port in user_inputs(program)])
        expected = [_label(port) for port in program.signature.outputs]
        self._compare_names("outputs", self.outputs, expected)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Returns the outputs by name.

        Args:
            inputs: Arrays or tensors by name.

        Raises:
            InvalidInputError: If ONNX Runtime can't run the model on them.
        """
        import numpy as np
        import torch

        try:
            feed = {name: np.asarray(array) for name, array in inputs.items()}
            found = self.session.run(self.outputs, feed)
            return dict(zip(self.outputs, map(torch.as_tensor, found), strict=True))
        except Exception as error:
            raise InvalidInputError(f"ONNX Runtime can't run {self.model}: {error}") from error

    def _compare_names(self, what: str, theirs: list[str], ours: list[str]) -> None:
        if set(theirs) != set(ours):
            raise InvalidInputError(
                f"--against {self.model}: this is another model than the one that was compiled;"
                f" its {what} are {', '.join(theirs)}, not {', '.join(ours)}"
            )


def _label(port: Port) -> str:
    return port.label or port.name
