"""Runs one rank of a deployment among real processes.

A session connects to the other ranks, agrees with them on the build, loads the rank's program and
weights, and runs it as often as wanted. Whatever goes wrong on one rank ends all of them, and all
of them know why.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from autopar.base.arguments import FLAG, PATH, SECONDS, expect
from autopar.base.errors import AutoparError, InvalidInputError
from autopar.ir.builds.files import Build, read_build
from autopar.ir.deployment import Deployment
from autopar.ir.expr.at_sizes import Sizes
from autopar.ir.program import Program
from autopar.runtime.agree.agreement import Agreement, Offer
from autopar.runtime.agree.disagreement import METHOD
from autopar.runtime.agree.handshake import Identity, meet, shake_hands
from autopar.runtime.agree.shared_lines import NUMBERS
from autopar.runtime.agree.sums import Sums
from autopar.runtime.agree.talk import RankTalk
from autopar.runtime.collectives.groups import Group, ProcessGroups
from autopar.runtime.execute.code import Code, Forward
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.ranks import jointly, path_text, understood
from autopar.runtime.execute.sized import Sized, SizedRank
from autopar.runtime.execute.specialize import specialize_signature
from autopar.runtime.execute.torch_compile import through_torch_compile
from autopar.runtime.execute.updates import InPlace, abandoned_raised
from autopar.runtime.failure.connecting import connected
from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.failure.standing import Standing
from autopar.runtime.failure.supervise import Supervisor
from autopar.runtime.init.initialize import MakeModel, initialize
from autopar.runtime.job.closing import Closing, close_at_exit
from autopar.runtime.job.device import backend_of, choose_device
from autopar.runtime.job.messages import Messages
from autopar.runtime.job.patience import Patience
from autopar.runtime.job.processes import Processes
from autopar.runtime.job.world import World, interface_of
from autopar.runtime.kernels.bindings import fast_kernel
from autopar.runtime.kernels.table import kernel
from autopar.runtime.ports.batches import label_call, looks_like_a_part
from autopar.runtime.ports.dense import odd_kind
from autopar.runtime.ports.index_bounds import IndexBounds
from autopar.runtime.ports.keeping import Keeping
from autopar.runtime.ports.open_inputs import planned_sizes, sizes_of_inputs
from autopar.runtime.ports.outputs import Side, first_holds, write_piece
from autopar.runtime.ports.ports import (
    Arrays,
    all_outputs,
    check_inputs,
    check_present,
    default_of,
    is_open_state,
    label_of,
    labelled,
    plain_outputs,
    rank_arguments,
    read_weights,
    user_inputs,
)
from autopar.runtime.state.open_state import OpenState, begin_state
from autopar.runtime.state.session_state import SessionState
from autopar.runtime.training.rates import trains
from autopar.runtime.weights.identity import identity_of
from autopar.runtime.weights.weights import WeightFile, weight_paths
from autopar.version import __version__

DEFAULT_TIMEOUT = 600.0
"""Seconds that each collective waits for the other ranks."""

DEFAULT_START_TIMEOUT = 300.0
"""Seconds that the start waits for the other ranks: to import on a cold file system takes minutes.

