"""Recorders: when the ops of a rank ran, as a list, or as torch's profiler sees them."""

from __future__ import annotations

import json
import tempfile
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from autopar.base.errors import InvalidInputError
from autopar.runtime.tracing.spans import Args

Event = dict[str, Any]
"""An event of a Chrome trace; its time is in microseconds since the base of its file."""

CATEGORY, STEP, COLLECTIVE = "autopar", "step", "collective"
"""The categories of ops, of whole calls, and of collectives."""

_STEP = "step "
"""What the names of whole calls begin with; those of ops have a `%`."""


class Recorder(ABC):
    """Records when ops of a rank run, between its start and its end.

    Attributes:
        described: What a trace says of ops, by label.
        on: Whether anything is recorded now.
    """

    def __init__(self) -> None:
        self.described: dict[str, Args] = {}
        self.on = False

    def spanned(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that does the same, and records when."""
        self.described.setdefault(label, {})
        return self._spanned(label, function)

    @abstractmethod
    def _spanned(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]: ...

    @abstractmethod
    def start(self) -> None:
        """Records from now on."""

    @abstractmethod
    def stop(self) -> None:
        """Records no longer."""

    @abstractmethod
    def events(self) -> tuple[int, Iterable[Event]]:
        """Returns the base of times, in nanoseconds since 1970, and all events."""

    @abstractmethod
    def step(self, number: int) -> AbstractContextManager[object]:
        """Records a whole call of a rank's code, of this number, that is done within."""

    def event_of(self, label: str) -> Event:
        """Returns what is said of an op, or a step, of this label, besides when it was."""
        args = self.described.get(label, {})
        kind = COLLECTIVE if "group" in args else STEP if label.startswith(_STEP) else CATEGORY
        return {"cat": kind, "name": label, "args": args}


class Clock(Recorder):
    """Reads a clock: under a microsecond per op.

    What a kernel leaves to run behind its call, as on a GPU, it doesn't see.
    """

    def __init__(self) -> None:
        super().__init__()
        self._labels: list[str] = []
        self._numbers: dict[str, int] = {}
        self._times = array("q")
        self._base = time.time_ns() - time.perf_counter_ns()

    def _spanned(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        number, now, note = self._number(label), time.perf_counter_ns, self._times.extend

        def run(*args: Any, **kwargs: Any) -> Any:
            began = now()
            result = function(*args, **kwargs)
            if self.on:
                note((number, began, now()))
            return result

        return run

    def start(self) -> None:
        """See `Recorder`."""
        self.on = True

    def stop(self) -> None:
        """See `Recorder`."""
        self.on = False

    def events(self) -> tuple[int, Iterable[Event]]:
        """See `Recorder`."""
        first = self._times[1] if self._times else 0
        return self._base + first, self._events(first)

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """See `Recorder`."""
        began = time.perf_counter_ns()
        yield
        if self.on:
            label = self._number(f"{_STEP}{number}")
            self._times.extend((label, began, time.perf_counter_ns()))

    def _number(self, label: str) -> int:
        if label not in self._numbers:
            self._numbers[label] = len(self._labels)
            self._labels.append(label)
        return self._numbers[label]

    def _events(self, first: int) -> Iterator[Event]:
        known, times = [*map(self.event_of, self._labels)], iter(self._times)
        for number, began, ended in zip(times, times, times, strict=True):
            when = {"ts": (began - first) / 1000, "dur": (ended - began) / 1000}
            yield {"ph": "X", **known[number], "pid": 0, "tid": 0, **when}


class Kernels(Recorder):
    """Asks torch's profiler, which knows the kernels of a GPU too: some 10 microseconds per op."""

    def __init__(self) -> None:
        super().__init__()
        self._profile: profile | None = None

    def _spanned(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:

        def run(*args: Any, **kwargs: Any) -> Any:
            with _named(label):
                return function(*args, **kwargs)

        return run

    def start(self) -> None:
        """See `Recorder`.

        Raises:
            InvalidInputError: If somebody else has torch's profiler record.
        """
        kinds = [ProfilerActivity.CPU]
        kinds += [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        found = profile(activities=kinds)
        try:
            # A second one takes the place of the first, and both end the process then.
            if torch._C._autograd._profiler_enabled():
                raise RuntimeError("it records already")
            found.start()
        except RuntimeError as error:
            raise InvalidInputError(
                f"trace=: torch's profiler can't be started ({error}); leave one of the two out"
            ) from error
        self._profile, self.on = found, True

    def stop(self) -> None:
        """See `Recorder`."""
        # torch's profiler ends the process when it is stopped again.
        if self.on and self._profile is not None:
            self._profile.stop()
        self.on = False

    def events(self) -> tuple[int, Iterable[Event]]:
        """See `Recorder`."""
        if self._profile is None:
            return 0, ()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(path))
            found: Mapping[str, Any] = json.loads(path.read_text())
        return int(found.get("baseTimeNanoseconds", 0)), map(self._told, found["traceEvents"])

    def step(self, number: int) -> AbstractContextManager[object]:
        """See `Recorder`."""
        return _named(f"{_STEP}{number}")

    def _told(self, event: Event) -> Event:
        """Returns an event of torch's profiler with what is known of the op that it is about."""
        name = event.get("name", "")
        if event.get("ph") != "X" or not (name in self.described or name.startswith(_STEP)):
            return event
        told = self.event_of(name)
        return {**event, **told, "args": {**event.get("args", {}), **told["args"]}}


def _named(label: str) -> AbstractContextManager[object]:
    """Returns a block that torch's profiler records by a name.

    `record_function` takes 25 microseconds, this one less than one.
    """
    found: AbstractContextManager[object] = torch._C._profiler._RecordFunctionFast(label)
    return found
