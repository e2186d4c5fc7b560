"""Cases with open sizes: one program for the sizes of a case, and for others.

All dimensions of inputs are made open but those of size 1 and 0: what is broadcast, and what is
nothing, is something else than what isn't. A verdict is one of those of `judge`, or

    narrowed  the program is for sizes among which those of the case aren't, and says so
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from onnx import ModelProto

from autopar.base.errors import AutoparError, InvalidInputError
from autopar.frontend.onnx import ImportedModel, import_onnx
from autopar.pipeline import compile_program
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.ports.open_inputs import is_left_open, ranks_for, serial_for
from autopar.runtime.ports.ports import seed_input
from tests.onnx_suite.cases import Array, Case, as_tensor
from tests.onnx_suite.judge import Judge, Tensors, Verdict, difference, forms
from tests.onnx_suite.profile import freeze

Inputs = Mapping[str, Array]


def opened(proto: ModelProto, inputs: Mapping[str, Array]) -> tuple[ModelProto, dict[str, str]]:
    """Returns a model whose inputs have open sizes, and what each is planned for, by name."""
    found = ModelProto()
    found.CopyFrom(proto)
    planned: dict[str, str] = {}
    for value in found.graph.input:
        array = inputs.get(value.name)
        if not isinstance(array, np.ndarray):
            continue
        dims = value.type.tensor_type.shape.dim
        value.type.tensor_type.shape.SetInParent()
        del dims[:]
        for at, size in enumerate(array.shape):
            dim = dims.add()
            if size > 1:
                dim.dim_param = f"open_{len(planned)}_{at}"
                planned[dim.dim_param] = f"{size}~"
            else:
                dim.dim_value = size
    return found, planned


@dataclass(frozen=True)
class OpenJudge(Judge):
    """Judges cases whose sizes are open.

    Attributes:
        by_ranks: Whether the ranks run the program, too.
    """

    by_ranks: bool = True

    def _judge(self, case: Case) -> Verdict:
        frozen, left = freeze(case, self.operators)
        proto, planned = opened(frozen, left)
        path = self.folder / "model.onnx"
        path.write_bytes(proto.SerializeToString())
        imported = import_onnx(path, dims=planned)
        inputs = tensors_of(left)
        try:
            serial = serial_for(imported.program, inputs)
        except InvalidInputError as error:
            return Verdict("narrowed", str(error))
        drawn = seed_input(imported.program) is not None
        compare = forms if drawn else _differs
        found = compare(case, run_serial(serial, imported.weights, inputs))
        if not found and not drawn and is_left_open(imported.program):
            found = self._at_more(imported, frozen, left)
        if not found and self.by_ranks:
            compiled = compile_program(imported.program, self._options(case.name, left))
            ranks = ranks_for(compiled.deployment, compiled.serial, inputs)
            found = compare(case, self._run(imported, replace(compiled, deployment=ranks), inputs))
        return Verdict("wrong" if found else "pass", found, not is_left_open(imported.program))

    def _at_more(self, imported: ImportedModel, proto: ModelProto, left: Inputs) -> str:
        """Returns what is wrong at twice the sizes, if the program and the case are for those."""
        more = {name: _doubled(array) for name, array in left.items()}
        inputs = tensors_of(more)
        path = self.folder / "twice.onnx"
        path.write_bytes(proto.SerializeToString())
        shapes = {n: a.shape for n, a in more.items() if isinstance(a, np.ndarray)}
        try:
            serial = serial_for(imported.program, inputs)
            judge = import_onnx(path, input_shapes=shapes)
            wanted = run_serial(judge.program, judge.weights, inputs)
        except AutoparError:
            return ""
        results = run_serial(serial, imported.weights, inputs)
        bad = (name for name in wanted if not _is_close(results[name], wanted[name]))
        return f"at twice the sizes: {name} differs" if (name := next(bad, "")) else ""


def tensors_of(arrays: Inputs) -> dict[str, torch.Tensor]:
    """Returns arrays as tensors."""
    return {name: as_tensor(array) for name, array in arrays.items()}


def _doubled(array: Array) -> Array:
    if isinstance(array, np.ndarray):
        for axis, size in enumerate(array.shape):
            array = np.concatenate([array, array], axis) if size > 1 else array
    return array


def _is_close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    same = found.shape == wanted.shape and found.dtype == wanted.dtype
    return same and torch.allclose(
        found.double(), wanted.double(), rtol=1e-3, atol=1e-5, equal_nan=True
    )


def _differs(case: Case, results: Tensors) -> str:
    return difference(case, case.outputs, results)
