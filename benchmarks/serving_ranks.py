"""The requests of `serving.py`, and ranks that know them: nothing is between these and those."""

from __future__ import annotations

import math
import multiprocessing
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from autopar.runtime.execute.session import Session
from autopar.runtime.job.closing import Closing
from autopar.runtime.job.processes import Processes

Arrays = Mapping[str, npt.NDArray[np.generic]]
MOST_ROWS, MOST_TOKENS = 8, 128
"""Of a request: up to so many sentences of up to so many tokens."""

WORDS = 30_000


def feeds(number: int) -> Arrays:
    """Returns the inputs of a request; the sizes are log-uniform."""
    random = np.random.default_rng(number)
    rows, tokens = (
        round(math.exp(random.uniform(0, math.log(most)))) for most in (MOST_ROWS, MOST_TOKENS)
    )
    ids = random.integers(0, WORDS, (rows, tokens))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


class Direct(Closing):
    """The ranks of a build, each in a process that runs it on requests that all of them make.

    They begin each request together, as those of a session do, and don't poll for it. A context
    manager.

    Args:
        build: The build folder.
        ranks: How many there are.
    """

    def __init__(self, build: Path, ranks: int) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = int(listener.getsockname()[1])
        context = multiprocessing.get_context("spawn")
        self._lines: list[Connection] = []
        self._processes = []
        together = context.Barrier(ranks)
        for rank in range(ranks):
            mine, theirs = context.Pipe()
            place = Processes(rank, ranks, rank, ranks, "127.0.0.1", port)
            arguments = (place, build, theirs, together)
            process = context.Process(target=_rank_main, args=arguments, daemon=True)
            process.start()
            self._processes.append(process)
            self._lines.append(mine)
        self._answers()

    def run(self, numbers: Sequence[int]) -> list[float]:
        """Runs requests one after the other.

        Returns:
            The seconds that each took, from when the first rank began until the last had ended.
        """
        self._tell(numbers)
        self._answers()
        self._tell("go")
        return [
            max(end for _, end in each) - min(begin for begin, _ in each)
            for each in zip(*self._answers(), strict=True)
        ]

    def close(self) -> None:
        """Ends the processes."""
        self._tell(None)
        for process in self._processes:
            process.join()

    def _tell(self, order: object) -> None:
        for line in self._lines:
            line.send(order)

    def _answers(self) -> list[Any]:
        return [line.recv() for line in self._lines]


def _rank_main(place: Processes, build: Path, line: Connection, together: Barrier) -> None:
    torch.set_num_threads(1)
    # Linux shares processors among groups of processes, of which those of a session are one too.
    os.setsid()
    with Session(build, processes=place, check_inputs=False) as session:
        line.send("opened")
        while (numbers := line.recv()) is not None:
            requests = [_with_room(feeds(number)) for number in numbers]
            line.send("ready")
            line.recv()
            line.send(list(_spans(session, requests, together)))


def _spans(
    session: Session,
    requests: Iterable[tuple[dict[str, Tensor], dict[str, Tensor]]],
    together: Barrier,
) -> Iterable[tuple[float, float]]:
    for inputs, outputs in requests:
        together.wait()
        begin = time.monotonic()
        rows, tokens = inputs["input_ids"].shape
        session.run_into(inputs, {"batch_size": rows, "sequence_length": tokens}, outputs)
        yield begin, time.monotonic()


def _with_room(inputs: Arrays) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns inputs of MiniLM, and memory for its outputs."""
    rows, tokens = inputs["input_ids"].shape
    outputs = {
        "output": torch.empty(rows, tokens, dtype=torch.int64),
        "463": torch.empty(rows, tokens, dtype=torch.int64),
        "onnx::Shape_422": torch.empty(rows, tokens, 384),
        "461": torch.empty(rows, 384),
    }
    return {name: torch.from_numpy(each) for name, each in inputs.items()}, outputs
