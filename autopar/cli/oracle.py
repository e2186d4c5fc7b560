"""ONNX Runtime as the judge of a build's outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autopar.base.errors import InvalidInputError
from autopar.ir.program import SEED, Program

if TYPE_CHECKING:
    from torch import Tensor

_SILENT = 4  # What ONNX Runtime would log is in the errors that it raises.


class OnnxRuntime:
    """An ONNX file, loaded by ONNX Runtime to run on the CPU.

    Args:
        model: The file.
        program: What was compiled from it; its inputs and outputs must be the file's.

    Raises:
        InvalidInputError: If ONNX Runtime isn't installed or refuses the file, the file is
            another model than the one that was compiled, or all of its outputs are random.

    Attributes:
        random: The outputs that depend on random numbers, which ONNX Runtime draws in its own way.
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
        from autopar.runtime.ports.ports import user_inputs

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
        self.inputs = [item.name for item in self.session.get_inputs()]
        self._program = program
        self._state = [port for port in program.signature.inputs if port.role == "state"]
        given = (port for port in user_inputs(program) if port.role != SEED)
        wanted = [port.user_label for port in (*given, *self._state)]
        self._compare_names("inputs", self.inputs, wanted)
        expected = [port.user_label for port in program.signature.outputs]
        self._compare_names("outputs", self.outputs, expected)
        self.random = _random_outputs(program)
        self.outputs = [name for name in self.outputs if name not in self.random]
        if not self.outputs:
            raise InvalidInputError(
                f"--against {model}: nothing to compare, since all outputs depend on random"
                " numbers, which ONNX Runtime draws in its own way; leave --against out"
            )

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Returns the outputs by name, but for random ones.

        Args:
            inputs: Arrays or tensors by name. What isn't an input of the model is left out.

        Raises:
            InvalidInputError: If ONNX Runtime can't run the model on them.
        """
        import numpy as np
        import torch

        try:
            feed = {
                name: np.asarray(array)
                for name, array in {**inputs, **self._first_state(inputs)}.items()
                if name in self.inputs
            }
            found = self.session.run(self.outputs, feed)
            return dict(zip(self.outputs, map(torch.as_tensor, found), strict=True))
        except Exception as error:
            raise InvalidInputError(f"ONNX Runtime can't run {self.model}: {error}") from error

    def _first_state(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what a call begins with that is the first one."""
        import torch

        from autopar.ir.expr.at_sizes import port_at
        from autopar.runtime.kernels.table import TORCH_DTYPES
        from autopar.runtime.ports.open_inputs import sizes_of_inputs

        sizes = sizes_of_inputs(self._program, inputs) if self._state else {}
        first = {port.user_label: port_at(port, sizes) for port in self._state}
        return {
            label: torch.full(port.known_shape, port.fill or 0, dtype=TORCH_DTYPES[port.dtype])
            for label, port in first.items()
        }

    def _compare_names(self, what: str, theirs: list[str], ours: list[str]) -> None:
        if set(theirs) != set(ours):
            raise InvalidInputError(
                f"--against {self.model}: this is another model than the one that was compiled;"
                f" its {what} are {', '.join(theirs)}, not {', '.join(ours)}"
            )


def _random_outputs(program: Program) -> tuple[str, ...]:
    """Returns the labels of the outputs that depend on the program's seed."""
    drawn = {port.name for port in program.signature.inputs if port.role == SEED}
    for op in program.main.ops:
        if not drawn.isdisjoint(op.operands):
            drawn.update(op.results)
    return tuple(port.user_label for port in program.signature.outputs if port.name in drawn)
