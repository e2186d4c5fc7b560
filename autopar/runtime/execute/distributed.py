"""One rank of a deployment among the processes of a job.

It connects to the other ranks, agrees with them on the build, loads the rank's program and weights,
and runs it as often as wanted. Whatever goes wrong on one rank ends all of them, and all of them
know why.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autopar.base.arguments import FLAG, SECONDS, expect
from autopar.base.errors import AutoparError, InvalidInputError
from autopar.ir.builds.files import Build, read_build
from autopar.ir.deployment import Deployment
from autopar.ir.devices import CUDA
from autopar.ir.expr.at_sizes import Sizes
from autopar.ir.memory.transfers import hosted
from autopar.ir.program import Program
from autopar.runtime.agree.handshake import Identity
from autopar.runtime.collectives.host_transfers import settle
from autopar.runtime.execute.code import Code
from autopar.runtime.execute.connection import Connection
from autopar.runtime.execute.generate import Generator
from autopar.runtime.execute.replay import recording
from autopar.runtime.execute.sized import SizedRank
from autopar.runtime.execute.specialize import specialize_signature
from autopar.runtime.execute.updates import InPlace
from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.failure.standing import Standing
from autopar.runtime.job.closing import Closing, close_at_exit
from autopar.runtime.job.device import backend_for, check_device, choose_device
from autopar.runtime.job.messages import Messages
from autopar.runtime.job.patience import DEFAULT_START_TIMEOUT, DEFAULT_TIMEOUT
from autopar.runtime.job.processes import Processes
from autopar.runtime.ports.keeping import Keeping
from autopar.runtime.ports.open_inputs import planned_sizes
from autopar.runtime.ports.outputs import Side
from autopar.runtime.ports.ports import read_weights
from autopar.runtime.ports.staging import moved
from autopar.runtime.tracing.tracer import Trace, Tracer
from autopar.runtime.weights.identity import identity_of
from autopar.runtime.weights.weights import WeightFile, weight_paths
from autopar.version import __version__


class JobRank(Closing):
    """One rank of a build, connected to the others: `Ranks`.

    Args:
        build: The build folder, which must be the same for all ranks.
        backend: See `Session`, as for what isn't described here.
        in_place: What is looked at before a training step overwrites anything; by default nothing.

    Attributes:
        build: What was read of the build folder.
        files: What counts before the weights of the build.
        program: What the rank runs, with its own inputs and outputs.
        weights: Its pieces of the stored inputs by value name.
        sized: The rank at any sizes.
        planned: The rank at the sizes that it was planned for.

    Raises:
        RuntimeFailure: If the ranks differ, or another rank failed.
        InvalidInputError: If the build is damaged.
    """

    def __init__(
        self,
        build: str | Path,
        *,
        backend: str = "auto",
        timeout: float = DEFAULT_TIMEOUT,
        start_timeout: float = DEFAULT_START_TIMEOUT,
        torch_compile: bool | None = None,
        cuda_graphs: bool = False,
        processes: Processes | None = None,
        on_failure: Callable[[RankFailure], None] | None = None,
        weights: str | Path | Sequence[str | Path] = (),
        in_place: InPlace | None = None,
        check_inputs: bool = True,
        trace: Trace | str | Path | None = None,
    ) -> None:
        expect(SECONDS, timeout=timeout, start_timeout=start_timeout)
        expect(FLAG, cuda_graphs=cuda_graphs, check_inputs=check_inputs)
        expect(FLAG.or_none, torch_compile=torch_compile)
        self.processes = processes or Processes.from_environment()
        self.rank = self.processes.rank
        self._connection = Connection(self.processes, timeout, start_timeout, on_failure)
        self.supervisor = self._connection.supervisor
        self.absent: set[str] = set()
        self._tracer: Tracer | None = None
        try:
            with self.supervisor.reported():
                how = (torch_compile, cuda_graphs)
                self._open(build, backend, how, weights, in_place or InPlace(), trace)
        except BaseException:
            self.close()
            raise
        self.agreement = self._connection.agreement(self.device, check_inputs)
        close_at_exit(self._connection)
        if self._tracer is not None:
            close_at_exit(self._tracer)
            if not self.processes.local:
                meet = self._connection.tally
                self._tracer.compare_clocks(lambda: meet(0), self.messages(meeting=False))

    def _open(
        self,
        build: str | Path,
        backend: str,
        how: tuple[bool | None, bool],
        weights: str | Path | Sequence[str | Path],
        in_place: InPlace,
        trace: Trace | str | Path | None,
    ) -> None:
        self.build = read_build(build)
        self.deployment = self.build.deployment
        self.files = weight_paths(weights)
        backend = backend_for(backend, self.build)
        self.device = choose_device(backend, self.processes)
        check_device(self.device, self.build)
        torch_compile, cuda_graphs = how
        if torch_compile is None:
            torch_compile = self.device.type == CUDA
        if cuda_graphs and self.device.type != CUDA:
            raise InvalidInputError(
                f"cuda_graphs=True: this rank computes on {self.device}; leave it out there"
            )
        graphs = ", cuda_graphs=True" if cuda_graphs else ""
        traced = "" if trace is None else ", trace="
        self._agree(f"torch_compile={torch_compile}{graphs}{traced}")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        where = self.supervisor.whereabouts
        record = recording(torch.cuda.graph_pool_handle()) if cuda_graphs else None
        if trace is not None:
            self._tracer = Tracer(Trace.of(trace), self.rank, self.deployment, self.device)
        self._generator = Generator(
            self.device, in_place, torch_compile, where, record, self._tracer
        )
        self._specialize()
        self.weights = self._read_weights()
        self._connection.meet("loaded")
        self._connect()
        # Who ends its connections at once would end those that others are still making.
        self._connection.meet("connected")

    def _agree(self, how: str) -> None:
        read = identity_of(self.files)
        options = f"{self.device.type}, {how}, weights={read}"
        ranks = self.deployment.world_size
        self._connection.agree(Identity(self.build.digest, ranks, __version__, options))

    def _specialize(self) -> None:
        shared, coords = self.deployment.program_of(self.rank), self.deployment.coords_of(self.rank)
        self.program = replace(shared, signature=specialize_signature(shared, coords))
        self._has_hosted = bool(hosted(shared))

    def _read_weights(self) -> dict[str, Tensor]:
        written, device = Keeping(self.program).written, str(self.device)
        with WeightFile(*self.files, build=self.build) as file:
            return read_weights(self.program, file, device, absent=self.absent, written=written)

    def _connect(self) -> None:
        groups = self._connection.groups(self.deployment, self.device)
        coords = self.deployment.coords_of(self.rank)
        code = Code(self.program, coords, partial(self._generator, groups))
        self.sized = SizedRank(self.deployment, self.rank, self.program, code)
        self.planned = self.sized.at(planned_sizes(self.program))

    @property
    def programs(self) -> Mapping[int, Program]:
        """See `Ranks`."""
        return {self.rank: self.program}

    @property
    def stored(self) -> Mapping[int, dict[str, Tensor]]:
        """See `Ranks`."""
        return {self.rank: self.weights}

    @property
    def standing(self) -> Standing:
        """See `Ranks`."""
        return self.supervisor.standing

    def reported(self) -> AbstractContextManager[None]:
        """See `Ranks`."""
        return self.supervisor.reported()

    def tally(self, choice: int) -> Sequence[int]:
        """See `Ranks`."""
        return self._connection.tally(choice)

    def messages(self, meeting: bool) -> Messages:
        """See `Ranks`."""
        return self._connection.messages(meeting)

    def execute(
        self, arguments: Mapping[int, tuple[Tensor, ...]], *, number: int | None = None
    ) -> Mapping[int, tuple[Tensor, ...]]:
        """See `Ranks`."""
        with self.supervisor.reported(), torch.no_grad():
            self.supervisor.whereabouts.begin(number)
            results = self.planned.forward(*arguments[self.rank])
            if self._has_hosted:
                settle(self.device)
            return {self.rank: results}

    def whole(
        self, side: Side, at: int, pieces: Mapping[int, Tensor], everywhere: bool
    ) -> Tensor | None:
        """See `Ranks`."""
        gathering = self.planned.gathering
        gather = gathering.to_all if everywhere else gathering.to_first
        with self.supervisor.reported():
            # What waits in the host's memory is sent by way of the device.
            return gather(side, at, moved(pieces[self.rank], self.device))

    def variant(self, deployment: Deployment) -> JobRank:
        """See `Ranks`."""
        other = copy.copy(self)
        other.deployment = deployment
        with self.supervisor.reported():
            other._specialize()
            other._connect()
        return other

    def at(self, sizes: Sizes) -> JobRank:
        """See `Ranks`."""
        other = copy.copy(self)
        other.planned = self.sized.at(sizes)
        other.program = other.planned.program
        return other

    def close(self) -> None:
        """Leaves the others, and ends the process group if nobody else uses it."""
        try:
            if self._tracer is not None:
                self._tracer.close()
        finally:
            self._connection.close()


def read_or_tell(build: str | Path, **options: Any) -> Build:
    """Reads a build that ranks are about to open; if one can't, the others learn why.

    Args:
        build: The build folder.
        options: Those of a `Session`; others don't count.

    Raises:
        InvalidInputError: If the build is damaged.
    """
    try:
        return read_build(build)
    except AutoparError:
        known = ("processes", "timeout", "start_timeout", "on_failure")
        JobRank(build, **{name: options[name] for name in known if name in options})
        raise
