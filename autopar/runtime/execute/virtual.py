"""The virtual mesh: all ranks of a deployment in one process, in lock-step.

The ranks run the same programs, emitted by the same emitter, as real processes do. Each is stepped
until it waits at a collective; when all members of a group have arrived, the collective is
computed by definition and they go on. There is no process group, so any number of ranks can be
simulated, and a mismatch between ranks is reported instead of hanging.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor, fx
from torch.distributed import HashStore  # type: ignore[attr-defined]

from autopar.base.errors import AutoparError, RuntimeFailure
from autopar.ir.collectives import WHOLE, declared
from autopar.ir.deployment import Deployment
from autopar.ir.expr.at_sizes import NO_SIZES, Sizes
from autopar.ir.expr.expression import IntExpr
from autopar.ir.memory.transfers import hosted
from autopar.ir.program import Op, Program, Value
from autopar.runtime.agree.agreement import Agreement
from autopar.runtime.agree.shared_lines import NUMBERS
from autopar.runtime.collectives.groups import Group, members_by_rank, virtual_groups
from autopar.runtime.collectives.host_transfers import settle
from autopar.runtime.collectives.reference import collective
from autopar.runtime.execute.describe import describe_op
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.simplify import without_needless
from autopar.runtime.execute.specialize import (
    code_expressions,
    code_key,
    specialize_functions,
    specialize_signature,
)
from autopar.runtime.execute.stepper import Request, Scope, Steps, Trace, step
from autopar.runtime.execute.updates import InPlace, abandoned_raised
from autopar.runtime.failure.standing import Standing
from autopar.runtime.job.messages import Messages
from autopar.runtime.kernels.bindings import fast_kernel
from autopar.runtime.ports.boxes import Box
from autopar.runtime.ports.keeping import Keeping, keeping_by_rank
from autopar.runtime.ports.open_inputs import deployment_at, planned_sizes
from autopar.runtime.ports.outputs import Side, assemble, empty_whole, ports_of
from autopar.runtime.ports.ports import (
    Arrays,
    RankArguments,
    all_outputs,
    check_inputs,
    check_present,
    is_open_state,
    labelled,
    plain_outputs,
    port_box,
    read_weights,
)
from autopar.runtime.ports.writing_back import WritingBack
from autopar.runtime.state.open_state import begin_state, beginning
from autopar.runtime.tuned.tuned import Tuned, can_be_tuned, tuned
from autopar.runtime.weights.weights import WeightFile

RankTrace = Callable[[int, Scope, Value, Tensor], Tensor]
"""Is shown each value that a rank computes and returns the one to go on with."""

ReadWeights = Callable[[int, Program], dict[str, Tensor]]
"""(rank, its program) -> its pieces of the weights."""


@dataclass(frozen=True)
class VirtualRank:
    """What one rank runs.

    Attributes:
        program: Its specialized program.
        module: The emitted program; shared by ranks that run equal code, though they differ in
            their groups, which only the virtual mesh knows.
        tuned: What it runs where nobody looks at values, if that is another form of it; shared
            likewise.
        weights: Its pieces of the weights by value name.
    """

    program: Program
    module: fx.GraphModule
    tuned: Callable[[], Tuned | None]
    weights: dict[str, Tensor]

    def steps(self, arguments: tuple[Tensor, ...], trace: Trace | None) -> Steps:
        """Returns a run of it that stops at collectives."""
        tuned = self.tuned() if trace is None else None
        if tuned is None:
            return step(self.module, arguments, trace)
        return step(tuned.module, (*arguments, *tuned.constants.of(arguments)))


class VirtualMesh:
    """All ranks of a deployment, ready to run.

    Args:
        deployment: The executable programs and who runs them.
        weights: The weights of all ranks; each rank gets its pieces.
        in_place: How new content is written into the ranks' weights. By default it takes their
            place after a run, and ranks share equal pieces.
        device: Where all ranks compute.
    """

    def __init__(
        self,
        deployment: Deployment,
        weights: WeightFile,
        in_place: InPlace | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        # What is written in place must not be shared between ranks.
        cache: dict[tuple[str, Box], Tensor] = {}
        ports = (port for program in deployment.programs for port in program.signature.inputs)
        begun = {port.name for port in ports if is_open_state(port)}

        def read(rank: int, program: Program) -> dict[str, Tensor]:
            written = None if in_place else Keeping(program).written
            pieces = {} if in_place else cache
            where = str(self.device)
            found = read_weights(program, weights, where, pieces, self.absent, written=written)
            return {name: each for name, each in found.items() if name not in begun}

        self.device = torch.device(device)
        self.absent: set[str] = set()
        self.standing = Standing()
        self.agreement = Agreement()
        self._in_place = in_place
        self._load(deployment, read)

    def _load(self, deployment: Deployment, read: ReadWeights) -> None:
        self._shared = deployment
        self._sizes = sizes = planned_sizes(deployment.programs[0])
        self.deployment = deployment = deployment_at(deployment, sizes) if sizes else deployment
        self.members = members_by_rank(deployment)
        self._has_hosted = any(map(hosted, deployment.programs))
        self.ranks = tuple(_load_ranks(deployment, read, self._in_place, self.device))
        self._keeping = keeping_by_rank(self.programs)

    def variant(self, deployment: Deployment) -> VirtualMesh:
        """See `Ranks`."""
        other = copy.copy(self)
        other._load(deployment, lambda rank, program: self.ranks[rank].weights)
        return other

    def at(self, sizes: Sizes) -> VirtualMesh:
        """See `Ranks`."""
        return self if sizes == self._sizes else self.variant(deployment_at(self._shared, sizes))

    @property
    def programs(self) -> Mapping[int, Program]:
        """See `Ranks`."""
        return {at: rank.program for at, rank in enumerate(self.ranks)}

    @property
    def stored(self) -> Mapping[int, dict[str, Tensor]]:
        """See `Ranks`."""
        return {at: rank.weights for at, rank in enumerate(self.ranks)}

    def reported(self) -> AbstractContextManager[None]:
        """See `Ranks`."""
        self.standing.check()
        return nullcontext()

    def tally(self, choice: int) -> Sequence[int]:
        """See `Ranks`."""
        return [int(choice == each) for each in range(NUMBERS)]

    def messages(self, meeting: bool) -> Messages:
        """See `Ranks`."""
        del meeting
        return Messages(HashStore())

    @torch.no_grad()
    def run(
        self,
        inputs: Arrays,
        trace: RankTrace | None = None,
        updates: bool = True,
        write: bool = False,
    ) -> dict[str, Tensor]:
        """Returns the global outputs by label, given global inputs by label.

        What the program writes into stored inputs stays there for the next run.

        Args:
            inputs: The user's inputs.
            trace: Shown every value of every rank.
            updates: Whether new content of weights is returned too.
            write: Whether the inputs that `forward` writes to are written to.

        Raises:
            InvalidInputError: If the inputs don't fit the program.
            RuntimeFailure: If an op fails, or the ranks' collectives don't match.
        """
        check_present(self.absent)
        tensors = check_inputs(self.deployment.programs[0], inputs)
        writing_back = WritingBack(self.ranks[0].program)
        if write:
            writing_back.check(tensors)
        for rank in self.ranks:
            begin_state(beginning(rank.program), NO_SIZES, rank.weights, self.device)
        arguments = {
            at: RankArguments(rank.program).of(tensors, rank.weights, str(self.device))
            for at, rank in enumerate(self.ranks)
        }
        with abandoned_raised():
            results = self.execute(arguments, trace)
        for at, kept in self._keeping.items():
            kept.keep(self.ranks[at].weights, results[at])
        program = self.ranks[0].program
        ports = program.signature.outputs
        wanted = all_outputs(program) if updates else plain_outputs(program)
        wholes = {
            at: self.whole("outputs", at, {rank: result[at] for rank, result in results.items()})
            for at in (*wanted, *(writing_back.sources if write else ()))
        }
        if write:
            writing_back.write(wholes.pop, tensors)
        return labelled(ports, wholes)

    def execute(
        self,
        arguments: Mapping[int, tuple[Tensor, ...]],
        trace: RankTrace | None = None,
        *,
        number: int | None = None,
    ) -> Mapping[int, tuple[Tensor, ...]]:
        """See `Ranks`."""
        del number
        self.standing.check()
        steps = [
            rank.steps(arguments[at], _trace_of(at, trace)) for at, rank in enumerate(self.ranks)
        ]
        try:
            with torch.no_grad():
                results = dict(enumerate(_LockStep(steps, self.members).run()))
            if self._has_hosted:
                settle(self.device)
            return results
        except AutoparError as error:
            # Some ranks may have overwritten their state.
            self.standing.fail(error)
            raise

    def whole(
        self, side: Side, at: int, pieces: Mapping[int, Tensor], everywhere: bool = True
    ) -> Tensor:
        """See `Ranks`."""
        ports = {rank: ports_of(self.ranks[rank].program, side)[at] for rank in pieces}
        boxed = ((port_box(ports[rank], {}), piece) for rank, piece in pieces.items())
        return assemble(empty_whole(ports[0]), boxed)

    def close(self) -> None:
        """See `Ranks`."""
        self.standing.close()


def _load_ranks(
    deployment: Deployment, read: ReadWeights, in_place: InPlace | None, device: torch.device
) -> Iterator[VirtualRank]:
    expressions = [code_expressions(program) for program in deployment.programs]
    emitted: dict[tuple[int, tuple[IntExpr | None, ...]], _Emitted] = {}
    for rank, entry in enumerate(deployment.ranks):
        coords = deployment.coords_of(rank)
        shared = deployment.program_of(rank)
        known = entry.program, code_key(expressions[entry.program], coords)
        if known not in emitted:
            program, groups = specialize_functions(shared, coords), virtual_groups(deployment, rank)
            module = emit(program, groups, device, in_place)
            tuning = partial(_tuned, program, groups, device)
            emitted[known] = _Emitted(program, module, cache(tuning))
        program, module, tune = emitted[known]
        program = replace(program, signature=specialize_signature(shared, coords))
        yield VirtualRank(program, module, tune, read(rank, program))


class _Emitted(NamedTuple):
    """What ranks run that run equal code: see `VirtualRank`."""

    program: Program
    module: fx.GraphModule
    tuned: Callable[[], Tuned | None]


def _tuned(program: Program, groups: Mapping[str, Group], device: torch.device) -> Tuned | None:
    if not can_be_tuned(program, device):
        return None
    program = without_needless(program)
    return tuned(program, emit(program, groups, find_kernel=fast_kernel))


def _trace_of(rank: int, trace: RankTrace | None) -> Trace | None:
    if trace is None:
        return None
    return lambda scope, value, tensor: trace(rank, scope, value, tensor)


class _LockStep:
    """Runs ranks until each has finished or all that are left wait in vain."""

    def __init__(
        self, steps: list[Steps], members: Mapping[tuple[str, int], tuple[int, ...]]
    ) -> None:
        self.steps = steps
        self.members = members
        self.waiting: dict[int, Request] = {}
        self.results: dict[int, tuple[Tensor, ...]] = {}

    def run(self) -> list[tuple[Tensor, ...]]:
        """Returns each rank's outputs."""
        ready: dict[int, Tensor | None] = dict.fromkeys(range(len(self.steps)))
        while ready:
            arrived: dict[tuple[int, ...], None] = {}
            for rank, answer in ready.items():
                self._advance(rank, answer)
                if rank in self.waiting:
                    arrived[self._group(rank)] = None
            ready = {}
            for members in arrived:
                ready.update(self._exchange(members))
        if self.waiting:
            raise RuntimeFailure(self._stuck())
        return [self.results[rank] for rank in range(len(self.steps))]

    def _advance(self, rank: int, answer: Tensor | None) -> None:
        try:
            # A generator is started with None and resumed with the collective's result.
            self.waiting[rank] = self.steps[rank].send(answer)  # type: ignore[arg-type]
        except StopIteration as finished:
            self.results[rank] = finished.value
        except AutoparError as error:
            raise RuntimeFailure(f"rank {rank}: {error}") from error

    def _group(self, rank: int) -> tuple[int, ...]:
        op = self.waiting[rank].op
        members = self.members.get((str(op.arg("group")), rank))
        if members is None:
            raise RuntimeFailure(f"rank {rank}: {describe_op(op)} names a group it isn't in")
        return members

    def _exchange(self, members: tuple[int, ...]) -> dict[int, Tensor]:
        """Returns the members' answers if all of them wait at the same collective."""
        if not all(rank in self.waiting and self._group(rank) == members for rank in members):
            return {}
        requests = [self.waiting[rank] for rank in members]
        for rank, request in zip(members[1:], requests[1:], strict=True):
            if _signature(request) != _signature(requests[0]):
                raise RuntimeFailure(_mismatch(members[0], requests[0], rank, request))
        for rank in members:
            del self.waiting[rank]
        tensors = [request.tensor for request in requests]
        results = _separated(collective(requests[0].op, tensors), tensors)
        return dict(zip(members, results, strict=True))

    def _stuck(self) -> str:
        lines = [
            f"  rank {rank}: waits at {describe_op(self.waiting[rank].op)} for ranks"
            f" {[m for m in self._group(rank) if not self._joined(m, self._group(rank))]}"
            for rank in sorted(self.waiting)[:8]
        ]
        finished = f"; {len(self.results)} ranks have finished" if self.results else ""
        more = ["  ..."] if len(self.waiting) > 8 else []
        return "\n".join(
            [f"deadlock: {len(self.waiting)} ranks wait for each other{finished}", *lines, *more]
        )

    def _joined(self, rank: int, members: tuple[int, ...]) -> bool:
        return rank in self.waiting and self._group(rank) == members


