"""Replays steps as CUDA graphs: the device is told once what to do, and then told to do it again.

A graph reads and writes the memory that it was recorded with. So inputs other than stored ones go
into buffers that stay, and outputs are copied before the next replay writes over them. All graphs
of a rank share one pool of memory: one replay ends before the next begins.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from autopar.ir.memory.transfers import hosted, is_on_host
from autopar.ir.program import Program
from autopar.runtime.execute.body import GUARD
from autopar.runtime.execute.code import Forward
from autopar.runtime.kernels.growing import append
from autopar.runtime.ports.ports import is_weight
from autopar.runtime.ports.staging import moved

Outputs = tuple[Tensor, ...]

Record = Callable[[Callable[[], Outputs]], tuple[Callable[[], object], Outputs]]
"""Records what a function tells the device; returns what tells it again, and what that computes."""

WARM = 2
"""Calls before the recorded one: libraries prepare themselves, and torch.compile compiles."""

MOST = 8
"""Graphs at a time: of as many sizes that are open."""


def is_static(program: Program, module: fx.GraphModule) -> bool:
    """Returns whether a program tells its device the same each time, and never waits for it.

    Args:
        program: The program.
        module: What was emitted of it.
    """
    graphs = [each.graph for each in module.modules() if isinstance(each, fx.GraphModule)]
    nodes = [node for graph in graphs for node in graph.nodes]
    ops = [op for node in nodes if (op := node.meta.get("op")) is not None]
    waits = any(op.kind == GUARD or is_on_host(op) for op in ops)
    return not waits and not hosted(program) and all(node.target is not append for node in nodes)


class Replay:
    """Runs a program's code a few times, and then replays it.

    Args:
        forward: The code. It writes over stored inputs and takes sizes that are open behind the
            others.
        program: What it is the code of.
        device: Where it computes.
        record: Records it.
    """

    def __init__(
        self, forward: Forward, program: Program, device: torch.device, record: Record
    ) -> None:
        stored = {port.name for port in program.signature.inputs if is_weight(port)}
        self._given = [at for at, name in enumerate(program.main.inputs) if name not in stored]
        self._forward = forward
        self._device = device
        self._record = record
        self._graphs: dict[tuple[Any, ...], _Graph] = {}

    def __call__(self, *arguments: Any) -> Outputs:
        """Returns the outputs; those that are no stored inputs stay what they are."""
        shapes = tuple(tuple(arguments[at].shape) for at in self._given)
        key = (shapes, *(each for each in arguments if not isinstance(each, Tensor)))
        if key not in self._graphs:
            if len(self._graphs) == MOST:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[key] = _Graph(self._forward, self._given, self._device, self._record)
        return self._graphs[key](arguments)


class _Graph:
    """What is replayed at certain sizes; arguments as of `Replay`."""

    def __init__(
        self, forward: Forward, given: Sequence[int], device: torch.device, record: Record
    ) -> None:
        self._forward = forward
        self._given = given
        self._device = device
        self._record = record
        self._calls = 0
        self._arguments: list[Any] = []
        self._places: list[int] = []
        self._replay: Callable[[], object] | None = None
        self._refused = False
        self._outputs: Outputs = ()

    def __call__(self, arguments: Sequence[Any]) -> Outputs:
        """Returns the outputs of a call."""
        self._take(arguments)
        self._calls += 1
        if self._calls > WARM and self._replay is None and not self._refused:
            self._try_to_record()
        if self._replay is None:
            return self._forward(*self._arguments)
        self._replay()
        return tuple(
            each if each.data_ptr() in self._places else each.clone() for each in self._outputs
        )

    def _try_to_record(self) -> None:
        """Records; nothing is computed by that. What can't be recorded runs as before."""
        try:
            self._replay, self._outputs = self._record(lambda: self._forward(*self._arguments))
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            warnings.warn(f"steps aren't replayed as CUDA graphs: {reason}", stacklevel=2)
            self._refused = True

    def _take(self, arguments: Sequence[Any]) -> None:
        """Puts what is given into its buffers; if what is stored lies elsewhere, begins anew."""
        stored = [each for at, each in enumerate(arguments) if at not in self._given]
        places = [each.data_ptr() for each in stored if isinstance(each, Tensor)]
        if not self._arguments or places != self._places:
            self._places, self._calls, self._replay, self._outputs = places, 0, None, ()
            self._arguments = list(arguments)
            for at in self._given:
                self._arguments[at] = moved(arguments[at], self._device).clone()
            return
        for at in self._given:
            self._arguments[at].copy_(moved(arguments[at], self._device))


def recording(pool: Any) -> Record:
    """Returns what records CUDA graphs whose memory is in a pool, as of `graph_pool_handle`."""

    def record(function: Callable[[], Outputs]) -> tuple[Callable[[], object], Outputs]:
        graph = torch.cuda.CUDAGraph()
        # Other threads, as those that watch collectives, go on asking the device.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            outputs = function()
        return graph.replay, outputs

    return record
