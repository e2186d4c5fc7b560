"""A session: one rank of a build of a forward pass, called like the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autopar.base.arguments import PATH, expect
from autopar.base.errors import InvalidInputError
from autopar.ir.expr.at_sizes import Sizes
from autopar.runtime.agree.agreement import Offer
from autopar.runtime.agree.disagreement import METHOD
from autopar.runtime.execute.call_inputs import CallInputs
from autopar.runtime.execute.distributed import JobRank
from autopar.runtime.execute.ranks import jointly, path_text, understood
from autopar.runtime.execute.sized import Sized
from autopar.runtime.execute.updates import abandoned_raised
from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.init.initialize import MakeModel, initialize
from autopar.runtime.job.closing import Closing
from autopar.runtime.job.patience import DEFAULT_START_TIMEOUT, DEFAULT_TIMEOUT
from autopar.runtime.job.processes import Processes
from autopar.runtime.ports.batches import label_call
from autopar.runtime.ports.keeping import Keeping
from autopar.runtime.ports.outputs import first_holds, write_piece
from autopar.runtime.ports.ports import (
    Arrays,
    all_outputs,
    check_present,
    default_of,
    is_open_state,
    labelled,
    plain_outputs,
    user_inputs,
)
from autopar.runtime.state.first_values import FirstValues
from autopar.runtime.state.open_state import OpenState, begin_state
from autopar.runtime.state.session_state import SessionState
from autopar.runtime.tracing.tracer import Trace
from autopar.runtime.tuned.tuned import can_be_tuned, needs_no_autograd


class Session(Closing):
    """One rank of a build, connected to the others. A context manager.

    Args:
        build: The build folder, which must be the same for all ranks.
        backend: `gloo` (on the CPU), `nccl` (on GPUs), or `auto`: what the build is for.
        timeout: Seconds that each collective waits for the other ranks. In a process group of the
            user's own, among all ranks, its own time-out counts.
        start_timeout: Seconds that the start waits for the other ranks, all its steps together.
        torch_compile: Whether to run the program through `torch.compile`; by default on GPUs.
        cuda_graphs: Whether a GPU is told of a step once, and then to do it again, which spares the
            host much; where it can be: where no state waits on the host, nor grows.
        processes: Who this process is; by default what the launcher says.
        on_failure: See `Supervisor`.
        weights: A safetensors file with weights, or a folder or index of Hugging Face's, which
            count before those of the build; or several.
        check_inputs: Whether the ranks compare their inputs, which must be the same, and what they
            load. Of large inputs each call compares a twentieth.
        trace: Where to write when each op of each rank ran, or a `Trace`, which says of which
            calls; by default nothing is recorded.

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
        check_inputs: bool = True,
        trace: Trace | str | Path | None = None,
    ) -> None:
        self._ranks = JobRank(
            build,
            backend=backend,
            timeout=timeout,
            start_timeout=start_timeout,
            torch_compile=torch_compile,
            cuda_graphs=cuda_graphs,
            processes=processes,
            on_failure=on_failure,
            weights=weights,
            check_inputs=check_inputs,
            trace=trace,
        )
        self._torch_compile = torch_compile
        self.rank, self.supervisor = self._ranks.rank, self._ranks.supervisor
        self.program, self.weights = self._ranks.program, self._ranks.weights
        self._keeping = Keeping(self.program)
        self._open_state = OpenState(self.program)
        open_state = {p.name for p in self.program.signature.inputs if is_open_state(p)}
        self._state = SessionState(self._ranks, self._keeping.written - open_state)
        self._first = FirstValues(self._ranks.build, self._ranks.files)

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
            here = self._ranks.sized.at(here.sizes, state=True) if updates else here
            ports = here.program.signature.outputs
            wanted = all_outputs(here.program) if updates else plain_outputs(here.program)
            if gather:
                found = here.gathering.outputs({at: results[at] for at in wanted})
            else:
                found = {
                    ports[at].name if ports[at].part else ports[at].user_label: results[at].clone()
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
        check_present(self._ranks.absent)
        tensors = {name: inputs[label] for label, name in self._inputs.names.items()}
        mode = torch.inference_mode() if self._is_apart else torch.no_grad()
        with abandoned_raised(), self.supervisor.reported(), mode:
            here = self._ranks.sized.at(sizes)
            results = self._results(here, tensors)
            ports = here.program.signature.outputs
            for at in self._pieces_to_write:
                if (whole := outputs.get(ports[at].user_label)) is not None:
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
        here, tensors = self._ranks.planned, dict[str, Tensor]()
        values = {METHOD: call, **{name: str(value) for name, value in alike.items()}}
        with self.supervisor.reported():
            self.supervisor.raise_failure_of_others()
            try:
                check_present(self._ranks.absent)
                here, tensors = self._inputs.checked(given())
            except InvalidInputError as error:
                refusal = error
            brought = self._inputs.by_label(tensors)
            refusal = self._ranks.agreement.start(Offer(refusal, values, brought)).settle()
        if refusal is not None:
            raise refusal
        return here, tensors

    @cached_property
    def _is_apart(self) -> bool:
        """Whether nobody sees the tensors that `run_into` makes, neither ranks nor later calls."""
        if self._ranks.processes.size > 1 or self._torch_compile:
            return False
        plain = can_be_tuned(self.program, self._ranks.device)
        return plain and needs_no_autograd(self.program)

    @cached_property
    def _inputs(self) -> CallInputs:
        size, serial = self._ranks.processes.size, self._ranks.build.serial
        return CallInputs(self.program, serial, self._ranks.sized, self._open_state, size)

    @cached_property
    def _pieces_to_write(self) -> list[int]:
        return first_holds(self._ranks.deployment, self.rank, plain_outputs(self.program))

    def initialize(self, make_model: MakeModel, *, absent: bool = False) -> None:
        """Initializes the rank's weights as the model's constructor does. See `Trainer`.

        Raises:
            InvalidInputError: If it makes another model than the one that was compiled.
        """
        missing = set(self._ranks.absent)
        initialize(self._ranks, make_model, absent)
        with self.reported():
            ports = self.program.signature.inputs
            written = [port for port in ports if port.name in self._keeping.written]
            drawn = [p.name for p in written if not absent or p.user_label in missing]
            self._first.note_drawn({name: self.weights[name] for name in drawn})

    def state_dict(self, *, rank0_only: bool = False) -> dict[str, Tensor]:
        """Returns the parameters and buffers of the program by the model's names.

        They are whole and in main memory. Buffers that the model's own state dict lacks
        (`persistent=False`) are left out here too. All ranks call alike.

        Args:
            rank0_only: Whether only rank 0 gets them, and the other ranks nothing.

        Raises:
            InvalidInputError: If there are tensors without values.
        """
        present = partial(check_present, self._ranks.absent)
        jointly(self._ranks, "state_dict", present, rank0_only=rank0_only)
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
        first = jointly(self._ranks, "reset", self._first_values)
        with self.reported():
            for name, piece in first.items():
                self.weights[name].copy_(piece)
            for port in filter(is_open_state, self.program.signature.inputs):
                self.weights.pop(port.name, None)
            self._open_state.clear()

    def _first_values(self) -> dict[str, Tensor]:
        return self._first.of(self.program, self._keeping.written, self._ranks.device)

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

        jointly(self._ranks, "save_state", prepare, path=path_text(path))
        messages = partial(self._ranks.messages, meeting=True)
        understood(self._ranks, lambda: self._state.write(Path(path), messages()))

    def load_state(self, path: str | Path) -> None:
        """Goes on from a file of `save_state`, which any mesh wrote; each rank reads its pieces.

        Raises:
            InvalidInputError: On all ranks, if one of them can't read the file, or it lacks a
                tensor or has it otherwise, or their files aren't the same. The state is what it
                was then.
        """
        self._state.read(path)

    def reported(self) -> AbstractContextManager[None]:
        """Makes an error within known to all ranks; refuses to begin when it is too late."""
        return self._ranks.reported()

    def close(self) -> None:
        """Ends the session, and the process group if no other session uses it."""
        self._ranks.close()

    def _results(self, here: Sized, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Runs the program and keeps what it writes; returns this rank's outputs."""
        self.supervisor.whereabouts.begin()
        begin_state(here.state, here.sizes, self.weights, self._ranks.device)
        arguments = here.arguments.of(tensors, self.weights, str(self._ranks.device))
        results = here.forward(*arguments)
        self._keeping.keep(self.weights, results)
        self._open_state.advance(here.sizes)
        return results
