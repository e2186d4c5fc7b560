"""ONNX Runtime as the judge of a build's outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autopar.ir.errors import InvalidInputError

if TYPE_CHECKING:
    from torch import Tensor


def onnx_outputs(model: Path, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the outputs of an ONNX file by name, as ONNX Runtime computes them on the CPU.

    Args:
        model: The file.
        inputs: Arrays by name; those that the file doesn't have are left out.

    Raises:
        InvalidInputError: If ONNX Runtime isn't installed, or refuses the file or the inputs.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise InvalidInputError(
            "--against needs ONNX Runtime, which isn't installed: pip install onnxruntime"
        ) from error
    import numpy as np
    import torch

    if not model.is_file():
        raise InvalidInputError(f"--against {model}: there is no such file")
    try:
        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        wanted = {each.name for each in session.get_inputs()}
        feed = {name: np.asarray(array) for name, array in inputs.items() if name in wanted}
        found = session.run(names, feed)
    except Exception as error:  # ONNX Runtime raises classes of its own that share no base.
        raise InvalidInputError(f"ONNX Runtime can't run {model}: {error}") from error
    return {name: torch.as_tensor(array) for name, array in zip(names, found, strict=True)}
