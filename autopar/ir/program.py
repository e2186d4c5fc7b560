"""Program, Function, Op, Value: what every pass reads and returns.

All classes are immutable; a rewrite returns a new program. A program passes through three levels:

    serial       what one device runs. Shapes are global; completion adds `dist` to values and ops.
    partitioned  what a rank runs, still carrying `dist`. Shapes are local (rank expressions);
                 collectives (`comm.*`) name mesh axes.
    executable   mapped and stripped: no `dist`, collectives name process groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import NamedTuple

from autopar.base.errors import UNKNOWN, Loc
from autopar.ir.dims import DimLayout
from autopar.ir.dtypes import DTYPE_BYTES
from autopar.ir.expr.expression import Expr, IntExpr, Size, axes_of, shape_str
from autopar.ir.expr.relation import Relation
from autopar.ir.fixed import Fixed
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh

_NUMBERS = frozenset((int,))

SEED = "seed"
"""The role of an input that random ops depend on: an integer, 0 unless the user gives it."""
ASSUMPTION = "assumption"
"""The role of an output that is a scalar, for one value of which the program was made (see
`autopar.ir.assumptions`)."""
WRITTEN = "written"
"""The role of an output that is what forward writes to an input of the same label."""
ROLES = (
    "input",
    "parameter",
    "buffer",
    "state",
    "optimizer_state",
    "constant",
    "activation",
    "gradient",
    SEED,
    ASSUMPTION,
    WRITTEN,
)
STORED_ROLES = ("parameter", "buffer", "state", "optimizer_state", "constant")
"""Roles of inputs that the program owns: read from its weights, and the same in every call unless
an alias of `main` gives them new content. A `state` is a buffer that forward writes and that is in
no state dict of the model, as a cache of keys."""
PHASES = ("forward", "backward", "update")
LEVELS = ("serial", "partitioned", "executable")
MICROBATCH = "microbatch"
"""The name of the loop over the microbatches of a step."""


@dataclass(frozen=True, slots=True)
class Ref:
    """An argument that is a value of the enclosing function."""

    name: str


@dataclass(frozen=True, slots=True)
class DType:
    """An argument that is a dtype, by its name in `DTYPE_BYTES`."""

    name: str


Arg = Ref | DType | None | bool | int | float | complex | str | Expr | tuple["Arg", ...]
"""An argument of an op. Lists are tuples; ints may be rank expressions."""


def known_sizes(shape: Sequence[IntExpr], name: str) -> tuple[int, ...]:
    """Returns the sizes of a value that are numbers, as those of one rank are.

    Raises:
        TypeError: If one isn't.
    """
    sizes = tuple(size for size in shape if isinstance(size, int))
    if len(sizes) != len(shape):
        raise TypeError(f"%{name} has a shape that isn't known: {shape_str(shape)}")
    return sizes


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor.

    Attributes:
        name: Unique in its function.
        dtype: A name of `DTYPE_BYTES`.
        shape: Global sizes in a serial program, local ones (ints or rank expressions) after
            partition.
        role: One of `ROLES`.
        dist: The layout it is stored in; None before completion and after strip.
        origin: Why it has that layout.
        loc: The user's line or ONNX node, for inputs and parameters; ops carry their own.
    """

    name: str
    dtype: str
    shape: tuple[IntExpr, ...]
    role: str = "activation"
    dist: Layout | None = None
    origin: Origin | None = None
    loc: Loc = UNKNOWN

    @property
    def global_shape(self) -> tuple[IntExpr, ...]:
        """The shape of a value of a serial program.

        Raises:
            TypeError: If a size depends on the rank, that is, after partition.
        """
        # Most sizes are numbers, which this sees at once.
        if not _NUMBERS.issuperset(map(type, self.shape)) and any(
            isinstance(size, Expr) and axes_of(size) for size in self.shape
        ):
            raise TypeError(f"%{self.name} has a local shape {shape_str(self.shape)}")
        return self.shape

    @property
    def known_shape(self) -> tuple[int, ...]:
        """The shape where all sizes are numbers, as those of one rank are.

        Raises:
            TypeError: If one isn't.
        """
        return known_sizes(self.shape, self.name)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Pending:
    """A pending reduction that flows through an op: its operands are partial, so its results are.

    Attributes:
        axis: The mesh axis.
        monoid: The reduction.
        operands: Positions (in `Op.operands`) of the operands that are pending. The others hold
            their value on every process of the axis.
    """

    axis: str
    monoid: str
    operands: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpDist:
    """How an op is computed: the choice from which all layouts around it follow.

    Attributes:
        mesh: The processes that compute it.
        factors: The layout of each factor of the op's rule, by name; unnamed ones are whole.
        body: The alternative body that computes it; "" for the op itself.
        pending: Reductions that flow through (see `Pending`).
    """

    mesh: ProcessMesh
    factors: tuple[tuple[str, DimLayout], ...] = ()
    body: str = ""
    pending: tuple[Pending, ...] = ()

    def factor(self, name: str) -> DimLayout | None:
        """Returns the layout of a factor, or None if it isn't split."""
        return next((dim for factor, dim in self.factors if factor == name), None)


