"""Runs: at which indices of the pipeline's axis the processes of stages are.

A stage is at one index of the axis, or at a run of them. Along that the axis is an ordinary one, by
which what the stage computes may be split. So the axis is cut into runs one behind the other, of as
many indices each as its *width*, and a schedule sees a process for each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from autopar.ir.fixed import Index, is_within, run_of
from autopar.ir.mesh import ProcessMesh

Widths = tuple[int, ...]
"""How many indices each run has; none: one each."""


@dataclass(frozen=True)
class Runs:
    """The runs of an axis.

    Attributes:
        indices: Of each the indices, or the index.
    """

    indices: tuple[int | range, ...]

    @classmethod
    def of(cls, mesh: ProcessMesh, axis: str, widths: Sequence[int] = ()) -> Runs:
        """Returns the runs of an axis of a mesh.

        Args:
            mesh: The whole mesh.
            axis: The axis.
            widths: How many indices each has; none: one each.
        """
        sizes = widths or (1,) * mesh.axis_size(axis)
        ends = [*accumulate(sizes)]
        return cls(tuple(run_of(end - size, end) for size, end in zip(sizes, ends, strict=True)))

    def __len__(self) -> int:
        return len(self.indices)

    def number(self, index: Index | None) -> int | None:
        """Returns the number of the run in which a part of the mesh is; None if it is in none."""
        if index is None:
            # A run of all indices is no part of the mesh, but all of it.
            return 0 if isinstance(self.indices[0], range) and len(self) == 1 else None
        within = (at for at, own in enumerate(self.indices) if is_within(index, own))
        return next(within, None)
