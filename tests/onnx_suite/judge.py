"""Judges a case: imported, compiled for a mesh with all inputs split, run by all ranks, compared.

A verdict is one of

    pass      all outputs are what onnx expects, in the tolerance of the case, from the serial
              program and from all ranks together, and both agree
    finer     an output isn't, but where it differs it is nearer to what float64 gives than what
              onnx expects
    drawn     its numbers are random: the shapes and types of all outputs are what onnx expects, and
              all ranks together draw what the serial program does
    refused   the import says which nodes can't be expressed, and why
    wrong     an output differs, in values, shape or type
    error     anything else was raised
"""

from __future__ import annotations

import glob
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from onnx import ModelProto

from autopar.annotate import Pin, parse_mesh
from autopar.cost import Cluster
from autopar.frontend.onnx import ImportedModel, import_onnx
from autopar.frontend.onnx.model.problems import ModelError
from autopar.ir.mesh import ProcessMesh
from autopar.ir.rules.distribution import split_factors
from autopar.ir.text.layouts import Entry
from autopar.pipeline import Compiled, CompileOptions, compile_program
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.ports.ports import seed_input
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights
from tests.onnx_suite.cases import Array, Case, as_tensor
from tests.onnx_suite.exact import exact_outputs
from tests.onnx_suite.profile import freeze

VERDICTS = ("pass", "finer", "drawn", "refused", "wrong", "error")
Tensors = Mapping[str, torch.Tensor]
_ROUNDING = 4.0
"""How often the tolerance of a case may fit into the rounding errors of what it expects."""
_PLACE = re.compile(r"node '.*' \(\S+, opset \d+\)|node '.*', attribute '.*'|(input|output) '.*'")
"""Where a refusal says that it is: at a node, or at an input or output of a type that has none."""
_LEAST_RTOL = {"bfloat16": 2.0**-6}
"""The relative tolerance that onnx's runner allows at least, by type."""
_CARRIERS = {"int4": np.int8, "int2": np.int8, "uint4": np.uint8, "uint2": np.uint8}
"""What holds elements of types that numpy lacks, of less than a byte; of others, float32."""


@dataclass(frozen=True)
class Verdict:
    """What became of a case.

    Attributes:
        kind: One of `VERDICTS`.
        detail: What is refused, wrong or raised.
        frozen: Whether nothing of it is computed when the program runs: all inputs are constants.
        split: How many ops ran split.
        replicated: The kinds of ops that every rank computed as a whole, for lack of a rule.
    """

    kind: str
    detail: str = ""
    frozen: bool = False
    split: int = 0
    replicated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judge:
    """Judges cases on one mesh.

    Attributes:
        mesh: The mesh.
        operators: The models of all cases by name.
        folder: Where models and weights are written.
    """

    mesh: str
    operators: Mapping[str, ModelProto]
    folder: Path

    def judge(self, case: Case) -> Verdict:
        """Runs a case and says what became of it."""
        try:
            return self._judge(case)
        except ModelError as error:
            unnamed = [p for p in error.problems if not _PLACE.fullmatch(p.where) or not p.what]
            detail = "; ".join(map(str, error.problems))
            return Verdict("error" if unnamed else "refused", detail)
        except Exception as error:  # whatever it is, it belongs to this case
            return Verdict("error", f"{type(error).__name__}: {error}")

    def _judge(self, case: Case) -> Verdict:
        proto, left = freeze(case, self.operators)
        path = self.folder / "model.onnx"
        path.write_bytes(proto.SerializeToString())
        shapes = {n: a.shape for n, a in left.items() if isinstance(a, np.ndarray)}
        imported = import_onnx(path, input_shapes=shapes)
        inputs = {name: as_tensor(array) for name, array in left.items()}
        serial = run_serial(imported.program, imported.weights, inputs)
        compiled = compile_program(imported.program, self._options(case.name, left))
        ranks = self._run(imported, compiled, inputs)
        found = disagreement(case, ranks, serial)
        if found:
            return Verdict("wrong", found)
        if seed_input(imported.program):
            found = forms(case, ranks)
            return Verdict("wrong" if found else "drawn", found)
        found = difference(case, case.outputs, serial) or difference(case, case.outputs, ranks)
        if found:
            kind = "finer" if _finer(case, proto, left, ranks) else "wrong"
            return Verdict(kind, found)
        entries = [e.subject for e in compiled.report if e.category == "replicated"]
        split = sum(bool(op.dist and split_factors(op.dist)) for op in compiled.serial.main.ops)
        return Verdict("pass", "", not left, split, tuple(sorted(set(entries))))

    def _options(self, name: str, inputs: Mapping[str, Array]) -> CompileOptions:
        mesh = parse_mesh(self.mesh)
        dice = random.Random(name)
        pins = tuple(
            Pin(glob.escape(label), random_mapping(array.shape, mesh, dice), f"pin of {label!r}")
            for label, array in inputs.items()
            if array.ndim
        )
        return CompileOptions(mesh, Cluster.load("cpu"), strategy=None, pins=pins)

    def _run(self, imported: ImportedModel, compiled: Compiled, inputs: Tensors) -> Tensors:
        path = self.folder / "weights.safetensors"
        write_weights(path, dict(imported.weights))
        with WeightFile(path) as weights:
            return VirtualMesh(compiled.deployment, weights).run(inputs)


