"""Compares what every rank computes with what the serial program computes, value by value.

A value of the serial program keeps its name in the ranks' programs, and the completed serial
program says in which layout it is stored. So each rank's piece is compared with the same piece of
the serial value; values that are pending a reduction are compared after it.

In *forced* mode the ranks go on with the serial program's pieces after each comparison. Every op
is then judged on inputs that are exactly the serial program's, which matters where rounding
amplifies harmless differences, as dynamic quantization does.

In a training step that is so from the gradients on: an optimizer that divides a gradient by its
size, as Adam does, makes a full step of one that is zero but for rounding. So gradients are judged
as they come, and the update on the serial program's gradients.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from autopar.base.errors import Loc
from autopar.ir.deployment import Deployment
from autopar.ir.layout import Layout
from autopar.ir.program import CALL, MICROBATCH, REPEAT, Op, Program, Value, index_of, trip_of
from autopar.ir.unroll import iteration_name, unrolled
from autopar.runtime.collectives.monoids import identity, reduce_tensors
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.stepper import Scope, iteration_scope
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.ports.boxes import layout_box, take
from autopar.runtime.ports.ports import Arrays
from autopar.runtime.verification.rounding import ALLOWED_ROUNDINGS, rounding_of, roundings
from autopar.runtime.verification.rounding_noise import gradient_noise

Key = tuple[Scope, str]

FORCED_TOLERANCE = 1e-5
FREE_TOLERANCE = 1e-4
QUANTIZED = (torch.uint8, torch.int8)

GRADIENT = "gradient"
"""Role of a parameter's whole gradient."""

SMALL_GRADIENT = 1e-2
"""A gradient whose elements are this small beside the largest one of the step may be zero, as that
of a bias of keys is, but for rounding errors. So it may be off as one of this size may, ..."""

ALLOWED_NOISE = 8
"""... if it isn't off by more than this many times what rounding at random does to it."""


@dataclass(frozen=True)
class Difference:
    """How far a value is from the serial program's.

    Attributes:
        name: The value, behind the calls it was computed in.
        kind: The op that computes it; empty for an output.
        loc: Where the op comes from.
        ranks: The ranks whose pieces are off.
        error: The largest absolute error.
        relative: The largest error relative to the largest element of the serial value.
        ok: Whether that is within the tolerance.
    """

    name: str
    kind: str
    loc: Loc
    ranks: tuple[int, ...]
    error: float
    relative: float
    ok: bool

    def __str__(self) -> str:
        op = f" = {self.kind}" if self.kind else ""
        where = f" on ranks {', '.join(map(str, self.ranks))}" if self.ranks else ""
        return (
            f"%{self.name}{op} ({self.loc}) is off by {self.error:.3g},"
            f" {self.relative:.3g} of its largest element{where}"
        )


