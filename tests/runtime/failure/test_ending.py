"""The end of who serves the store, while others go on by themselves for a while."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.runtime.execute.targets import late_to_close
from tests.runtime.failure.faults import SERIAL, SUM
from tests.runtime.job.real import run_ranks
from tests.runtime.programs import build, deploy

_SCRIPT = """
import sys, time
from datetime import timedelta
from autopar.runtime.job.patience import Patience
from autopar.runtime.job.processes import Processes
from autopar.runtime.failure.supervise import Supervisor

processes, start = Processes.from_environment(), Patience(30.0)
store = processes.connect(start)
supervisor = Supervisor(processes, store, timedelta(seconds=30), start, lambda *_: range(2))
with supervisor.reported():
    supervisor.store.set(f"here/{processes.rank}", "1")
    supervisor.store.wait(["here/0", "here/1"])
if processes.rank:
    print("there", flush=True)
    sys.stdin.readline()
    time.sleep(1.5)
    with supervisor.reported():
        print("at work", flush=True)
supervisor.close()
"""


def _started(rank: int, port: int) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", _SCRIPT]
    return subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def test_who_works_on_when_the_store_has_ended_hears_nothing_of_it() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    first, second = _started(0, port), _started(1, port)
    assert second.stdout is not None
    assert second.stdout.readline() == "there\n", second.communicate()
    assert first.communicate(timeout=600)[1] == ""
    assert first.returncode == 0
    out, err = second.communicate("end\n", timeout=600)
    assert out == "at work\n"
    assert err == ""
    assert second.returncode == 0


def test_processes_of_multiprocessing_hear_nothing_of_it_either(tmp_path: Path) -> None:
    """They end without Python's own exit handlers."""
    built = build(tmp_path / "b", deploy({"tp": 2}, SUM, tp=["tp"]), {}, SERIAL)
    assert run_ranks(2, late_to_close, built, tmp_path) == [None, None]
    assert [(tmp_path / f"stderr{rank}").read_text() for rank in range(2)] == ["", ""]
