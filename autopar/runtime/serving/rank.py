"""What each process of a session runs: a rank that answers requests until the session ends.

python -m autopar.runtime.serving.rank BUILD --socket PATH ...
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from autopar.base.errors import AutoparError, InvalidInputError
from autopar.runtime.execute.libraries import import_modules
from autopar.runtime.execute.session import Session
from autopar.runtime.failure.telling import tell
from autopar.runtime.job.parent import end_with_parent
from autopar.runtime.job.processes import Processes
from autopar.runtime.serving.arena import Arena, Slot
from autopar.runtime.serving.line import Line


def main(arguments: Sequence[str] | None = None) -> int:
    """Answers requests; returns 0 when the session has ended, and 1 if this rank failed."""
    options = _parser().parse_args(arguments)
    end_with_parent(signal.SIGKILL)
    # Who interrupts a script in a terminal interrupts its session, which ends the ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes = Processes()
    try:
        processes = Processes.from_environment()
        _serve(options, processes)
        return 0
    except AutoparError as error:
        tell(error, processes)
        (options.error_folder / f"rank{processes.rank}").write_text(str(error))
        return 1


def _serve(options: argparse.Namespace, processes: Processes) -> None:
    import_modules(options.modules)
    with Session(
        options.build,
        backend=options.backend,
        timeout=options.timeout,
        start_timeout=options.start_timeout,
        torch_compile=options.torch_compile,
        processes=processes,
        # All ranks read the same memory.
        check_inputs=False,
    ) as session:
        end = socket.socket(socket.AF_UNIX)
        end.connect(str(options.socket))
        line = Line(end)
        line.send({"rank": processes.rank})
        _answer(session, line)


def _answer(session: Session, line: Line) -> None:
    arena: Arena | None = None
    while True:
        try:
            request, file = line.receive()
        except EOFError:
            return
        if file is not None:
            arena = Arena(file)
        try:
            if request.get("reset"):
                session.reset()
            else:
                assert arena is not None, "the first request brings memory"
                inputs, outputs = (_tensors(arena, request[each]) for each in ("inputs", "outputs"))
                session.run_into(inputs, request["sizes"], outputs)
        except InvalidInputError as error:
            line.send({"refused": str(error)})
        else:
            line.send({})


def _tensors(arena: Arena, slots: Mapping[str, Any]) -> dict[str, Tensor]:
    return {label: arena.tensor(Slot.of_json(slot)) for label, slot in slots.items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("autopar.runtime.serving.rank", description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--error-folder", type=Path, required=True)
    parser.add_argument("--modules", action="append", default=[])
    parser.add_argument("--backend", required=True)
    parser.add_argument("--torch-compile", action="store_true")
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--start-timeout", type=float, required=True)
    return parser


if __name__ == "__main__":
    sys.exit(main())
