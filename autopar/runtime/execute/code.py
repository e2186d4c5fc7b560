"""The code of a rank for any sizes that its program leaves open: a new size costs no new code."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from autopar.ir.expr.at_sizes import Sizes
from autopar.ir.program import Program
from autopar.ir.used_sizes import used_sizes
from autopar.runtime.execute.simplify import without_needless
from autopar.runtime.execute.specialize import Emptiness, specialize_functions

Forward = Callable[..., tuple[Tensor, ...]]
"""Computes a program's outputs of its inputs."""


class Code:
    """What a rank runs.

    It is generated when it is first called for, and again only for sizes at which the rank holds
    nothing of other values: so a few times for all sizes there are.

    Args:
        program: A serial program, or an executable one.
        coords: The rank's coordinate per axis.
        generate: Returns the code of a specialized program (see `emit`).
    """

    def __init__(
        self, program: Program, coords: Mapping[str, int], generate: Callable[[Program], Forward]
    ) -> None:
        self._program = program
        self._coords = coords
        self._generate = generate
        self._emptiness = Emptiness(program, coords)
        self._generated: dict[tuple[bool, ...], tuple[Forward, tuple[str, ...]]] = {}

    def at(self, sizes: Sizes) -> Forward:
        """Returns the code at sizes, by name; it takes the inputs of the program by position.

        Raises:
            InvalidInputError: If there is no kernel for an op.
            RuntimeFailure: If an expression names an axis that the rank lacks.
        """
        empty = self._emptiness.at(sizes)
        if empty not in self._generated:
            concrete = self._concrete(sizes)
            names = tuple(size.name for size in used_sizes(concrete))
            self._generated[empty] = self._generate(concrete), names
        forward, names = self._generated[empty]
        numbers = tuple(sizes[name] for name in names)
        if not numbers:
            return forward
        return lambda *inputs: forward(*inputs, *numbers)

    def _concrete(self, sizes: Sizes) -> Program:
        return without_needless(specialize_functions(self._program, self._coords, sizes))