def _separated(results: Iterable[Tensor], sent: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yields each member's result in memory of its own, as processes have it: it may be written."""
    taken = {_memory(tensor) for tensor in sent}
    for result in results:
        yield result.clone() if _memory(result) in taken else result
        taken.add(_memory(result))


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _signature(request: Request) -> tuple[object, ...]:
    """Returns what all members of a collective must agree on."""
    op: Op = request.op
    shape = list(request.tensor.shape)
    for each in declared(op.kind, op.loc).dims:
        # Blocks of the dimension that is being gathered may differ.
        dim = op.arg(each.name)
        if isinstance(dim, int) and each.brings != WHOLE:
            shape[dim] = -1
    args = tuple((name, arg) for name, arg in op.args if name != "self")
    return op.kind, args, request.tensor.dtype, tuple(shape)


def _mismatch(first: int, one: Request, second: int, other: Request) -> str:
    return (
        "ranks meet in one group with different collectives:\n"
        f"  rank {first}: {_describe_request(one)}\n  rank {second}: {_describe_request(other)}"
    )


def _describe_request(request: Request) -> str:
    tensor = request.tensor
    args = ", ".join(f"{name}={arg}" for name, arg in request.op.args if name != "self")
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{describe_op(request.op)} of {dtype}{list(tensor.shape)} with {args}"
