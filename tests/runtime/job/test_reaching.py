"""Whoever serves the store is reached as soon as it is there, and missed when it has ended."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.job.patience import Patience
from autopar.runtime.job.processes import Processes
from autopar.runtime.job.reaching import reach
from tests.runtime.execute.targets import connected_in_vain
from tests.runtime.job.real import run_ranks


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_a_line_is_there_with_the_listener_and_cut_without() -> None:
    port, patience = free_port(), Patience(60.0)

    def come_and_go() -> None:
        time.sleep(0.3)
        listener = socket.create_server(("127.0.0.1", port))
        taken, _ = listener.accept()
        time.sleep(0.3)
        listener.close()
        taken.close()

    threading.Thread(target=come_and_go, daemon=True).start()
    with reach("127.0.0.1", port, patience) as line:
        assert not line.is_cut()
        for _ in patience.turns():
            if line.is_cut():
                break
    assert line.is_cut()
    assert patience.left > 0


@pytest.mark.parametrize(
    ("served", "message"),
    [
        (False, "! rank 0 failed: it ended without a word (killed?), and the store with it"),
        (True, "! rank 1 failed: the launcher's store is gone, and the launcher with it (killed?)"),
    ],
)
def test_who_ends_while_a_rank_connects_is_named(served: bool, message: str) -> None:
    """Torch's client would ask again until the time is up."""
    assert run_ranks(1, connected_in_vain, served, size=2) == [message]


def test_who_answers_late_is_not_taken_for_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection may take seconds: a lost packet alone costs one."""

    def late(*_: object, **__: object) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", late)
    with Processes(1, 2, 1, 2, "127.0.0.1", free_port()).line() as is_cut:
        assert not is_cut()


def test_rank_0_that_does_not_come_is_named_with_what_to_do() -> None:
    port = free_port()
    with pytest.raises(RankFailure) as got:
        Processes(1, 2, 1, 2, "127.0.0.1", port).connect(Patience(0.1))
    assert str(got.value) == (
        f"rank 0 failed: rank 1 can't reach the store at 127.0.0.1:{port}, which it serves, within"
        " 0.1 s; start it too, with the same MASTER_ADDR and MASTER_PORT, look at what it says if"
        " it was, and give start_timeout= if it takes longer"
    )
