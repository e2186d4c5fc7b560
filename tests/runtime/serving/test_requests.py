"""Requests are carried out by who brings them where that changes nothing, else by one thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch

from autopar.base.errors import InvalidInputError, RuntimeFailure
from autopar.runtime.serving.requests import Outputs, Queue, Request


def test_an_idle_queue_leaves_requests_to_their_callers() -> None:
    threads: list[threading.Thread] = []

    def run(batch: Sequence[Request]) -> Outputs:
        threads.append(threading.current_thread())
        if batch[0].sizes:
            raise InvalidInputError("refused") if batch[0].sizes["n"] else ValueError("failed")
        return {}

    queue = Queue(run, at_once=True)
    assert queue.answer(Request({}, {})) == {}
    with torch.autocast("cpu"):
        queue.answer(Request({}, {}))
    assert [each is threading.current_thread() for each in threads] == [True, False]
    with pytest.raises(InvalidInputError, match="refused"):
        queue.answer(Request({}, {"n": 1}))
    for _ in range(2):
        with pytest.raises(RuntimeFailure, match="failed"):
            queue.answer(Request({}, {"n": 0}))
    queue.join()
    assert len(threads) == 4
