"""The ranks of a session, in processes that it starts, calls and ends."""

from __future__ import annotations

import selectors
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autopar.base.errors import InvalidInputError, RuntimeFailure
from autopar.runtime.files.scratch import scratch_folder
from autopar.runtime.job.patience import LEAST
from autopar.runtime.job.torchrun import (
    environment_of_ranks,
    torchrun_command,
    what_happened,
)
from autopar.runtime.serving.line import Line

LAST_WORDS = 2.0
"""Seconds that ranks get to say of what they fail, once one of them has ended."""

CLOSING = 10.0
"""Seconds that ranks get to end."""

_PAUSE = 0.05


@dataclass(frozen=True)
class Opening:
    """How ranks open a build; see `launch`.

    Attributes:
        backend, torch_compile, timeout, start_timeout, threads, modules: Those of `launch`.
    """

    backend: str
    torch_compile: bool
    timeout: float
    start_timeout: float
    threads: int
    modules: Sequence[str]

    def words(self) -> list[str]:
        """Returns them as options of the command that a rank runs."""
        # The session itself sees to shorter ones: ranks couldn't even meet within them.
        seconds = max(self.timeout, LEAST)
        words = ["--backend", self.backend, "--timeout", str(seconds)]
        words += ["--start-timeout", str(self.start_timeout)]
        words += ["--torch-compile"] if self.torch_compile else []
        return words + [word for module in self.modules for word in ("--modules", module)]


class Crew:
    """Processes that run the ranks of a build, until they are closed or one of them fails.

    Args:
        build: The build folder.
        ranks: How many ranks it has.
        opening: How they open it.

    Raises:
        RuntimeFailure: If one can't be opened.
    """

    def __init__(self, build: Path, ranks: int, opening: Opening) -> None:
        self._held = ExitStack()
        self._lines: list[Line] = []
        with ExitStack() as unless_opened:
            unless_opened.callback(self.close)
            self._folder = self._held.enter_context(scratch_folder())
            path = self._folder / "socket"
            listener = self._held.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(path))
            listener.listen(ranks)
            command = torchrun_command(ranks, self._folder)
            command += ["-m", "autopar.runtime.serving.rank", str(build), *opening.words()]
            command += ["--socket", str(path), "--error-folder", str(self._folder)]
            self._log = self._held.enter_context((self._folder / "launcher").open("w+"))
            self._launcher = subprocess.Popen(
                command,
                env=environment_of_ranks(opening.threads),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                # An interrupt in a terminal is for the script alone.
                start_new_session=True,
            )
            self._meet(listener, ranks, opening.start_timeout)
            unless_opened.pop_all()

    def ask(self, request: Mapping[str, Any], file: int | None, seconds: float | None) -> None:
        """Has all ranks carry out a request, and waits until they have.

        Args:
            request: See `autopar.runtime.serving.rank`.
            file: The number of the file of the memory that it is in, where ranks don't have it.
            seconds: For how long to wait.

        Raises:
            InvalidInputError: If they refuse it. They can go on.
            RuntimeFailure: If one fails, or the time is over. No rank can go on.
        """
        try:
            for line in self._lines:
                line.send(request, file)
            answers = self._answers(seconds)
        except (EOFError, OSError) as error:
            raise self._failure() from error
        if refused := next((text for each in answers if (text := each.get("refused"))), None):
            raise InvalidInputError(refused)

    def close(self) -> None:
        """Ends the processes."""
        for line in self._lines:
            line.close()
        self._lines.clear()
        if hasattr(self, "_launcher"):
            self._end(CLOSING)
        self._held.close()

    def _meet(self, listener: socket.socket, ranks: int, seconds: float) -> None:
        """Waits until all ranks have opened the build."""
        listener.settimeout(_PAUSE)
        deadline = time.monotonic() + seconds
        found: dict[int, Line] = {}
        while len(found) < ranks:
            with suppress(TimeoutError):
                end, _ = listener.accept()
                end.setblocking(True)
                line = Line(end)
                hello, _ = line.receive()
                found[hello["rank"]] = line
            if self._launcher.poll() is not None:
                raise self._failure()
            if time.monotonic() > deadline:
                raise RuntimeFailure(
                    f"{len(found)} of {ranks} ranks have started within {seconds:g} s; give"
                    " start_timeout= if it takes longer"
                )
        self._lines.extend(found[rank] for rank in range(ranks))

    def _answers(self, seconds: float | None) -> list[dict[str, Any]]:
        """Returns what each rank answers, once all have."""
        deadline = None if seconds is None else time.monotonic() + seconds
        answers: list[dict[str, Any]] = []
        with selectors.DefaultSelector() as waiting:
            for line in self._lines:
                waiting.register(line, selectors.EVENT_READ, line)
            while len(answers) < len(self._lines):
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                ready = waiting.select(left)
                if not ready:
                    raise self._late(waiting, seconds)
                for key, _ in ready:
                    answers.append(key.data.receive()[0])
                    waiting.unregister(key.data)
        return answers

    def _late(self, waiting: selectors.BaseSelector, seconds: float | None) -> RuntimeFailure:
        """Ends all ranks at once, of which some may be stopped; returns which have not answered."""
        lines = [key.data for key in waiting.get_map().values()]
        late = ", ".join(str(rank) for rank, line in enumerate(self._lines) if line in lines)
        self._launcher.kill()
        self._launcher.wait()
        return RuntimeFailure(
            f"no answer within {seconds:g} s from {'rank' if len(lines) == 1 else 'ranks'} {late};"
            " all ranks were ended; give a larger timeout= if calls take longer"
        )

    def _failure(self) -> RuntimeFailure:
        """Returns why a rank has ended, which ends all."""
        self._end(LAST_WORDS)
        self._log.seek(0)
        return RuntimeFailure(what_happened(self._folder, self._log.read()))

    def _end(self, seconds: float) -> None:
        """Ends the launcher, and with it the ranks, if it hasn't ended within some seconds."""
        for stop in (self._launcher.terminate, self._launcher.kill):
            with suppress(subprocess.TimeoutExpired):
                self._launcher.wait(seconds)
                return
            stop()
        self._launcher.wait()