One that ended meanwhile is noticed in seconds (see `pulse`).
"""


class Session(Closing):
    """One rank of a build, connected to the others. A context manager.

    Args:
        build: The build folder, which must be the same for all ranks.
        backend: `gloo` (on the CPU), `nccl` (on GPUs), or `auto`: nccl where there are GPUs.
        timeout: Seconds that each collective waits for the other ranks. In a process group of the
            user's own, among all ranks, its own time-out counts.
        start_timeout: Seconds that the start waits for the other ranks, all its steps together.
        torch_compile: Whether to run the program through `torch.compile`.
        processes: Who this process is; by default what the launcher says.
        on_failure: See `Supervisor`.
        weights: A safetensors file with weights, or a folder or index of Hugging Face's, which
            count before those of the build; or several.
        in_place: What is looked at before a training step overwrites anything; by default nothing.
        check_inputs: Whether the ranks compare their inputs, which must be the same, and what they
            load. Of large inputs each call compares a twentieth.

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
        torch_compile: bool = False,
        processes: Processes | None = None,
        on_failure: Callable[[RankFailure], None] | None = None,
        weights: str | Path | Sequence[str | Path] = (),
        in_place: InPlace | None = None,
        check_inputs: bool = True,
    ) -> None:
        expect(SECONDS, timeout=timeout, start_timeout=start_timeout)
        expect(FLAG, torch_compile=torch_compile, check_inputs=check_inputs)
        self.processes = processes or Processes.from_environment()
        self.rank = self.processes.rank
        self.timeout = timedelta(seconds=timeout)
        self._start = Patience(start_timeout)
        store = self.processes.connect(self._start)
        self.supervisor = Supervisor(
            self.processes, store, self.timeout, self._start, self._members, on_failure
        )
        self.absent: set[str] = set()
        self._drawn: dict[str, Tensor] = {}
        self._world: World | None = None
        self._sums: Sums | None = None
        self._groups = self._no_groups()
        self._deployments: list[Deployment] = []
        try:
            with self.supervisor.reported():
                self._open(build, backend, torch_compile, weights, in_place)
        except BaseException:
            self.close()
            raise
        self.agreement = Agreement(self._talk(), check_inputs)
        close_at_exit(self)

    def _open(
        self,
        build: str | Path,
        backend: str,
        torch_compile: bool,
        weights: str | Path | Sequence[str | Path],
        in_place: InPlace | None,
    ) -> None:
        found = read_build(build)
        self.deployment = found.deployment
        self._serial = found.serial
        self._build = found
        self._given = weight_paths(weights)
        self.device = choose_device(backend, self.processes)
        read = identity_of(self._given)
        options = f"{self.device.type}, torch_compile={torch_compile}, weights={read}"
        self._agree(found.digest, options)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self._torch_compile = torch_compile
        self._in_place = in_place or InPlace()
        self._specialize()
        self._open_state = OpenState(self.program)
        with WeightFile(*self._given, build=found) as file:
            device, written = str(self.device), self._keeping.written
            self.weights = read_weights(
                self.program, file, device, absent=self.absent, written=written
            )
        self._meet("loaded")
        self._connect()
        # Who ends its connections at once would end those that others are still making.
        self._meet("connected")

    def run(self, inputs: Arrays, gather: bool = True, updates: bool = False) -> dict[str, Tensor]:
        """Runs the program once. What it writes into buffers stays there for the next run.

        Args:
            inputs: Global inputs by label, the same on all ranks. A program that draws random
                numbers has an input `seed`, 0 if it is left out; give each training step its own.
            gather: Whether rank 0 returns the global outputs and the others nothing; otherwise
                each rank returns its pieces, those of an output in parts by their own names.
            updates: Whether new content of parameters and other state is returned too.

        Raises:
            InvalidInputError: If the inputs don't fit the program, here or on another rank, or
                aren't the same on all. The session can go on.
            RuntimeFailure: If this or another rank fails.
        """
        here, tensors = self._agreed(lambda: inputs, "run", gather=gather, updates=updates)
        with abandoned_raised(), self.supervisor.reported(), torch.no_grad():
            results = self._results(here, tensors)
            here = self._sized.at(here.sizes, state=True) if updates else here
            ports = here.program.signature.outputs
            wanted = all_outputs(here.program) if updates else plain_outputs(here.program)
            if gather:
                found = here.gathering.outputs({at: results[at] for at in wanted})
            else:
                found = {
                    ports[at].name if ports[at].part else label_of(ports[at]): results[at].clone()
                    for at in wanted
                }
            here.write_back(results, tensors)
        return found

    def run_into(
        self, inputs: Mapping[str, Tensor], sizes: Sizes, outputs: Mapping[str, Tensor]
    ) -> None:
        """Runs the program once, for a caller who has checked what the ranks are given.

        Of the outputs, this rank writes those pieces that are its own.

        Args:
            inputs: All global inputs by label, as `check_inputs` returns them, the same on all
                ranks.
            sizes: All that are open, by name.
            outputs: Memory for global outputs by label, which all ranks see. Others aren't wanted.

        Raises:
            InvalidInputError: If weights have no values.
            RuntimeFailure: If this or another rank fails.
        """
        check_present(self.absent)
        tensors = {name: inputs[label] for label, name in self._names_of_inputs.items()}
        with abandoned_raised(), self.supervisor.reported(), torch.no_grad():
            here = self._sized.at(sizes)
            results = self._results(here, tensors)
            ports = here.program.signature.outputs
            for at in self._pieces_to_write:
                if (whole := outputs.get(label_of(ports[at]))) is not None:
                    write_piece(whole, ports[at], results[at].cpu())

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor | dict[str, Tensor] | None:
        """Runs the program like the model that it was compiled from.

        Args:
            args: Global inputs by position, the same on all ranks. Those that the model writes to
                are written to.
            kwargs: Global inputs by name.

        Returns:
            The global output, or several by label, on all ranks; None if it returns nothing.

        Raises:
            InvalidInputError: If the inputs don't fit the program, here or on another rank, or
                aren't the same on all. The session can go on.
            RuntimeFailure: If this or another rank fails.
        """
        labels = [port.label for port in user_inputs(self.program) if default_of(port) is None]
        example = self.program.example
        here, tensors = self._agreed(lambda: label_call(args, kwargs, labels, example), "forward")
        with abandoned_raised(), self.supervisor.reported(), torch.no_grad():
            results = self._results(here, tensors)
            gathered = {
                at: here.gathering.to_all("outputs", at, results[at])
                for at in plain_outputs(here.program)
            }
            here.write_back(results, tensors)
        whole = labelled(here.program.signature.outputs, gathered)
        return whole if len(whole) > 1 else next(iter(whole.values()), None)

    def _agreed(
        self, given: Callable[[], Arrays], call: str, **alike: object
    ) -> tuple[Sized, dict[str, Tensor]]:
        """Returns the rank at the sizes of the inputs, and these by value name.

        All ranks have found them right.

        Args:
            given: Returns the inputs by label.
            call: What the caller calls this.
            alike: What else must be the same on all ranks.

        Raises:
            InvalidInputError: If one hasn't: the caller's mistake, and no failure of a rank.
        """
        refusal: InvalidInputError | None = None
        here, tensors = self._planned, dict[str, Tensor]()
        values = {METHOD: call, **{name: str(value) for name, value in alike.items()}}
        with self.supervisor.reported():
            self.supervisor.raise_failure_of_others()
            try:
                check_present(self.absent)
                here, tensors = self._checked(given())
            except InvalidInputError as error:
                refusal = error
            labels = {port.name: label_of(port) for port in user_inputs(self.program)}
            brought = {labels[name]: tensor for name, tensor in tensors.items()}
            refusal = self.agreement.start(Offer(refusal, values, brought)).settle()
        if refusal is not None:
            raise refusal
        return here, tensors

    def _checked(self, given: Arrays) -> tuple[Sized, dict[str, Tensor]]:
        """Returns the rank at the sizes of global inputs, and these by value name.

        Says so if they look like a part of them.
        """
        here = self._sized.at(self._open_state.at(sizes_of_inputs(self.program, given)))
        try:
            tensors = check_inputs(here.program, given)
        except InvalidInputError as error:
            known = {label_of(port): port for port in user_inputs(here.program)}
            names = [name for name in known.keys() & given.keys() if not odd_kind(given[name])]
            shapes = [getattr(given[name], "shape", ()) for name in names]
            wanted = [known[name].known_shape for name in names]
            if not looks_like_a_part(shapes, wanted, self.processes.size):
                raise
            raise InvalidInputError(f"{error}\nevery rank needs the global batch") from None
        self._bounds.check(tensors, here.sizes)
        here.writing_back.check(tensors)
        return here, tensors

    @cached_property
    def _names_of_inputs(self) -> dict[str, str]:
        return {label_of(port): port.name for port in user_inputs(self.program)}

    @cached_property
    def _pieces_to_write(self) -> list[int]:
        return first_holds(self.deployment, self.rank, plain_outputs(self.program))

    @cached_property
    def _bounds(self) -> IndexBounds:
        return IndexBounds(self._serial)

    def initialize(self, make_model: MakeModel, *, absent: bool = False) -> None:
        """Initializes the rank's weights as the model's constructor does. See `Trainer`.

        Raises:
            InvalidInputError: If it makes another model than the one that was compiled.
        """
        missing = set(self.absent)
        initialize(self, make_model, absent)
        with self.reported():
            self._drawn = {
                port.name: self.weights[port.name].clone()
                for port in self.program.signature.inputs
                if port.name in self._keeping.written and (not absent or label_of(port) in missing)
            }

    def state_dict(self, *, rank0_only: bool = False) -> dict[str, Tensor]:
        """Returns the parameters and buffers of the program by the model's names.

        They are whole and in main memory. Buffers that the model's own state dict lacks
        (`persistent=False`) are left out here too. All ranks call alike.

        Args:
            rank0_only: Whether only rank 0 gets them, and the other ranks nothing.

        Raises:
            InvalidInputError: If there are tensors without values.
        """
        present = partial(check_present, self.absent)
        jointly(self, "state_dict", present, rank0_only=rank0_only)
        with self.reported():
            return self._state.model_state(not rank0_only)

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Takes over whole parameters and buffers by the model's names.

        What the program doesn't have, because the compiled `forward` doesn't read it, is ignored.

        Raises:
            InvalidInputError: On all ranks, if names are missing, or shapes wrong on one of them,
                or they were given other values. Names all.
        """
        self._state.put_model(state_dict)

    def reset(self) -> None:
        """Gives what calls wrote the values that it had before the first call.

        These are those of the build or of `weights=`, or what `initialize` drew.

        Raises:
            InvalidInputError: On all ranks, if there are none, because they came from a state dict
                or a file, or one can't read them. Nothing is reset then.
        """
        first = jointly(self, "reset", self._first_values)
        with self.reported():
            for name, piece in first.items():
                self.weights[name].copy_(piece)
            for port in filter(is_open_state, self.program.signature.inputs):
                self.weights.pop(port.name, None)
            self._open_state.clear()

    def _first_values(self) -> dict[str, Tensor]:
        """Returns this rank's pieces of what calls write, as they were before the first one."""
        written = self._keeping.written - self._drawn.keys()
        with WeightFile(*self._given, build=self._build) as file:
            read = read_weights(self.program, file, str(self.device), names=written)
        return {**self._drawn, **read}

    def save_state(self, path: str | Path) -> None:
        """Writes what calls write, whole, to a safetensors file; all ranks call alike.

        Buffers with `persistent=False` are in it, and weights that no call writes aren't.

        Raises:
            InvalidInputError: On all ranks, if the program writes nothing, or the file can't be
                written. The session can go on.
        """

        def prepare() -> None:
            expect(PATH, path=path)
            self._state.check()

        jointly(self, "save_state", prepare, path=path_text(path))
        understood(self, lambda: self._state.write(Path(path), self.messages(meeting=True)))

    def load_state(self, path: str | Path) -> None:
        """Goes on from a file of `save_state`, which any mesh wrote; each rank reads its pieces.

        Raises:
            InvalidInputError: On all ranks, if one of them can't read the file, or it lacks a
                tensor or has it otherwise, or their files aren't the same. The state is what it
                was then.
        """
        self._state.read(path)

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
        mine = [int(choice == each) for each in range(NUMBERS)]
        if self._sums is None:
            return mine
        with self.supervisor.reported():
            return self._sums.start(mine)()

    def messages(self, meeting: bool) -> Messages:
        """See `Ranks`."""
        with self.supervisor.reported():
            return connected(
                self.supervisor, (lambda: self.tally(0)) if meeting else (lambda: None)
            )

    def execute(
        self, arguments: Mapping[int, tuple[Tensor, ...]], *, number: int | None = None
    ) -> Mapping[int, tuple[Tensor, ...]]:
        """See `Ranks`."""
        with self.supervisor.reported(), torch.no_grad():
            self.supervisor.whereabouts.begin(number)
            return {self.rank: self._planned.forward(*arguments[self.rank])}

    def whole(
        self, side: Side, at: int, pieces: Mapping[int, Tensor], everywhere: bool
    ) -> Tensor | None:
        """See `Ranks`."""
        gathering = self._planned.gathering
        gather = gathering.to_all if everywhere else gathering.to_first
        with self.supervisor.reported():
            return gather(side, at, pieces[self.rank])

    def variant(self, deployment: Deployment) -> Session:
        """See `Ranks`."""
        other = copy.copy(self)
        for name, each in vars(Session).items():
            if isinstance(each, cached_property):
                vars(other).pop(name, None)
        other.deployment = deployment
        with self.supervisor.reported():
            other._specialize()
            other._connect()
        return other

    def at(self, sizes: Sizes) -> Session:
        """See `Ranks`."""
        other = copy.copy(self)
        other._planned = self._sized.at(sizes)
        other.program = other._planned.program
        return other

    def close(self) -> None:
        """Ends the session, and the process group if no other session uses it."""
        self.supervisor.leave()
        if self._sums is not None:
            self._sums.leave()
        self._groups.close()
        if self._world is not None:
            self._world.close()
        self.supervisor.close()

    def _results(self, here: Sized, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Runs the program and keeps what it writes; returns this rank's outputs."""
        self.supervisor.whereabouts.begin()
        begin_state(here.program, here.sizes, self.weights, self.device)
        results = here.forward(
            *rank_arguments(here.program, tensors, self.weights, str(self.device))
        )
        self._keeping.keep(self.weights, results)
        self._open_state.advance(here.sizes)
        return results

    def _talk(self) -> RankTalk | None:
        if self.processes.size == 1:
            return None
        self._sums = self.supervisor.sums(self.device)
        return RankTalk(
            self.processes, self.device, lambda: self.messages(meeting=False), self._sums
        )

    def _members(self, rank: int, group: str) -> Collection[int]:
        found = [each for each in self._deployments if group in each.groups]
        return found[0].group_of(group, rank) if found else range(self.processes.size)

    def _no_groups(self) -> ProcessGroups:
        store = PrefixStore("groups", self.supervisor.store)
        return ProcessGroups(self.supervisor.name, store, self.timeout)

    def _meet(self, event: str) -> None:
        """Waits until all ranks are as far as this one, which may fail before and not after."""
        board, size = self.supervisor.board, self.processes.size
        if size > 1:
            meet(board.store, event, self.rank, size, self._start, board.first)

    def _agree(self, digest: str, options: str) -> None:
        identity = Identity(digest, self.deployment.world_size, __version__, options)
        shake_hands(
            self.supervisor.store,
            self.rank,
            self.processes.size,
            identity,
            self._start,
            self.supervisor.board.first,
        )

    def _specialize(self) -> None:
        shared, coords = self.deployment.program_of(self.rank), self.deployment.coords_of(self.rank)
        self.program = replace(shared, signature=specialize_signature(shared, coords))
        self._keeping = Keeping(self.program)

    def _connect(self) -> None:
        backend = backend_of(self.device)
        self._deployments.append(self.deployment)
        with interface_of(self.processes):
            if self.processes.size > 1 and self._world is None:
                store = PrefixStore("world", self.supervisor.store)
                self._world = World(self.processes, backend, store, self.timeout)
            groups = self._groups.of(self.deployment, self.rank, backend)
        open_state = {p.name for p in self.program.signature.inputs if is_open_state(p)}
        self._state = SessionState(self, self._keeping.written - open_state)
        coords = self.deployment.coords_of(self.rank)
        code = Code(self.program, coords, partial(self._generated, groups))
        self._sized = SizedRank(self.deployment, self.rank, self.program, code)
        self._planned = self._sized.at(planned_sizes(self.program))

    def _generated(self, groups: Mapping[str, Group], program: Program) -> Forward:
        """Returns the code of a specialized program."""
        # torch.compile knows all ops, and not all of torch's functions.
        find_kernel = kernel if self._torch_compile else fast_kernel
        module = emit(program, groups, self.device, self._in_place, find_kernel)
        self.supervisor.whereabouts.add(module)
        if not self._torch_compile:
            # `forward` and not the module itself: see `control`.
            return module.forward
        # A guard looks at a value, which ends a graph, as a fused step does.
        return through_torch_compile(module, not trains(program))


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
        Session(build, **{name: options[name] for name in known if name in options})
        raise