def random_mapping(
    shape: tuple[int, ...], mesh: ProcessMesh, dice: random.Random
) -> tuple[Entry, ...]:
    """Returns a dims_mapping that puts at least one mesh axis on a dimension.

    Args:
        shape: The sizes of the tensor: at least one. Those above one are split, if there are any.
        mesh: The mesh.
        dice: What decides.
    """
    count = dice.randint(1, mesh.ndim)
    dims = [at for at, size in enumerate(shape) if size > 1] or list(range(len(shape)))
    axes: list[list[str]] = [[] for _ in shape]
    for axis in dice.sample(mesh.dim_names, count):
        axes[dims[dice.randrange(len(dims))]].append(axis)
    return tuple(tuple(names) if names else -1 for names in axes)


def difference(case: Case, expected: Mapping[str, Array], results: Tensors) -> str:
    """Returns how results differ from what is expected; "" if they don't."""
    for name, array in expected.items():
        rtol = max(case.rtol, _LEAST_RTOL.get(case.outputs[name].dtype.name, 0.0))
        found = _close(_array(results[name]), array, rtol, case.atol)
        if found:
            return f"{name} {found}"
    return ""


def disagreement(case: Case, results: Tensors, serial: Tensors) -> str:
    """Returns how the ranks' results differ from the serial program's; "" if they don't."""
    expected = {name: _array(tensor) for name, tensor in serial.items()}
    found = difference(case, expected, results)
    return f"against the serial program: {found}" if found else ""


def forms(case: Case, results: Tensors) -> str:
    """Returns how results differ in shape or type from what onnx expects; "" if they don't."""
    for name, expected in case.outputs.items():
        found = _form(_array(results[name]), expected)
        if found:
            return f"{name} {found}"
    return ""


def _finer(case: Case, proto: ModelProto, inputs: Mapping[str, Array], results: Tensors) -> bool:
    """Tells whether results are nearer to the exact ones than what onnx expects, where they differ.

    Those of the wrong shape or type aren't, nor those whose exact values can't be had, nor if what
    onnx expects is so far from these that more than rounding is between them.
    """
    try:
        exact = exact_outputs(proto, inputs)
    except Exception:  # onnx's evaluator raises whatever it likes on types that it doesn't expect
        return False
    for name, expected in case.outputs.items():
        found = _array(results[name])
        if found.shape != expected.shape or found.dtype != expected.dtype:
            return False
        off = ~np.isclose(found, expected, case.rtol, case.atol, equal_nan=True)
        truth = exact[name][off]
        error, other = (abs(a[off].astype(np.float64) - truth) for a in (found, expected))
        rounding = _ROUNDING * (case.atol + case.rtol * abs(truth))
        if not ((error < other) & (other <= rounding)).all():
            return False
    return True


def _array(tensor: torch.Tensor) -> Array:
    if tensor.dtype is torch.bfloat16 or "float8" in str(tensor.dtype):
        return tensor.to(torch.float32).numpy()
    return tensor.numpy()


def _close(found: Array, expected: Array, rtol: float, atol: float) -> str:
    """Compares as onnx's own runner does."""
    form = _form(found, expected)
    if form:
        return form
    expected = expected.astype(found.dtype)
    close = np.isclose(found, expected, rtol, atol, equal_nan=True)
    if close.all():
        return ""
    at = tuple(int(axis[0]) for axis in np.nonzero(~close))
    few = f"{int((~close).sum())} of {close.size} elements differ"
    return f"{few}; the first one, at {at}, is {found[at]} instead of {expected[at]}"


def _form(found: Array, expected: Array) -> str:
    """Returns how shape or type differ; types that numpy lacks are held by others."""
    if found.shape != expected.shape:
        return f"has shape {found.shape} instead of {expected.shape}"
    carrier = _CARRIERS.get(expected.dtype.name, np.float32)
    wanted = expected.dtype if expected.dtype.isbuiltin == 1 else np.dtype(carrier)
    return "" if found.dtype == wanted else f"has type {found.dtype} instead of {expected.dtype}"
