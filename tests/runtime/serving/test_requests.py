"""Calls are carried out by who brings them where that is safe, and looked at once if alike."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from autopar.base.errors import InvalidInputError, RuntimeFailure
from autopar.runtime.serving.alike import Alike
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


def test_what_is_like_an_earlier_call_is_taken_as_that() -> None:
    alike = Alike()
    array = np.ones((2, 3), np.float32)
    alike.note({"x": array}, {"x": torch.from_numpy(array)}, {"n": 2})
    other = np.zeros((2, 3), np.float32)
    found = alike.find({"x": other})
    assert found is not None
    assert found[0]["x"].data_ptr() == other.ctypes.data
    assert found[1] == {"n": 2}
    frozen = np.zeros((2, 3), np.float32)
    frozen.flags.writeable = False
    odd: list[Any] = [np.zeros((3, 2), np.float32), np.zeros((2, 3)), frozen, other.T.copy().T]
    odd += [other.astype(">f4"), other.tolist(), torch.zeros(2, 3)]
    assert [alike.find({"x": each}) for each in odd] == [None] * len(odd)
    assert alike.find({"y": other}) is None
    assert alike.find({"x": other, "y": other}) is None


def test_of_what_was_copied_or_left_out_nothing_is_noted() -> None:
    alike, array = Alike(), np.ones((1, 3), np.float32)
    alike.note({"x": array}, {"x": torch.ones(1, 3)}, {})
    alike.note({"x": array}, {"x": torch.from_numpy(array), "seed": torch.zeros(())}, {})
    assert alike.find({"x": array}) is None
    alike.note({"x": array}, {"x": torch.from_numpy(array)}, {})
    assert alike.find({"x": array[::-1]}) is None
