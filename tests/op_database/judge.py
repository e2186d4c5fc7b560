"""Distributes a captured call over a mesh at random, runs all ranks and compares."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from autopar.annotate import Pin
from autopar.cost import Cluster
from autopar.ir.expr.expression import planned
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Function, Port, Program, Value
from autopar.pipeline import Compiled, CompileOptions, compile_program
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.stepper import Scope
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.ports.boxes import Box
from autopar.runtime.ports.ports import port_box
from autopar.runtime.verification.rounding import ALLOWED_ROUNDINGS
from autopar.runtime.verification.verification import (
    FORCED_TOLERANCE,
    FREE_TOLERANCE,
    compare_outputs,
)
from autopar.runtime.weights.weights import WeightFile
from tests.op_database.capture import Captured
from tests.op_database.uncertainty import uncertainty

MESHES = ((2,), (3,), (2, 2), (2, 3))

REDUCING = frozenset(("comm.all_reduce", "comm.reduce_scatter"))
"""Collectives that finish a reduction."""

UNSTEADY = frozenset(("aten.linalg_lstsq.default",))
"""Ops whose kernels read uninitialized memory, so that even one device rounds in two ways.

PyTorch doesn't set the pivots that LAPACK's gelsy takes as its first guess.
"""

Outcome = Literal["whole", "split", "reduced", "moved", "fell back", "wrong", "error"]
OUTCOMES: tuple[Outcome, ...] = (
    "whole",
    "split",
    "reduced",
    "moved",
    "fell back",
    "wrong",
    "error",
)
"""How a call went, from best to worst.

