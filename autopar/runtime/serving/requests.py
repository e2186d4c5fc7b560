"""Requests of several threads: carried out in order, by one thread, several of them at once.

A request to which nothing else is under way can be carried out by the thread that brings it: that
saves two changes of threads, which take longer than small models.

Requests that differ in nothing but the size of their batch can be put together: they are one
request of all their rows, whose outputs are cut apart again.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError, RuntimeFailure
from autopar.ir.expr.at_sizes import Sizes

Outputs = dict[str, Tensor]


@dataclass(eq=False)
class Request:
    """Inputs of a call, and what is to become of them.

    Attributes:
        inputs: Global tensors by label; None if what calls left is to be forgotten.
        sizes: Those that are open.
        answer: Gets the outputs by label.
    """

    inputs: Mapping[str, Tensor] | None
    sizes: Sizes
    answer: Future[Outputs] = field(default_factory=Future)


@dataclass(frozen=True)
class Together:
    """Which requests are put together.

    Attributes:
        size: The open size that adds up.
        most: Up to how many rows.
        seconds: How long the first request waits for others.
    """

    size: str
    most: int
    seconds: float


class Queue:
    """Carries out requests on a thread of its own, in the order in which they come.

    Args:
        run: Returns the outputs of requests that are put together.
        together: Which are; by default none.
        at_once: Whether a caller's thread may carry out its request by itself. It may be
            interrupted at any moment, so nothing is to be left half done then.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Request]], Outputs],
        together: Together | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        self._run = run
        self._together = together
        self._waiting: deque[Request] = deque()
        self._changed = threading.Condition()
        self._turn = threading.RLock()
        self._at_once = at_once and together is None
        self._ended: RuntimeFailure | None = None
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._work, name="autopar requests", daemon=True)
        self._thread.start()

    def is_elsewhere(self) -> bool:
        """Tells whether this process was forked off: the thread is in the one that began."""
        return os.getpid() != self._process

    def answer(self, request: Request) -> Outputs:
        """Returns the outputs of a request, once it has been carried out.

        Raises:
            InvalidInputError: If it is refused.
            RuntimeFailure: If it fails, or none is carried out any more.
        """
        if self._at_once and self._turn.acquire(blocking=False):
            try:
                idle = not self._waiting and self._ended is None and not self.is_elsewhere()
                if idle and not _computes_otherwise():
                    return self._run_here(request)
            finally:
                self._turn.release()
        self.put(request)
        return request.answer.result()

    def put(self, request: Request) -> None:
        """Adds a request.

        Raises:
            RuntimeFailure: If none is carried out any more, or none by this process.
        """
        if self.is_elsewhere():
            raise RuntimeFailure(
                f"the session is that of process {self._process}, from which this one,"
                f" {os.getpid()}, was forked; open one in each process that calls it, or call it"
                " from threads"
            )
        with self._changed:
            if self._ended is not None:
                raise RuntimeFailure(str(self._ended))
            self._waiting.append(request)
            self._changed.notify_all()

    def end(self, failure: RuntimeFailure) -> None:
        """Refuses what waits and what comes, for a reason; the first one counts."""
        with self._changed:
            self._ended = self._ended or failure
            waiting = [*self._waiting]
            self._waiting.clear()
            self._changed.notify_all()
        for request in waiting:
            request.answer.set_exception(RuntimeFailure(str(self._ended)))

    def join(self) -> None:
        """Waits until what is being carried out is done, if this is another thread."""
        if threading.current_thread() is not self._thread:
            self._thread.join()
        with self._turn:
            pass

    def _work(self) -> None:
        while batch := self._next():
            with self._turn:
                self._carry_out(batch)

    def _carry_out(self, batch: Sequence[Request]) -> None:
        try:
            outputs = self._run(batch)
        except InvalidInputError as error:
            if len(batch) > 1:
                # One of them is to blame, and only that is refused.
                for request in batch:
                    self._carry_out([request])
            else:
                batch[0].answer.set_exception(error)
        except BaseException as error:
            failure = self._ended_by(error)
            for request in batch:
                request.answer.set_exception(RuntimeFailure(str(failure)))
        else:
            self._hand_out(batch, outputs)

    def _run_here(self, request: Request) -> Outputs:
        try:
            return self._run([request])
        except InvalidInputError:
            raise
        except Exception as error:
            raise RuntimeFailure(str(self._ended_by(error))) from error

    def _ended_by(self, error: BaseException) -> RuntimeFailure:
        """Ends all for an error; returns it as a failure."""
        failure = error if isinstance(error, RuntimeFailure) else RuntimeFailure(repr(error))
        self.end(failure)
        return failure

    def _hand_out(self, batch: Sequence[Request], outputs: Outputs) -> None:
        if self._together is None:
            batch[0].answer.set_result(outputs)
            return
        rows = [request.sizes[self._together.size] for request in batch]
        parts = {label: torch.split(whole, rows) for label, whole in outputs.items()}
        for at, request in enumerate(batch):
            request.answer.set_result({label: part[at] for label, part in parts.items()})

    def _next(self) -> list[Request]:
        """Waits for requests; returns those to carry out together, or none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            if self._ended is not None:
                return []
            first = self._waiting.popleft()
            return [first] if self._together is None else self._joined(first, self._together)

    def _joined(self, first: Request, together: Together) -> list[Request]:
        """Returns a request and others like it, in order, that come soon enough."""
        found, deadline = [first], time.monotonic() + together.seconds
        while True:
            left = together.most - sum(request.sizes[together.size] for request in found)
            for request in [*self._waiting]:
                if request.sizes[together.size] <= left and _are_alike(first, request, together):
                    self._waiting.remove(request)
                    found.append(request)
                    left -= request.sizes[together.size]
            seconds = deadline - time.monotonic()
            if left <= 0 or seconds <= 0 or self._ended is not None:
                return found
            self._changed.wait(seconds)


def _computes_otherwise() -> bool:
    """Returns whether torch computes otherwise on this thread than on another one."""
    return bool(
        torch.is_autocast_enabled("cpu")
        or torch.is_inference_mode_enabled()
        or torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
    )


def _are_alike(one: Request, other: Request, together: Together) -> bool:
    return all(
        size == other.sizes[name] for name, size in one.sizes.items() if name != together.size
    )
