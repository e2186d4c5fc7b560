"""Ranks in which the same op fails find one another before the store may end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
from torch import fx
from torch.distributed import HashStore

from autopar.ir.program import Op
from autopar.runtime.failure.failure import FailureBoard, RankFailure
from autopar.runtime.failure.supervise import Supervisor
from autopar.runtime.job.patience import Patience
from autopar.runtime.job.processes import Processes


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    """The supervisor of the second of two ranks, of which the first serves the store."""
    processes, start = Processes(1, 2, 1, 2), Patience(30.0)
    found = Supervisor(
        processes, HashStore(), timedelta(seconds=30), start, lambda rank, group: range(2)
    )
    yield found
    found.close()


def failing_module() -> fx.GraphModule:
    """Returns a module with one op, which fails."""
    graph = fx.Graph()
    failing = graph.call_function(torch.linalg.cholesky, (graph.placeholder("x"),))
    failing.meta["op"] = Op("aten.linalg_cholesky.default", (), ("y",))
    graph.output(failing)
    return fx.GraphModule({}, graph)


def test_a_rank_needs_the_store_until_it_has_looked_for_those_alike(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    board, left = FailureBoard(supervisor.store, 0), list[bool]()
    alike = FailureBoard.alike

    def looked(board: FailureBoard, reason: str, size: int, seconds: float) -> list[int]:
        left.append(board.await_left(1, 0.0))
        FailureBoard(board.store, 0).note(reason)
        return alike(board, reason, size, seconds)

    monkeypatch.setattr(FailureBoard, "alike", looked)
    with pytest.raises(RankFailure, match=r"^ranks 0, 1 failed alike: "), supervisor.reported():
        failing_module().forward(-torch.eye(2))
    assert left == [False]
    assert board.await_left(1, 30.0)