whole: nothing could be split. split: without communication. reduced: nothing but unfinished
reductions was communicated. moved: elements were gathered or exchanged. fell back: an op without a
rule had an operand that was split. wrong: the ranks computed something else. error: no result.
"""


@dataclass(frozen=True)
class Verdict:
    """How a call went on a mesh.

    Attributes:
        outcome: One of `OUTCOMES`.
        detail: What is wrong.
        missing: Kinds of ops without a rule that had an operand that was split.
    """

    outcome: Outcome
    detail: str = ""
    missing: tuple[str, ...] = ()


def random_pins(program: Program, mesh: ProcessMesh, seed: str) -> tuple[Pin, ...]:
    """Returns pins of inputs, or of outputs if there are no inputs to split.

    At least one dimension is split, if any has more than one element. Sizes need not divide, and
    may be smaller than the axis.
    """
    dice = random.Random(seed)
    ports = _splittable(program.signature.inputs) or _splittable(program.signature.outputs)
    if not ports:
        return ()
    certain = dice.choice(ports)
    pins = []
    for port in ports:
        if port is not certain and dice.random() < 0.3:
            continue
        entries: list[list[str]] = [[] for _ in port.shape]
        least = 1 if port is certain else 0
        for axis in dice.sample(mesh.dim_names, dice.randint(least, mesh.ndim)):
            wide = [at for at, size in enumerate(port.shape) if planned(size) > 1]
            entries[dice.choice(wide)].append(axis)
        mapping = tuple(tuple(entry) if entry else -1 for entry in entries)
        pins.append(Pin(port.name, mapping, "a random pin"))
    return tuple(pins)


def _splittable(ports: Sequence[Port]) -> list[Port]:
    return [port for port in ports if max(port.known_shape, default=0) > 1]


def compile_case(captured: Captured, mesh: ProcessMesh, pins: tuple[Pin, ...]) -> Compiled:
    """Compiles a captured call, verifying the program between all passes."""
    options = CompileOptions(mesh, Cluster.load("cpu"), None, pins)
    return compile_program(captured.program, options)


def judge_serial(captured: Captured, defined: bool = True) -> str:
    """Returns how the serial program differs from eager PyTorch; empty if it doesn't.

    Random numbers are others in eager PyTorch.

    Args:
        captured: The call.
        defined: Whether the values of the results are; shapes and dtypes always are.
    """
    found = run_serial(captured.program, {}, captured.inputs)
    return differences(found, captured.expected, FORCED_TOLERANCE, defined and not captured.draws)


def judge(captured: Captured, mesh: ProcessMesh, seed: str, defined: bool = True) -> Verdict:
    """Returns how a captured call goes on a mesh.

    Args:
        captured: The call.
        mesh: The ranks.
        seed: Of the pins.
        defined: Whether the values of the results are; shapes and dtypes always are. Random
            values depend on the program's seed, and on nothing else.
    """
    pins = random_pins(captured.program, mesh, seed)
    compiled = compile_case(captured, mesh, pins)
    ranks = VirtualMesh(compiled.deployment, WeightFile())
    seen = OutputsByRank(ranks)
    found = ranks.run(captured.inputs, seen.trace)
    expected = run_serial(captured.program, {}, captured.inputs)
    wrong = differences(found, expected, FREE_TOLERANCE, defined)
    if wrong and defined:
        noise = uncertainty(captured.program, captured.inputs, expected)
        wrong = differences(found, expected, FREE_TOLERANCE, defined, noise)
    if not wrong and defined:
        wrong = seen.disagreements(_steadiness(captured.program))
    missing = fallbacks(compiled.serial.main)
    if wrong:
        return Verdict("wrong", f"{wrong} ({_pins_text(pins)})", missing)
    if not pins:
        return Verdict("whole")
    return Verdict("fell back" if missing else _communication(compiled), missing=missing)


class OutputsByRank:
    """What each rank computes of the outputs."""

    def __init__(self, ranks: VirtualMesh) -> None:
        self.ranks = ranks.ranks
        self.found: dict[tuple[int, str], Tensor] = {}

    def trace(self, rank: int, scope: Scope, value: Value, tensor: Tensor) -> Tensor:
        """Remembers an output."""
        if not scope and value.name in self.ranks[rank].program.main.outputs:
            self.found[rank, value.name] = tensor
        return tensor

    def disagreements(self, tolerance: float) -> str:
        """Returns the outputs of which two ranks hold the same piece with other values."""
        first: dict[tuple[int, Box], Tensor] = {}
        for rank, each in enumerate(self.ranks):
            for at, port in enumerate(each.program.signature.outputs):
                tensor = self.found.get((rank, each.program.main.outputs[at]))
                if tensor is None:
                    continue
                known = first.setdefault((at, port_box(port, {})), tensor)
                if not torch.allclose(known, tensor, tolerance, tolerance, equal_nan=True):
                    return f"rank {rank} disagrees about output {port.name}"
        return ""


def _steadiness(program: Program) -> float:
    """Returns how far ranks may disagree that compute the same from the same: mostly not at all."""
    return FREE_TOLERANCE if any(op.kind in UNSTEADY for op in program.main.ops) else 0.0


def _communication(compiled: Compiled) -> Outcome:
    kinds = {
        op.kind
        for program in compiled.deployment.programs
        for function in program.functions.values()
        for op in function.ops
        if op.kind.startswith("comm.")
    }
    if not kinds:
        return "split"
    return "reduced" if kinds <= REDUCING else "moved"


def fallbacks(main: Function) -> tuple[str, ...]:
    """Returns the kinds of the ops without a rule that had an operand that was split."""
    found: dict[str, None] = {}
    for op in main.ops:
        if op.origin is None or op.origin.kind != "fallback":
            continue
        layouts = [main.values[name].dist for name in op.operands]
        if any(layout is not None and not layout.is_replicated for layout in layouts):
            found[op.kind] = None
    return tuple(found)


def differences(
    found: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    tolerance: float,
    values: bool,
    noise: Mapping[str, float] | None = None,
) -> str:
    """Returns how outputs differ, as text; empty if they don't.

    Args:
        found: The outputs by label.
        expected: What they should be.
        tolerance: Error that passes, relative to the largest element of an output.
        values: Whether values are compared, or shapes and dtypes only.
        noise: How far rounding moves each output; some times as much passes too.
    """
    if not values:
        return "; ".join(
            f"{label} is {_type(found[label])} instead of {_type(tensor)}"
            for label, tensor in expected.items()
            if _type(found[label]) != _type(tensor)
        )
    compared = compare_outputs(found, expected, tolerance)
    return "; ".join(
        f"{each}, {_type(found[label])} instead of {_type(expected[label])}"
        if _type(found[label]) != _type(expected[label])
        else str(each)
        for label, each in compared.items()
        if not each.ok and not each.error <= ALLOWED_ROUNDINGS * (noise or {}).get(label, 0)
    )


def _type(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _pins_text(pins: tuple[Pin, ...]) -> str:
    return ", ".join(f"{pin.pattern}={list(pin.dims_mapping)}" for pin in pins)
