"""Who carries out the requests of a session: its ranks in processes, or all within this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from autopar.ir.builds.files import Build
from autopar.ir.expr.at_sizes import Sizes
from autopar.runtime.execute.session import Session
from autopar.runtime.execute.sized import KEPT_SIZES
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.kernels.table import IR_DTYPES, TORCH_DTYPES
from autopar.runtime.ports.open_inputs import deployment_at
from autopar.runtime.serving.arena import Arena, end_of, laid_out
from autopar.runtime.serving.crew import Crew
from autopar.runtime.weights.weights import WeightFile

Parts = Sequence[Mapping[str, Tensor]]
"""Global inputs by label, in parts that follow one another along the first dimension."""

Types = Mapping[str, tuple[str, tuple[int, ...]]]
"""Dtypes and global shapes by label."""


class Runner(Protocol):
    """Carries out requests, one at a time."""

    def run(self, parts: Parts, sizes: Sizes, outputs: Types) -> dict[str, Tensor]:
        """Returns global outputs by label.

        Args:
            parts: The inputs.
            sizes: Those that are open, of all parts together.
            outputs: What the outputs are.

        Raises:
            InvalidInputError: If they are refused. The runner can go on.
            RuntimeFailure: If a rank fails. It can't go on.
        """

    def reset(self) -> None:
        """Forgets what calls left: state is as it was before the first one.

        Raises:
            InvalidInputError: If it can't be read any more.
            RuntimeFailure: If a rank fails. It can't go on.
        """

    def close(self) -> None:
        """Ends the ranks."""


class InProcesses:
    """Runs requests in processes of the session's own, by way of memory that they share.

    Args:
        crew: The processes.
        seconds: For how long a request may take.
    """

    def __init__(self, crew: Crew, seconds: float) -> None:
        self._crew = crew
        self._seconds = seconds
        self._arena: Arena | None = None

    def run(self, parts: Parts, sizes: Sizes, outputs: Types) -> dict[str, Tensor]:
        """See `Runner`."""
        given = laid_out({label: _type_of(label, parts) for label in parts[0]})
        taken = laid_out(outputs, end_of(given.values()))
        arena, is_new = self._arena_of(end_of([*given.values(), *taken.values()]))
        for label, slot in given.items():
            room = arena.tensor(slot)
            if len(parts) == 1:
                room.copy_(parts[0][label])
            else:
                torch.cat([part[label] for part in parts], out=room)
        request = {"inputs": given, "sizes": sizes, "outputs": taken}
        self._crew.ask(request, arena.file if is_new else None, self._seconds)
        return {label: arena.tensor(slot).clone() for label, slot in taken.items()}

    def reset(self) -> None:
        """See `Runner`."""
        self._crew.ask({"reset": True}, None, self._seconds)

    def close(self) -> None:
        """See `Runner`."""
        self._crew.close()
        if self._arena is not None:
            self._arena.close()

    def _arena_of(self, size: int) -> tuple[Arena, bool]:
        """Returns memory of a size, and whether the ranks don't know it yet."""
        if self._arena is not None and size <= self._arena.size:
            return self._arena, False
        if self._arena is not None:
            self._arena.close()
        self._arena = Arena.make(size)
        return self._arena, True


class OfOneRank:
    """Runs a build of one rank, within this process.

    Args:
        session: The rank.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, parts: Parts, sizes: Sizes, outputs: Types) -> dict[str, Tensor]:
        """See `Runner`."""
        inputs = {label: _whole(label, parts) for label in parts[0]}
        room = {
            label: torch.empty(shape, dtype=TORCH_DTYPES[dtype])
            for label, (dtype, shape) in outputs.items()
        }
        self._session.run_into(inputs, sizes, room)
        return room

    def reset(self) -> None:
        """See `Runner`."""
        self._session.reset()

    def close(self) -> None:
        """See `Runner`."""
        self._session.close()


class OnVirtualMesh:
    """Runs all ranks of a build in turns, within this process.

    Args:
        build: The build.
    """

    def __init__(self, build: Build) -> None:
        self._build = build
        self._at = lru_cache(KEPT_SIZES)(self._mesh_at)
        self._mesh = self._opened()

    def run(self, parts: Parts, sizes: Sizes, outputs: Types) -> dict[str, Tensor]:
        """See `Runner`."""
        inputs = {label: _whole(label, parts) for label in parts[0]}
        found = self._at(tuple(sizes.items())).run(inputs, updates=False)
        return {label: found[label] for label in outputs}

    def reset(self) -> None:
        """See `Runner`."""
        self._at.cache_clear()
        self._mesh = self._opened()

    def close(self) -> None:
        """See `Runner`."""
        self._mesh.close()

    def _opened(self) -> VirtualMesh:
        with WeightFile(build=self._build) as weights:
            return VirtualMesh(self._build.deployment, weights)

    def _mesh_at(self, items: tuple[tuple[str, int], ...]) -> VirtualMesh:
        if not items:
            return self._mesh
        return self._mesh.variant(deployment_at(self._build.deployment, dict(items)))


def _type_of(label: str, parts: Parts) -> tuple[str, tuple[int, ...]]:
    """Returns the dtype and shape of an input of all parts."""
    first = parts[0][label]
    if not first.ndim:
        return IR_DTYPES[first.dtype], ()
    rows = sum(len(part[label]) for part in parts)
    return IR_DTYPES[first.dtype], (rows, *first.shape[1:])


def _whole(label: str, parts: Parts) -> Tensor:
    return parts[0][label] if len(parts) == 1 else torch.cat([part[label] for part in parts])
