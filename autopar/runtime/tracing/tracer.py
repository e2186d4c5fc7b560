"""The trace of one rank: which calls are recorded, and what becomes of it."""

from __future__ import annotations

import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from autopar.base.arguments import COUNT, FLAG, NATURAL, PATH, expect
from autopar.base.errors import InvalidInputError, os_reason
from autopar.base.file import check_file
from autopar.ir.deployment import Deployment
from autopar.ir.devices import CPU
from autopar.ir.program import Program
from autopar.runtime.execute.code import Forward
from autopar.runtime.job.closing import Closing
from autopar.runtime.job.messages import Messages
from autopar.runtime.tracing.files import merge_ranks, path_of_rank, write_rank
from autopar.runtime.tracing.recorders import Clock, Kernels, Recorder
from autopar.runtime.tracing.spans import add_spans, descriptions

PATIENCE = 10.0
"""Seconds that rank 0 waits for the traces of the others."""

_MEETINGS = 9
"""How often ranks meet to compare their clocks."""


@dataclass(frozen=True)
class Trace:
    """What is traced, and where to.

    Attributes:
        path: The file of all ranks together, that Perfetto and Chrome open. Beside it is a folder
            with the files of the ranks.
        skip: How many calls go by before: the first ones take longer.
        steps: How many calls are traced then; by default all there are until the end, which takes
            about 100 bytes of memory per op and call, and as much again on the disk.
        kernels: Whether torch's profiler records, which knows what a GPU does and when, and takes
            longer; by default on GPUs.

    Raises:
        InvalidInputError: If these are no such values.
    """

    path: str | Path
    skip: int = 0
    steps: int | None = None
    kernels: bool | None = None

    def __post_init__(self) -> None:
        expect(PATH, path=self.path)
        expect(NATURAL, skip=self.skip)
        expect(COUNT.or_none, steps=self.steps)
        expect(FLAG.or_none, kernels=self.kernels)

    @classmethod
    def of(cls, given: Trace | str | Path) -> Trace:
        """Returns what a user gave; a path stands for all calls."""
        return given if isinstance(given, cls) else cls(given)  # type: ignore[arg-type]


class Tracer(Closing):
    """Traces a rank.

    Args:
        trace: What, and where to.
        rank: The rank.
        deployment: All ranks.
        device: Where it computes.

    Raises:
        InvalidInputError: If no file can be written there.
    """

    def __init__(
        self, trace: Trace, rank: int, deployment: Deployment, device: torch.device
    ) -> None:
        self.path = Path(trace.path)
        if rank == 0:
            check_file(self.path)
        self._rank = rank
        self._deployment = deployment
        self._trace = trace
        kernels = device.type != CPU if trace.kernels is None else trace.kernels
        self._recorder: Recorder = Kernels() if kernels else Clock()
        self._calls = 0
        self._behind = 0
        self._closed = False
        mine = path_of_rank(self.path, rank)
        try:
            mine.unlink(missing_ok=True)
        except OSError as error:
            raise InvalidInputError(f"can't write {mine}: {os_reason(error)}") from error

    def add(self, program: Program, module: fx.GraphModule) -> None:
        """Lets the code of a program be recorded."""
        self._recorder.described.update(descriptions(program, self._deployment, self._rank))
        add_spans(module, self._recorder.spanned)

    def traced(self, forward: Forward) -> Forward:
        """Returns a program's code, each call of which counts."""

        def run(*inputs: Any) -> Any:
            with self._call():
                return forward(*inputs)

        return run

    def compare_clocks(self, meet: Callable[[], object], messages: Messages) -> None:
        """Finds by how much the clock of this rank is ahead of that of rank 0.

        Args:
            meet: Returns when all ranks have come, about the same time on all.
            messages: What ranks tell one another.
        """
        mine = []
        for _ in range(_MEETINGS):
            meet()
            mine.append(time.time_ns())
        first = json.loads(messages.of_all(json.dumps(mine))[0])
        self._behind = round(statistics.median(a - b for a, b in zip(mine, first, strict=True)))

    def close(self) -> None:
        """Writes what was recorded; rank 0 merges it with that of the others."""
        if self._closed:
            return
        self._closed = True
        self._recorder.stop()
        base, events = self._recorder.events()
        size, coords = self._deployment.world_size, self._deployment.coords_of(self._rank)
        where = ", ".join(f"{axis}={at}" for axis, at in coords.items())
        name = f"rank {self._rank} ({where})" if where else f"rank {self._rank}"
        write_rank(self.path, self._rank, size, name, base - self._behind, events)
        if self._rank == 0:
            self._merge(size)

    def _merge(self, size: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while absent := [r for r in range(size) if not path_of_rank(self.path, r).exists()]:
            if time.monotonic() > deadline:
                warnings.warn(
                    f"{self.path} lacks ranks {', '.join(map(str, absent))}, which have written no"
                    f" {path_of_rank(self.path, absent[0])} within {PATIENCE:g} s",
                    stacklevel=2,
                )
                break
            time.sleep(0.02)
        merge_ranks(self.path, [r for r in range(size) if r not in absent])

    @contextmanager
    def _call(self) -> Iterator[None]:
        number, self._calls = self._calls, self._calls + 1
        past = number - self._trace.skip
        if past == 0:
            self._recorder.start()
        if past == self._trace.steps:
            self._recorder.stop()
        with self._recorder.step(number):
            yield
