"""How a command ends: messages, exit codes and signals.

    0          done
    1          a model, build or other file can't be used, or differs from what it should be
    2          the command line itself is wrong, whatever files hold
    70         a defect of autopar
    128 + n    ended by signal n; 130 is Ctrl-C

Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from autopar.base.errors import AutoparError
from autopar.base.package import PACKAGE

DEFECT = 70
"""The exit code of a defect, after sysexits.h."""


class Terminated(BaseException):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(number)


class Commands(click.Group):
    """A group of commands that never show a traceback, unless `--traceback` asks for it."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command; exits with its code if it fails."""
        try:
            with _signals():
                return super().invoke(ctx)
        except AutoparError as error:
            _fail(ctx, str(error), 1)
        except click.UsageError as error:
            command = (error.ctx or ctx).command_path
            _fail(ctx, f"{error.format_message()}\nsee {command} --help", 2)
        except KeyboardInterrupt:
            _fail(ctx, "interrupted", 128 + signal.SIGINT)
        except Terminated as error:
            _fail(ctx, f"ended by {signal.Signals(error.number).name}", 128 + error.number)
        except MemoryError:
            _fail(ctx, "there isn't enough memory on this machine", 1)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # Nobody reads on, as with `| head`; click ends without a word.
            _fail(ctx, _describe(error), 1 if _is_full(error) else DEFECT)


class PositiveNumber(click.types.FloatParamType):
    """A finite number above 0."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Returns the number; fails as wrong usage if the text is none."""
        number: float = super().convert(value, param, ctx)
        if not 0 < number < math.inf:
            self.fail(f"{value!r} is not a number above 0", param, ctx)
        return number


class Seed(click.types.IntParamType):
    """A number that torch takes as a seed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns the number; fails as wrong usage if the text is none, or too large a one."""
        number: int = super().convert(value, param, ctx)
        if not -(2**63) <= number < 2**63:
            self.fail(f"{value!r} has more than 64 bits", param, ctx)
        return number


@contextmanager
def usage() -> Iterator[None]:
    """Makes errors in the text of options errors of usage."""
    try:
        yield
    except AutoparError as error:
        raise click.UsageError(str(error)) from error


def unsuited(reason: str, given: Sequence[str]) -> None:
    """Refuses options that say nothing together with another one.

    Args:
        reason: Why, to be followed by the options.
        given: Names of parameters; those that the user didn't give are fine.
    """
    context = click.get_current_context()
    source = click.core.ParameterSource.COMMANDLINE
    named = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in given and context.get_parameter_source(parameter.name) is source
    ]
    if named:
        raise click.UsageError(f"{reason} {' and '.join(named)}")


@contextmanager
def status(text: str, hidden: bool = False) -> Iterator[None]:
    """Shows what a command is busy with, on a terminal, as long as it takes."""
    shown = sys.stderr.isatty() and not hidden
    if shown:
        click.echo(f"\r{text} ...", err=True, nl=False)
    try:
        yield
    finally:
        if shown:
            click.echo("\r\x1b[K", err=True, nl=False, color=True)


def _fail(ctx: click.Context, message: str, code: int) -> NoReturn:
    if ctx.params.get("traceback"):
        click.echo(traceback.format_exc(), err=True)
    click.echo(f"{click.style('error:', fg='red', bold=True)} {message}", err=True)
    raise SystemExit(code)


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _describe(error: Exception) -> str:
    """Returns what is known of an error that nobody foresaw."""
    if _is_full(error):
        return "there is no space left on the disk"
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename).is_relative_to(PACKAGE):
            place = f" at {Path(frame.filename).relative_to(PACKAGE.parent)}:{frame.lineno}"
    summary = "".join(traceback.format_exception_only(error)).strip()
    return (
        f"a defect of autopar, not a mistake of yours{place}:\n  {summary}\n"
        "please report it, with what the same command prints as `autopar --traceback ...`"
    )


@contextmanager
def _signals() -> Iterator[None]:
    """Lets the signals that end a process raise, so that what is half done is undone."""
    numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    if threading.current_thread() is not threading.main_thread():
        numbers = []  # Only the main thread may set handlers.
    for number in numbers:
        signal.signal(number, _terminate)
    ignored, sys.unraisablehook = sys.unraisablehook, _lost
    try:
        yield
    finally:
        sys.unraisablehook = ignored
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    del frame
    raise Terminated(number)


AGAIN = 0.01
"""Seconds after which a signal that was lost is sent again."""


def _lost(unraisable: sys.UnraisableHookArgs) -> None:
    """Sends a signal again whose exception Python dropped, as in a finalizer it drops any."""
    error = unraisable.exc_value
    if isinstance(error, Terminated):
        number = error.number
    elif isinstance(error, KeyboardInterrupt):
        number = signal.SIGINT
    else:
        sys.__unraisablehook__(unraisable)
        return
    # Not at once, for then it would be lost in here.
    again = threading.Timer(AGAIN, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()