Loops = tuple[tuple[str, int], ...]
"""The loops around something, outermost first: the name of each, and how often it runs."""


class Lifetime(NamedTuple):
    """What an op belongs to. What is gathered for one lifetime isn't kept for another.

    Attributes:
        phase: The phase of a step.
        microbatch: The microbatch.
        loops: The loops that the op is in, see `Op.loops`.
    """

    phase: str
    microbatch: int = 0
    loops: Loops = ()

    @property
    def times(self) -> int:
        """How often an op of it runs."""
        return times(self.loops)


def times(loops: Loops) -> int:
    """Returns how often an op within some loops runs."""
    return math.prod(trip for _, trip in loops) if loops else 1


@dataclass(frozen=True, slots=True)
class Op:
    """An operation.

    Attributes:
        kind: An ATen overload (`aten.mm.default`), an own op (`comm.*`, `autopar.*`), or `call`,
            `repeat`, `barrier`.
        args: Arguments by schema name, in schema order; those equal to the default are left out.
        results: Names of the values it produces.
        dist: How it is computed; None before completion and after strip.
        origin: Why it is computed like that.
        loc: The user's line or ONNX node.
        stage, microbatch, phase: Its place in a pipeline or training step.
        loops: The loops that it is in, outermost first (see `ir.ops.loops`).
        plan: Decisions about time and memory: what the user wants (see `ir.activations`), and of
            copies and transfers, `recompute` or `offload`, what they are of; `place`, whether the
            host computes it (see `ir.memory.transfers`). Also what the op makes of no elements
            (see `ir.nothing`).
    """

    kind: str
    args: tuple[tuple[str, Arg], ...]
    results: tuple[str, ...]
    dist: OpDist | None = None
    origin: Origin | None = None
    loc: Loc = UNKNOWN
    stage: int = 0
    microbatch: int = 0
    phase: str = "forward"
    plan: tuple[tuple[str, str], ...] = ()
    loops: Loops = ()
    _operands: tuple[str, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def times(self) -> int:
        """How often it runs: once for each iteration, if it is in a loop."""
        return times(self.loops)

    @property
    def lifetime(self) -> Lifetime:
        """The phase of a microbatch, or of a loop, to which it belongs."""
        return Lifetime(self.phase, self.microbatch, self.loops)

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the values it reads, in the order of the arguments, with repetitions."""
        if self._operands is None:
            # All that looks at programs asks for them, over and over.
            found = tuple(each.name for _, arg in self.args for each in refs(arg))
            object.__setattr__(self, "_operands", found)
            return found
        return self._operands

    def arg(self, name: str, default: Arg = None) -> Arg:
        """Returns an argument, or `default` if it was left out."""
        return next((arg for key, arg in self.args if key == name), default)

    def with_args(self, changed: Mapping[str, Arg]) -> Op:
        """Returns the op with some arguments replaced; new ones are appended."""
        kept = [(key, changed.get(key, arg)) for key, arg in self.args]
        known = {key for key, _ in self.args}
        kept.extend((key, arg) for key, arg in changed.items() if key not in known)
        return replace(self, args=tuple(kept))

    def with_operands(self, names: Sequence[str]) -> Op:
        """Returns the op reading these values instead, position by position (see `operands`)."""
        fresh = iter(names)
        args = tuple((key, _substitute(arg, fresh)) for key, arg in self.args)
        return replace(self, args=args)


def refs(arg: Arg) -> Iterator[Ref]:
    """Yields the value references within an argument."""
    if isinstance(arg, Ref):
        yield arg
    elif isinstance(arg, tuple):
        for item in arg:
            yield from refs(item)


def _substitute(arg: Arg, fresh: Iterator[str]) -> Arg:
    if isinstance(arg, Ref):
        return Ref(next(fresh))
    if isinstance(arg, tuple):
        return tuple(_substitute(item, fresh) for item in arg)
    return arg


@dataclass(frozen=True, slots=True)
class Function:
    """A list of ops in execution order over named values.

    Attributes:
        name: Unique in the program.
        inputs: Names of the values that the caller provides, parameters and constants included.
        outputs: Names of the values it returns.
        values: Every value, inputs included, by name.
        ops: In execution order.
        aliases: Pairs (output, input): the output is the new content of the input's storage.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: Mapping[str, Value]
    ops: tuple[Op, ...]
    aliases: tuple[tuple[str, str], ...] = ()

    def producers(self) -> dict[str, Op]:
        """Returns the op that produces each value; inputs have none."""
        return {name: op for op in self.ops for name in op.results}

    def consumers(self) -> dict[str, list[Op]]:
        """Returns the ops that read each value, each op once per use, in execution order."""
        uses: dict[str, list[Op]] = {name: [] for name in self.values}
        for op in self.ops:
            for name in op.operands:
                uses[name].append(op)
        return uses


def on_mesh(op: Op) -> Op:
    """Returns an op that is computed as a whole on each process of its mesh."""
    return replace(op, dist=None if op.dist is None else OpDist(op.dist.mesh))


def fixed_of(dist: Layout | OpDist | None) -> Fixed:
    """Returns the part of the mesh on which something lies or runs; that of none is all of it."""
    return () if dist is None else dist.mesh.fixed


CALL = "call"
"""The kind of ops that call a function."""

REPEAT = "repeat"
"""The kind of ops that call a function a number of times (`trip`).

It is given what is `carried` from one iteration to the next, the entry of the iteration of what is
`sliced`, and what is `invariant`. It returns what is carried, and of anything else what all
iterations have of it, stacked. What an iteration does may depend on its number, a size (`index`)
whose least value is that of the first one."""

CALLS = {CALL: "callee", REPEAT: "body"}
"""The kinds of ops that run a function, with the argument that names it."""


def callee_of(op: Op) -> str:
    """Returns the name of the function that an op runs; its kind is one of `CALLS`."""
    return str(op.arg(CALLS[op.kind]))


def trip_of(op: Op) -> int:
    """Returns how often an op runs what it calls."""
    trip = op.arg("trip", 1)
    assert isinstance(trip, int)
    return trip


def index_of(op: Op) -> Size | None:
    """Returns the number by which an op counts how often it has run what it calls."""
    index = op.arg("index")
    return index if isinstance(index, Size) else None


def called(function: Function) -> set[str]:
    """Returns the names of the functions that a function calls."""
    return {callee_of(op) for op in function.ops if op.kind in CALLS}


@dataclass(frozen=True, slots=True)
class BoxDim:
    """A rank's piece of one sub-dimension: `length` of `size` elements from `start` on."""

    size: IntExpr
    start: IntExpr
    length: IntExpr


@dataclass(frozen=True, slots=True)
class Part:
    """Where the tensor of a port lies within a larger one, which is what the user knows.

    Completion may take a fused weight apart, of which each part is split for itself. The weights
    file holds the whole weight as before.

    Attributes:
        of: Name of the larger tensor.
        shape: Its global shape.
        start: Its index of the port's first element, along each dimension.
    """

    of: str
    shape: tuple[int, ...]
    start: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output as the user sees it, and the piece of it that a rank holds.

    Survives strip, so that global views, weight slices and re-sharding work on executables.

    Attributes:
        name: Name of the value.
        label: The user's name for it (an ONNX input, a parameter's qualified name).
        dtype: A name of `DTYPE_BYTES`.
        shape: Global shape.
        role: One of `ROLES`.
        box: Per dimension, the rank's piece of each sub-dimension, major to minor. The piece of
            the dimension is their product. A rank that has none of a tensor on another slice of the
            mesh has a first piece of no elements; for that, the box of a scalar on a slice has a
            dimension more than the scalar.
        fill: Of an input: what all its elements are unless something else is given. State that
            is in no weights file starts with it, and a learning rate is it until it is changed.
        aliases: Further labels of it: the other names of a tied parameter.
        part: Where it lies in the tensor that the label names; None if it is all of that.
        options: Of a learning rate: what else the optimizer does its parameters' updates with, as
            `betas`; plain values. Of an assumption: what it is.
    """

    name: str
    label: str
    dtype: str
    shape: tuple[IntExpr, ...]
    role: str
    box: tuple[tuple[BoxDim, ...], ...] = ()
    fill: float | None = None
    aliases: tuple[str, ...] = ()
    part: Part | None = None
    options: tuple[tuple[str, Arg], ...] = ()

    @property
    def user_label(self) -> str:
        """What the user calls it: its label, or the name of the value where it has none."""
        return self.label or self.name

    @property
    def known_shape(self) -> tuple[int, ...]:
        """The global shape, of which all sizes are numbers.

        Raises:
            TypeError: If one is open.
        """
        return known_sizes(self.shape, self.name)

    def __eq__(self, other: object) -> bool:
        """Returns whether all is the same; a NaN that fills is, unlike elsewhere, itself."""
        if not isinstance(other, Port):
            return NotImplemented
        # Tuples compare by identity first, as dataclasses did before Python 3.13.
        return _PARTS(self) == _PARTS(other)


_PARTS = attrgetter(*(each.name for each in fields(Port)))


@dataclass(frozen=True, slots=True)
class Signature:
    """The program's inputs (parameters and constants included) and outputs, in order."""

    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """What the example that a model was compiled with has besides tensors: part of the program.

    Values are as `autopar.ir.leaves.recorded` makes them, and called by their paths.

    Attributes:
        given: What a call or batch must have too.
        defaults: What the model's `forward` has by default, which a call may leave out.
        arguments: Of a forward pass: the names of the arguments of `forward` that may be given by
            position, in order; `*rest` takes all further ones. None are noted where `given` and
            `defaults` are empty.
    """

    given: tuple[tuple[str, Arg], ...] = ()
    defaults: tuple[tuple[str, Arg], ...] = ()
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """Functions over meshes.

    Attributes:
        level: One of `LEVELS`.
        functions: By name; execution starts at `main`.
        mesh: The mesh that all others in the program are part of; None before annotation and
            after strip.
        signature: The inputs and outputs of `main`.
        name: What the user calls the model.
        example: What is no tensor in the model's example; None if an older autopar compiled it,
            which didn't note that.
        relations: What must hold of open sizes in each call, beyond their ranges.
    """

    functions: Mapping[str, Function]
    signature: Signature = field(default_factory=Signature)
    mesh: ProcessMesh | None = None
    level: str = "serial"
    name: str = ""
    example: Example | None = Example()
    relations: tuple[Relation, ...] = ()

    @property
    def main(self) -> Function:
        """The function where execution starts."""
        return self.functions["main"]

    def with_main(self, main: Function) -> Program:
        """Returns the program with another main function."""
        return replace(self, functions={**self.functions, "main": main})
