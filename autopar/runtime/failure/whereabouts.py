"""Where the thread that uses autopar is, as another thread sees it.

The other thread looks at its stack. That takes nothing from the thread that computes, unlike notes
that it would have to make at every op.
"""

from __future__ import annotations

import linecache
import site
import sys
import sysconfig
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch.distributed as dist
from torch import fx

from autopar.base.collector import paused_collector
from autopar.base.package import PACKAGE
from autopar.ir.collectives import is_collective
from autopar.ir.program import Op
from autopar.runtime.execute.describe import describe_op
from autopar.runtime.execute.locate import op_on_line
from autopar.runtime.failure.beats import Place

START = "the start"
"""What the call is called that opens a session."""


class Whereabouts:
    """Keeps account of where a thread is.

    Attributes:
        steps: How many steps, or runs, have begun; those before a checkpoint count.
        entries: How often the thread has entered a call from outside.
        failed_at: Where it failed, while it finds out why.
        timed_out: Whether it waited there in vain until the time-out.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.entries = 0
        self.failed_at: Place | None = None
        self.timed_out = False
        self._thread = threading.get_ident()
        self._calls: list[str] = []
        self._entered = time.monotonic()
        # Those who run a module keep it, and what it was compiled to.
        self._modules: WeakValueDictionary[CodeType, fx.GraphModule] = WeakValueDictionary()
        self._ops: WeakKeyDictionary[fx.GraphModule, dict[int, Op | None]] = WeakKeyDictionary()
        self._last: tuple[object, float] = (None, 0.0)

    @property
    def is_inside(self) -> bool:
        """Whether the thread is in a call."""
        return bool(self._calls)

    @property
    def call(self) -> str:
        """The call that the thread is in; "" outside."""
        return (self._calls or [""])[0]

    def add(self, module: fx.GraphModule) -> None:
        """Lets the ops of an emitted module, and of those that it calls, be known."""
        for each in module.modules():
            if isinstance(each, fx.GraphModule):
                self._modules[each.forward.__code__] = each

    def begin(self, step: int | None = None) -> None:
        """Notes that a step begins.

        Args:
            step: Its number, from 0; by default that after the last one.
        """
        self.steps = (self.steps if step is None else step) + 1

    @contextmanager
    def inside(self, caller: FrameType) -> Iterator[None]:
        """Notes that this thread is in the call that a frame belongs to."""
        call = _name_of(caller)
        if not self._calls:
            self._thread = threading.get_ident()
            self.entries += 1
            self._entered = time.monotonic()
        self._calls.append(call)
        try:
            yield
        finally:
            self._calls.pop()
            if not self._calls:
                self._entered = time.monotonic()
                self.failed_at, self.timed_out = None, False

    def look(self) -> tuple[Place, float]:
        """Returns where the thread is, and for how many seconds: at most what is known."""
        place, now = self.failed_at or self.place(), time.monotonic()
        if place.kind in ("call", "meeting", "outside"):
            return place, now - self._entered
        seen = (place, self.entries)
        if self._last[0] != seen:
            self._last = seen, now
        return place, now - self._last[1]

    def place(self) -> Place:
        """Returns where the thread is."""
        calls = list(self._calls)
        frames = _frames_of(self._thread)
        if not calls:
            return Place("outside", users_line(frames), step=self.steps)
        op = self._op(frames)
        if op is None:
            return Place("meeting" if _waits(frames) else "call", calls[0], step=self.steps)
        return self.at(op)

    def meeting(self) -> Place:
        """Returns the place of a rank that waits for all others in the call that it is in."""
        return Place("meeting", self.call, step=self.steps)

    def at(self, op: Op) -> Place:
        """Returns the place of an op in the step that is under way."""
        if is_collective(op.kind):
            return Place("collective", describe_op(op), str(op.arg("group")), self.steps)
        return Place("op", describe_op(op), step=self.steps)

    def _op(self, frames: Iterable[FrameType]) -> Op | None:
        for frame in frames:
            if (module := self._modules.get(frame.f_code)) is not None:
                return self._op_at(module, frame)
        return None

    def _op_at(self, module: fx.GraphModule, frame: FrameType) -> Op | None:
        ops, line = self._ops.setdefault(module, {}), frame.f_lineno
        if line not in ops:
            text = linecache.getline(frame.f_code.co_filename, line, frame.f_globals)
            ops[line] = op_on_line(module, text)
        return ops[line]


def _name_of(frame: FrameType) -> str:
    """Returns what users call the call that a frame belongs to: the outermost one of autopar."""
    if frame.f_code.co_qualname.endswith("__init__"):
        return START
    found, outer = frame.f_code.co_qualname, frame.f_back
    while outer is not None and outer.f_globals.get("__name__", "").startswith("autopar."):
        found, outer = outer.f_code.co_qualname, outer.f_back
    return found


def _frames_of(thread: int) -> list[FrameType]:
    """Returns the frames of a thread that goes on meanwhile, the innermost first."""
    # Python 3.11 makes the object of a frame when it is asked for, which may start a collection.
    # If code that runs in that lets the thread go on and leave the frame, the object is written to
    # memory that is used otherwise by then.
    with paused_collector() if sys.version_info < (3, 12) else nullcontext():
        return [*outwards(sys._current_frames().get(thread))]


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields a frame and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _waits(frames: Iterable[FrameType]) -> bool:
    """Returns whether code waits for other ranks: by a collective, or for words of theirs."""
    return any(frame.f_code.co_filename.startswith(_WAITING) for frame in frames)


def users_line(frames: Iterable[FrameType], line: int | None = None) -> str:
    """Returns the innermost line of code that isn't of a library.

    Args:
        frames: The frames, the innermost first.
        line: The line of that; by default that which it is at.
    """
    for frame in frames:
        code = frame.f_code
        if not is_library(code.co_filename):
            return f"{Path(code.co_filename).name}:{line or frame.f_lineno} in {code.co_name}"
        line = None
    return ""


@lru_cache(maxsize=1024)
def is_library(file: str) -> bool:
    """Returns whether a source file is part of Python, of an installed package, or of autopar."""
    packages = (*site.getsitepackages(), site.getusersitepackages())
    roots = (*packages, *_LIBRARIES, str(PACKAGE))
    return file.startswith(("<", *roots))


_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))

_WAITING = (
    str(Path(dist.__file__).parent),
    *(
        str(PACKAGE / "runtime" / file)
        for file in ("agree/sums.py", "agree/handshake.py", "job/messages.py")
    ),
)
"""Where ranks wait for others."""
