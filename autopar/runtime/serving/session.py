"""A session that starts the ranks of a build, keeps them, and is called from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from autopar.base.arguments import COUNT, FLAG, NAMES, POSITIVE, SECONDS, Kind, expect
from autopar.base.errors import InvalidInputError, RuntimeFailure, near_misses
from autopar.ir.builds.files import Build, read_build
from autopar.ir.expr.at_sizes import OpenSignature, Sizes
from autopar.ir.expr.expression import Size
from autopar.ir.program import Port, Program, Signature
from autopar.runtime.execute.session import Session
from autopar.runtime.execute.sized import KEPT_SIZES
from autopar.runtime.job.closing import Closing, close_at_exit
from autopar.runtime.job.patience import DEFAULT_START_TIMEOUT, DEFAULT_TIMEOUT
from autopar.runtime.job.processes import Processes
from autopar.runtime.job.torchrun import BACKEND
from autopar.runtime.ports.index_bounds import IndexBounds
from autopar.runtime.ports.open_inputs import OpenInputs
from autopar.runtime.ports.ports import (
    check_inputs,
    default_of,
    plain_outputs,
    user_inputs,
)
from autopar.runtime.ports.rates import trains
from autopar.runtime.serving.alike import Alike
from autopar.runtime.serving.arguments import NodeArg, described
from autopar.runtime.serving.crew import Crew, Opening
from autopar.runtime.serving.requests import Outputs, Queue, Request, Together
from autopar.runtime.serving.rows import check_rows
from autopar.runtime.serving.runners import (
    InProcesses,
    OfOneRank,
    OnVirtualMesh,
    Runner,
    Types,
)
from autopar.runtime.state.open_state import OpenState

_WANTED = NAMES.or_none
_DELAY = Kind(
    lambda value: isinstance(value, (int, float)) and value >= 0, "a number of seconds from 0 on"
)


class BuildSession(Closing):
    """Runs a build as often as it is called, from any thread. A context manager.

    Its ranks are processes of its own on this host; those of a build for one rank, and a virtual
    mesh, are within this process.

    Args:
        build: The build folder, of a program that doesn't train.
        virtual: Whether all ranks run in this process.
        backend: `gloo` (on the CPU), `nccl` (on GPUs), or `auto`: what the build is for.
        torch_compile: Whether to run the programs through `torch.compile`.
        timeout: Seconds that a call may take, and each collective wait for other ranks.
        start_timeout: Seconds that the start may take.
        threads: Threads that each process computes with.
        modules: Modules that each process imports first: they register ops of other libraries.
        max_batch: Up to how many rows of calls that are waiting are run together, where they differ
            in nothing but their number of rows; by default each call runs by itself. It is refused
            where a row of the outputs depends on other rows of the inputs than its own.
        max_delay: Seconds that a call waits for others to be run with; needs `max_batch`.

    Raises:
        InvalidInputError: If the build is damaged, trains, or has no rows that can be put together.
        RuntimeFailure: If a rank can't be started.
    """

    def __init__(
        self,
        build: str | Path,
        *,
        virtual: bool = False,
        backend: str = "auto",
        torch_compile: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
        start_timeout: float = DEFAULT_START_TIMEOUT,
        threads: int = 1,
        modules: Sequence[str] = (),
        max_batch: int | None = None,
        max_delay: float = 0.0,
    ) -> None:
        expect(FLAG, virtual=virtual, torch_compile=torch_compile)
        expect(BACKEND, backend=backend)
        expect(SECONDS, timeout=timeout, start_timeout=start_timeout)
        expect(COUNT, threads=threads)
        expect(NAMES, modules=modules)
        expect(POSITIVE.or_none, max_batch=max_batch)
        expect(_DELAY, max_delay=max_delay)
        if max_delay and max_batch is None:
            raise InvalidInputError(
                f"max_delay={max_delay}: calls wait to be run with others only where max_batch="
                " says how many rows are run together; give that too, or leave max_delay out"
            )
        found = read_build(build)
        if trains(found.serial):
            raise InvalidInputError(f"{build} trains; open it by autopar.load")
        self._serial = found.serial
        self._bounds = IndexBounds(found.serial)
        self._signature = OpenSignature(found.serial)
        self._at = lru_cache(KEPT_SIZES)(self._known_at)
        self._labels = {port.name: port.user_label for port in user_inputs(self._serial)}
        self._inputs = [port for port in user_inputs(self._serial) if default_of(port) is None]
        ports = self._serial.signature.outputs
        self._outputs = [ports[at] for at in plain_outputs(self._serial)]
        self._state = OpenState(self._serial)
        self._open = OpenInputs(self._serial)
        self._alike = Alike()
        together = None
        if max_batch is not None:
            size = self._size_of_batches()
            check_rows(self._serial, size)
            together = Together(size.name, max_batch, max_delay)
        opening = Opening(backend, torch_compile, timeout, start_timeout, threads, modules)
        self._runner = _runner_of(found, virtual, opening)
        keeps = bool(self._serial.main.aliases)
        at_once = isinstance(self._runner, OfOneRank) and not keeps
        self._queue = Queue(self._carry_out, together, at_once=at_once)
        close_at_exit(self)

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]
    ) -> list[npt.NDArray[Any]]:
        """Returns outputs, in the order of their names; of dtypes that numpy lacks, as float32.

        Args:
            output_names: Which; all for None or an empty list.
            feeds: Inputs by name: arrays, tensors, or what can be made one.

        Raises:
            InvalidInputError: If there is no such output, or the inputs don't fit: it says what is
                expected. The session can go on.
            RuntimeFailure: If a rank failed, in this call or an earlier one, or the session is
                closed, or this process was forked from the one that opened it.
        """
        wanted = self._wanted(output_names)
        outputs = self._queue.answer(self._checked(feeds))
        return [_as_array(outputs[name]) for name in wanted]

    def reset(self) -> None:
        """Forgets what calls left, so that the next call is as the first one was.

        Raises:
            InvalidInputError: If calls leave nothing.
            RuntimeFailure: If a rank failed, or the session is closed.
        """
        if not self._serial.main.aliases:
            raise InvalidInputError(
                "the program keeps nothing from call to call; state= when it is compiled says what"
            )
        self._queue.answer(Request(None, {}))

    def get_inputs(self) -> list[NodeArg]:
        """Returns what the inputs are."""
        return described(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Returns what the outputs are."""
        return described(self._outputs)

    def shapes(self, feeds: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Returns what shapes the inputs of the next call have, by name.

        Open sizes are those of the inputs that are given, and of state; others are as planned.

        Args:
            feeds: Some inputs by name.

        Raises:
            InvalidInputError: If these don't fit together, or to what earlier calls left.
        """
        sizes = self._state.at(self._open.sizes(feeds))
        program, _ = self._at(tuple(sizes.items()))
        return {port.user_label: port.known_shape for port in user_inputs(program)}

    def close(self) -> None:
        """Ends the session and its ranks, when what they are doing is done.

        Calls that are waiting raise a RuntimeFailure. In a process that was forked off, it does
        nothing.
        """
        if self.is_elsewhere():
            return
        self._queue.end(RuntimeFailure("the session was closed"))
        self._queue.join()
        self._runner.close()

    def is_elsewhere(self) -> bool:
        """Tells whether this process was forked off: it can't call the session."""
        return self._queue.is_elsewhere()

    def _wanted(self, names: Sequence[str] | None) -> list[str]:
        expect(_WANTED, output_names=names)
        known = [port.user_label for port in self._outputs]
        if not names:
            return known
        for name in names:
            if name not in known:
                listed = near_misses(name, known) or f"; there are {', '.join(known)}"
                raise InvalidInputError(f"there is no output {name!r}{listed}")
        return list(names)

    def _checked(self, feeds: Mapping[str, Any]) -> Request:
        if not isinstance(feeds, Mapping):
            raise InvalidInputError(f"the inputs are a {type(feeds).__name__}; give them by name")
        inputs, sizes = self._alike.find(feeds) or self._looked_at(feeds)
        self._bounds.check({name: inputs[each] for name, each in self._labels.items()}, sizes)
        return Request(inputs, sizes)

    def _looked_at(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Tensor], Sizes]:
        """Returns the inputs of a call by label, and its sizes."""
        sizes = self._open.sizes(feeds)
        program, _ = self._at(tuple(self._state.at(sizes).items()))
        tensors = check_inputs(program, feeds)
        inputs = {self._labels[name]: each.cpu() for name, each in tensors.items()}
        if not self._state.labels:
            self._alike.note(feeds, inputs, sizes)
        return inputs, sizes

    def _carry_out(self, batch: Sequence[Request]) -> Outputs:
        try:
            parts = [request.inputs for request in batch if request.inputs is not None]
            if parts:
                return self._run(parts, self._sizes_of(batch))
            self._runner.reset()
            self._state.clear()
            return {}
        except RuntimeFailure as failure:
            self._queue.end(failure)
            self._runner.close()
            raise

    def _run(self, parts: Sequence[Mapping[str, Tensor]], sizes: Sizes) -> Outputs:
        _, outputs = self._at(tuple(sizes.items()))
        found = self._runner.run(parts, sizes, outputs)
        self._state.advance(sizes)
        return found

    def _sizes_of(self, batch: Sequence[Request]) -> Sizes:
        """Returns the open sizes of requests that are run together."""
        sizes = self._state.at(batch[0].sizes)
        if len(batch) > 1:
            name = self._size_of_batches().name
            sizes[name] = sum(request.sizes[name] for request in batch)
        return sizes

    def _known_at(self, items: tuple[tuple[str, int], ...]) -> tuple[Program, Types]:
        """Returns the program at sizes with the inputs that calls give, and what outputs are."""
        signature = self._signature.at(dict(items))
        program = replace(self._serial, signature=signature)
        ports = signature.outputs
        found = (ports[at] for at in plain_outputs(program))
        program = replace(program, signature=Signature(user_inputs(program), ports))
        return program, {port.user_label: (port.dtype, _whole_shape(port)) for port in found}

    def _size_of_batches(self) -> Size:
        """Returns the open size that is the first dimension of all inputs and outputs.

        Raises:
            InvalidInputError: If there is none.
        """
        inputs = user_inputs(self._serial)
        first = {port.shape[0] if port.shape else 1 for port in (*inputs, *self._outputs)}
        size = first.pop() if len(first) == 1 else 1
        if isinstance(size, Size):
            return size
        lines = [f"{each.name} {each.shape}" for each in (*self.get_inputs(), *self.get_outputs())]
        raise InvalidInputError(
            "max_batch: calls can be run together where the first dimension of all inputs and"
            " outputs is one size that is open, but there are " + ", ".join(lines)
        )


def _runner_of(build: Build, virtual: bool, opening: Opening) -> Runner:
    if virtual:
        return OnVirtualMesh(build)
    ranks = build.rank_table.world_size
    if ranks > 1:
        return InProcesses(Crew(build.path, ranks, opening), opening.timeout)
    return OfOneRank(
        Session(
            build.path,
            backend=opening.backend,
            torch_compile=opening.torch_compile,
            timeout=opening.timeout,
            start_timeout=opening.start_timeout,
            processes=Processes(),
            check_inputs=False,
        )
    )


def _whole_shape(port: Port) -> tuple[int, ...]:
    return port.part.shape if port.part else port.known_shape


def _as_array(tensor: Tensor) -> npt.NDArray[Any]:
    try:
        return tensor.numpy()
    except TypeError:
        found: npt.NDArray[np.float32] = tensor.to(torch.float32).numpy()
        return found