@dataclass(frozen=True)
class Verification:
    """The result of a comparison.

    Attributes:
        values: Every value that was compared, in the order of the serial program.
        outputs: The error of each global output, by label.
        tolerance: The largest relative error that passes.
        forced: Whether every op was judged on the serial program's inputs.
        uncompared: Values of the serial program that the ranks don't have under their name.
        gradients: The error of each parameter's gradient in a training step, by name.
        state: What the outputs that are new content of state are, by label: `parameters`,
            `buffers`, or a name of the optimizer's.
    """

    values: tuple[Difference, ...]
    outputs: Mapping[str, Difference]
    tolerance: float
    uncompared: tuple[str, ...] = ()
    forced: bool = False
    gradients: Mapping[str, Difference] = field(default_factory=dict)
    state: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether outputs and gradients, and if each op was judged alone all values, are right.

        Otherwise a value whose terms cancel may be mere rounding, far off relative to itself and
        harmless: values then say where an output that is off went wrong.
        """
        judged = (*self.outputs.values(), *self.gradients.values())
        return all(each.ok for each in judged) and not (self.forced and self.first)

    @property
    def first(self) -> Difference | None:
        """The first value, in the order of the serial program, that is off."""
        return next((value for value in self.values if not value.ok), None)


def compare(found: Tensor, expected: Tensor, tolerance: float) -> tuple[float, float, bool]:
    """Returns (largest absolute error, the same relative to the largest element, whether it's ok).

    Integers of 8 bits, which hold quantized numbers, may be off by one quantum; others are exact.
    NaN and infinities must be where they are expected. Floats are allowed eight units of rounding,
    which counts for those below 32 bits.
    """
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf"), float("inf"), False
    if found.numel() == 0:
        return 0.0, 0.0, True
    if found.dtype == torch.complex32:  # for which torch compares nothing
        found, expected = found.to(torch.complex64), expected.to(torch.complex64)
    if torch.equal(found, expected):
        return 0.0, 0.0, True
    error, largest = _error(found, expected)
    relative = error / largest if largest else (0.0 if error == 0 else float("inf"))
    if not _is_inexact(found):
        return error, relative, error <= (found.dtype in QUANTIZED)
    allowed = max(tolerance, ALLOWED_ROUNDINGS * rounding_of(found.dtype))
    return error, relative, error <= allowed * largest


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _is_inexact(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _error(found: Tensor, expected: Tensor) -> tuple[float, float]:
    """Returns (largest absolute error, largest finite element expected)."""
    wide = torch.complex128 if found.is_complex() else torch.float64
    if found.dtype == torch.float32:
        wide = torch.float32
    mine, theirs = found.to(wide), expected.to(wide)
    error, largest = float((mine - theirs).abs().max()), float(theirs.abs().max())
    if math.isfinite(error) and math.isfinite(largest):
        return error, largest
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    difference = torch.where(same, 0.0, (mine - theirs).abs()).nan_to_num(nan=math.inf)
    return float(difference.max()), float(theirs.abs().nan_to_num(nan=0.0, posinf=0.0).max())


def verify_mesh(
    serial: Program,
    weights: Mapping[str, Tensor],
    mesh: VirtualMesh,
    inputs: Arrays,
    *,
    forced: bool = False,
    tolerance: float | None = None,
) -> Verification:
    """Runs a virtual mesh and compares every value with the serial program's.

    Args:
        serial: The completed serial program.
        weights: Its weights, global, by value name.
        mesh: The ranks.
        inputs: Global inputs by label.
        forced: Whether the ranks go on with the serial program's values.
        tolerance: Largest allowed error, relative to the largest element of a value.

    Raises:
        InvalidInputError: If the inputs don't fit the program.
        RuntimeFailure: If an op fails or the ranks' collectives don't match.
    """
    allowed = tolerance
    if allowed is None:
        allowed = FORCED_TOLERANCE if forced else FREE_TOLERANCE
    gradients = {name for name, value in serial.main.values.items() if value.role == GRADIENT}
    serial = unrolled(serial)
    reference = _Reference(serial, gradients)
    expected = run_serial(serial, weights, inputs, reference.record)
    comparison = _Comparison(reference, mesh.deployment, forced, allowed)
    found = mesh.run(inputs, comparison.see)
    outputs = compare_outputs(found, expected, allowed, serial)
    doubtful = comparison.doubtful()
    noise = gradient_noise(serial, weights, inputs, doubtful) if doubtful else {}
    return Verification(
        comparison.results(),
        outputs,
        allowed,
        forced=forced,
        gradients=comparison.gradients(noise),
        state=_kinds_of_state(serial),
    )


def _kinds_of_state(program: Program) -> dict[str, str]:
    """Returns what the outputs that are new content of state are, by label."""
    signature = program.signature
    stored = {port.name: port for port in signature.inputs}
    labels = {port.name: port.label for port in signature.outputs}
    plurals = {"parameter": "parameters", "buffer": "buffers", "state": "buffers"}
    return {
        labels[new]: plurals.get(stored[old].role, stored[old].label.partition("/")[0])
        for new, old in program.main.aliases
    }


def compare_outputs(
    found: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    tolerance: float,
    program: Program | None = None,
) -> dict[str, Difference]:
    """Returns the error of each output by label, also against another program's outputs.

    Args:
        found, expected: Outputs by label.
        tolerance: Largest allowed error, relative to the largest element of an output.
        program: The serial program; outputs that it computes from halves are judged as halves.
    """
    coarse: dict[str, float] = {}
    if program is not None:
        units = roundings(program)
        coarse = {port.label: units[port.name] for port in program.signature.outputs}
    differences: dict[str, Difference] = {}
    for label, tensor in expected.items():
        allowed = max(tolerance, ALLOWED_ROUNDINGS * coarse.get(label, 0.0))
        error, relative, ok = compare(found[label], tensor, allowed)
        differences[label] = Difference(label, "", Loc(name="output"), (), error, relative, ok)
    return differences


class _Reference:
    """The serial program's values, and what is known about each.

    Args:
        program: The program, without loops.
        gradients: The names of whole gradients, which aren't sums of what some iterations have.
    """

    def __init__(self, program: Program, gradients: Collection[str]) -> None:
        self.gradients = gradients
        self.tensors: dict[Key, Tensor] = {}
        self.values: dict[Key, Value] = {}
        self.roundings = roundings(program)
        self.ops = {
            name: (op.kind, op.loc)
            for function in program.functions.values()
            for op in function.ops
            for name in op.results
        }

    def record(self, scope: Scope, value: Value, tensor: Tensor) -> Tensor:
        self.tensors[scope, value.name] = tensor
        self.values[scope, value.name] = value
        return tensor


def _path(key: Key) -> str:
    return "/".join((*key[0], key[1]))


@dataclass
class _Judged:
    """What became known about a value as ranks computed it."""

    pieces: dict[int, Tensor] = field(default_factory=dict)
    wrong: dict[int, tuple[float, float]] = field(default_factory=dict)
    error: float = 0.0
    relative: float = 0.0


def _iterations(op: Op) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yields the entries of scopes that an op makes, with the iteration and the loop of each."""
    if op.kind == CALL:
        yield op.results[0], (op.microbatch, MICROBATCH)
    elif op.kind == REPEAT:
        index, loop = index_of(op), str(op.arg("loop", MICROBATCH))
        first = 0 if index is None else index.least
        for iteration in range(trip_of(op)):
            yield iteration_scope(op.results[0], iteration), (first + iteration, loop)


class _Comparison:
    def __init__(
        self, reference: _Reference, deployment: Deployment, forced: bool, tolerance: float
    ) -> None:
        self.reference = reference
        self.coords = [deployment.coords_of(rank) for rank in range(deployment.world_size)]
        self.forced = forced
        self.tolerance = tolerance
        self.judged: dict[Key, _Judged] = {}
        self._iterations = {
            each: iteration
            for program in deployment.programs
            for function in program.functions.values()
            for op in function.ops
            for each, iteration in _iterations(op)
        }

    def see(self, rank: int, scope: Scope, value: Value, tensor: Tensor) -> Tensor:
        """Compares a rank's piece and returns the one with which the rank goes on."""
        key = self._key(scope, value.name)
        expected = self.reference.tensors.get(key)
        layout = self.reference.values[key].dist if expected is not None else None
        if expected is None or layout is None:
            return tensor
        judged = self.judged.setdefault(key, _Judged())
        piece = take(expected, layout_box(layout, self.coords[rank]))
        if layout.partial:
            judged.pieces[rank] = tensor.clone()
            self._judge_pending(key, layout, expected, rank)
            piece = self._share(piece, layout, rank)
        else:
            self._judge(key, tensor, piece, (rank,))
        gradient = key[1] in self.reference.gradients
        # A rank may write over what it goes on with, and others are still to be compared with that.
        return piece.clone() if self.forced or gradient else tensor

    def _key(self, scope: Scope, name: str) -> Key:
        """Returns where the serial program, which is unrolled, has a value of a rank's program."""
        if any(each not in self._iterations for each in scope):
            return scope, name
        for each in reversed(scope):
            name = iteration_name(name, *self._iterations[each])
        return (), name

    def results(self) -> tuple[Difference, ...]:
        """Returns the judgement of every value, in the order of the serial program."""
        return tuple(
            self._difference(key, self.judged[key])
            for key in self.reference.tensors
            if key in self.judged
        )

    def doubtful(self) -> dict[str, Tensor]:
        """Returns what the gradients that are further off than their size allows should be.

        By the name of the value: gradients are values of `main`.
        """
        off = [key for key in self._gradients() if self.judged[key].wrong]
        return {key[1]: self.reference.tensors[key] for key in off}

    def gradients(self, noise: Mapping[str, float]) -> dict[str, Difference]:
        """Returns the judgement of gradients by name.

        Args:
            noise: How far rounding takes those that are doubtful, by name.
        """
        sizes = {key: _largest(self.reference.tensors[key]) for key in self._gradients()}
        floor = SMALL_GRADIENT * max(sizes.values(), default=0.0)
        found: dict[str, Difference] = {}
        for key, size in sizes.items():
            each = self._difference(key, self.judged[key])
            if key[1] in noise:
                allowed = self._allowed(key)
                # The size at which what noise explains is just allowed.
                size = max(size, min(floor, ALLOWED_NOISE * noise[key[1]] / allowed))
                relative = each.error / size if size else math.inf
                each = replace(each, relative=relative, ok=relative <= allowed)
            found[key[1]] = each
        return found

    def _gradients(self) -> list[Key]:
        return [key for key in self.judged if key[1] in self.reference.gradients]

    def _difference(self, key: Key, judged: _Judged) -> Difference:
        kind, loc = self.reference.ops[key[1]]
        ranks = tuple(sorted(judged.wrong))
        return Difference(_path(key), kind, loc, ranks, judged.error, judged.relative, not ranks)

    def _judge(self, key: Key, found: Tensor, expected: Tensor, ranks: tuple[int, ...]) -> None:
        judged = self.judged[key]
        error, relative, ok = compare(found, expected, self._allowed(key))
        judged.error = max(judged.error, error)
        judged.relative = max(judged.relative, relative)
        if not ok:
            judged.wrong.update((rank, (error, relative)) for rank in ranks)

    def _allowed(self, key: Key) -> float:
        scope, name = key
        # In forced mode an op is judged on the serial program's operands, rounded alike.
        coarse = 0.0 if self.forced or scope else self.reference.roundings.get(name, 0.0)
        return max(self.tolerance, ALLOWED_ROUNDINGS * coarse)

    def _judge_pending(self, key: Key, layout: Layout, expected: Tensor, rank: int) -> None:
        """Compares a pending value once all ranks that hold a share of it have computed theirs."""
        judged = self.judged[key]
        fixed = {a: c for a, c in self.coords[rank].items() if a not in layout.partial_axes}
        ranks = tuple(
            other
            for other, coords in enumerate(self.coords)
            if all(coords[axis] == at for axis, at in fixed.items())
        )
        if not all(other in judged.pieces for other in ranks):
            return
        shares = {self._partial_coords(other, layout): judged.pieces.pop(other) for other in ranks}
        reduced = _reduce(shares, [monoid for _, monoid in layout.partial])
        piece = take(expected, layout_box(layout, self.coords[rank]))
        self._judge(key, reduced, piece, ranks)

    def _partial_coords(self, rank: int, layout: Layout) -> tuple[int, ...]:
        return tuple(self.coords[rank][axis] for axis in layout.partial_axes)

    def _share(self, piece: Tensor, layout: Layout, rank: int) -> Tensor:
        """Returns a pending value's share: the first process has it all."""
        for (_, monoid), at in zip(layout.partial, self._partial_coords(rank, layout), strict=True):
            if at:
                return torch.full_like(piece, identity(monoid, piece.dtype))
        return piece


def _reduce(shares: Mapping[tuple[int, ...], Tensor], monoids: list[str]) -> Tensor:
    """Reduces over the last axis first, so that different monoids nest as they were produced."""
    for monoid in reversed(monoids):
        groups: dict[tuple[int, ...], list[Tensor]] = {}
        for at in sorted(shares):
            groups.setdefault(at[:-1], []).append(shares[at])
        shares = {at: reduce_tensors(monoid, tensors) for at, tensors in groups.items()}
    return shares[()]
