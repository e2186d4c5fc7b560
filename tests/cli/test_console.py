"""How commands end: defects, signals, pipes that nobody reads, disks that are full; help texts."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click
import pytest
from click.testing import CliRunner, Result

from autopar.analysis.reports.summary import human_bytes
from autopar.base.errors import InvalidInputError
from autopar.cli import main
from autopar.cli.console import DEFECT, Commands, status
from autopar.cli.progress import cropped, described, progress
from autopar.completion.search.watch import Progress
from tests.cli.command import autopar, command, refusal


def run(body: Callable[[], object], *words: str) -> Result:
    """Runs a command that does nothing but this."""

    @click.group("autopar", cls=Commands)
    @click.option("--traceback", is_flag=True)
    def group(traceback: bool) -> None:
        pass

    group.command("go")(body)
    return CliRunner().invoke(group, [*words, "go"])


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def body() -> NoReturn:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InvalidInputError("no such model"), 1, "no such model"),
        (MemoryError(), 1, "there isn't enough memory on this machine"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "there is no space left on the disk"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_failures(error: BaseException, code: int, message: str) -> None:
    assert refusal(run(raising(error)), code) == message


def test_a_defect_is_told_from_a_mistake() -> None:
    def defective() -> None:
        human_bytes("many")  # type: ignore[arg-type]

    text = refusal(run(defective), DEFECT)
    first, second, third = text.splitlines()
    assert first.startswith("a defect of autopar, not a mistake of yours at autopar/base/units.py:")
    assert second.startswith("  ")
    assert "Error: " in second
    assert (
        third == "please report it, with what the same command prints as `autopar --traceback ...`"
    )


def test_traceback_on_request() -> None:
    for error, code in ((ValueError("odd"), DEFECT), (InvalidInputError("odd"), 1)):
        done = run(raising(error), "--traceback")
        assert done.exit_code == code
        lines = done.stderr.splitlines()
        assert lines[0] == "Traceback (most recent call last):"
        assert "    raise error" in lines
        assert lines[-1 if code == 1 else -3].startswith("error: ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_are_raised_where_they_come(number: signal.Signals) -> None:
    undone = []

    def body() -> None:
        try:
            os.kill(os.getpid(), number)
        finally:
            undone.append(True)

    before = signal.getsignal(number)
    assert refusal(run(body), 128 + number) == f"ended by {number.name}"
    assert undone == [True]
    assert signal.getsignal(number) == before


def test_a_signal_that_the_user_ignores_stays_ignored() -> None:
    """As `nohup` asks for."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(lambda: os.kill(os.getpid(), signal.SIGHUP)).exit_code == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_pipe_that_nobody_reads(here: Path) -> None:
    process = subprocess.Popen(
        command("inspect", "build", "--rank", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(timeout=600) == 1


def test_status_is_for_terminals(capfd: pytest.CaptureFixture[str]) -> None:
    with status("working"):
        pass
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["compile", "inspect", "run", "verify"])
def test_every_option_is_explained(name: str) -> None:
    options = [item for item in main.commands[name].params if isinstance(item, click.Option)]
    assert [option.name for option in options if not option.help] == []


def test_help_has_examples() -> None:
    for words in (["--help"], ["compile", "--help"], ["inspect", "-h"], ["run", "-h"]):
        done = autopar(*words)
        assert done.exit_code == 0
        assert "\n  Examples:\n    autopar " in done.stdout


def test_how_far_a_search_is() -> None:
    assert described(Progress("searching, round 1")) == "searching, round 1"
    far = described(Progress("preset 2 of 6", 0.0025, 0.002))
    assert far == "preset 2 of 6: 2.5 ms predicted, at least 2 ms"
    assert described(Progress("searching", 0.0025)) == "searching: 2.5 ms predicted"


class Elapsed:
    """A timer whose time is up at once."""

    def __init__(self, seconds: float, then: Callable[[], None]) -> None:
        self.then = then

    def start(self) -> None:
        self.then()

    def cancel(self) -> None:
        """Too late."""

    def join(self) -> None:
        """Nothing is under way."""


def test_a_long_search_says_what_it_does_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress("working") as tell:
        tell(Progress("searching, round 1"))
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr("threading.Timer", Elapsed)
    with progress("working") as tell:
        tell(Progress("searching, round 1"))
    said = "working; --time-limit SECONDS ends a search early\n"
    assert capfd.readouterr() == ("", said)
    with progress("working", hidden=True):
        pass
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress("working") as tell:
        tell(Progress("searching, round 1"))
    shown = capfd.readouterr()
    assert (shown.out, "working ..." in shown.err) == ("", True)


def test_a_long_line_stays_on_one_line_of_a_terminal() -> None:
    doing = "searching 16x2x2 (12 of 28), best so far 8.9 ms: proving"
    told = described(Progress(doing, 8.9e-3, 7e-3))
    assert len(told) > 80
    shown = cropped(told, 80)
    assert (len(shown), shown[-1]) == (77, "…")
    assert told.startswith(shown[:-1])
    assert cropped("searching", 80) == "searching"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_within_a_finalizer_is_not_lost(number: signal.Signals) -> None:
    """Python drops what a handler raises there."""
    script = (
        "import os, signal, time, weakref, click\n"
        "from autopar.cli.console import Commands\n"
        "class Held: pass\n"
        "@click.group(cls=Commands)\n"
        "def group(): pass\n"
        "@group.command()\n"
        "def end():\n"
        "    held = Held()\n"
        f"    known = weakref.ref(held, lambda _: os.kill(os.getpid(), {int(number)}))\n"
        "    del held\n"
        "    time.sleep(600)\n"
        "group()\n"
    )
    done = subprocess.run([sys.executable, "-c", script, "end"], capture_output=True, text=True)
    told = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    assert (done.returncode, done.stderr) == (128 + number, f"error: {told}\n")
