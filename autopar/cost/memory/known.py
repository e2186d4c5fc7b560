"""What is known of a program whose memory is looked at, and of what it calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from autopar.cost.memory.buffers import Execution
from autopar.cost.memory.kernel_results import Args
from autopar.ir.collectives import runs_of_group
from autopar.ir.expr.expression import Expr, FromFirst, evaluate
from autopar.ir.memory.strides import Placed, dense
from autopar.ir.program import Arg, Op, Program, Value


class Given(NamedTuple):
    """What a function is called with.

    Attributes:
        operands: How each lies in memory, and which pieces of memory it is in.
        pieces: The bytes of each piece, whether nobody else reads it any more, and whether it is in
            the host's memory.
    """

    operands: tuple[tuple[Placed, tuple[int, ...]], ...]
    pieces: tuple[tuple[int, bool, bool], ...]

    @property
    def nbytes(self) -> int:
        """The bytes of what is on the device."""
        return sum(nbytes for nbytes, _, is_host in self.pieces if not is_host)


class Taken(NamedTuple):
    """What a call takes, and what it leaves.

    Attributes:
        peak_bytes: The most that is there at a time while it runs, with what it was given.
        results: How each lies in memory, and which pieces it is in: new ones behind those given.
        nbytes: The bytes of new pieces.
        hosts: The new pieces that are in the host's memory.
        host_bytes: The most that is there in the host's memory while it runs, but for what it was
            given and leaves.
    """

    peak_bytes: int
    results: tuple[tuple[Placed, tuple[int, ...]], ...]
    nbytes: Mapping[int, int]
    hosts: frozenset[int] = frozenset()
    host_bytes: int = 0


class Known:
    """What all functions of a program have in common."""

    def __init__(
        self,
        program: Program,
        coords: Mapping[str, int],
        execution: Execution,
    ) -> None:
        self.program = program
        # An executable program has no mesh, and its expressions have axes all the same.
        self.coords = FromFirst(coords)
        self.execution = execution
        self.evaluated: dict[Expr, int] = {}
        self.inside: dict[tuple[str, Given], Taken] = {}

    def integer(self, size: int | Expr) -> int:
        if isinstance(size, int):
            return size
        found = self.evaluated.get(size)
        if found is None:
            found = self.evaluated[size] = evaluate(size, self.coords)
        return found

    def shape(self, value: Value) -> tuple[int, ...]:
        return tuple(map(self.integer, value.shape))

    def dense(self, value: Value) -> Placed:
        """Returns how a value lies in memory that is taken for it alone."""
        shape = self.shape(value)
        return Placed(shape, dense(shape), value.itemsize)

    def plain(self, op: Op) -> Args:
        """Returns the arguments of an op that are integers, texts or lists of integers."""
        plain: list[tuple[str, Arg]] = []
        for name, arg in op.args:
            if isinstance(arg, str):
                plain.append((name, arg))
            elif isinstance(arg, (int, Expr)):
                plain.append((name, self.integer(arg)))
            elif isinstance(arg, tuple) and all(isinstance(item, (int, Expr)) for item in arg):
                plain.append((name, tuple(self.integer(item) for item in arg)))  # type: ignore[arg-type]
        return tuple(plain)

    def members(self, op: Op) -> int:
        """Returns how many ranks take part in a collective."""
        axes, mesh = op.arg("axes"), self.program.mesh
        if isinstance(axes, tuple) and mesh is not None:
            part = mesh.at(runs_of_group(op).items())
            return part.axes_size(tuple(map(str, axes)))
        return self.execution.group_sizes.get(str(op.arg("group")), 1)
