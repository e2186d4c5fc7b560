"""What a run that writes new content in place is given (see `autopar.ir.memory.updates`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from autopar.base.errors import InvalidInputError

Guard = Callable[[Tensor, InvalidInputError | None], None]


class Abandoned(BaseException):
    """A guard ended a run before anything was overwritten.

    Not an `Exception`: no rank failed, so it passes all that makes messages of failures.
    """


@dataclass(frozen=True)
class InPlace:
    """That new content is written in place, and what is looked at before.

    Attributes:
        guard: Called with the first output before anything is overwritten, as a training step's
            loss, and with the refusal of what the run was given, if an assumption of the program
            doesn't hold; None if nobody looks. If it raises `Abandoned`, the stored inputs are
            what they were.
        held: Whether the first output must be finite for anything to be overwritten, of which the
            device decides by itself, as of assumptions; None where the host looks.
    """

    guard: Guard | None = None
    held: bool | None = None

    @property
    def looks(self) -> bool:
        """Whether the first output is looked at, by the host or the device."""
        return self.guard is not None or bool(self.held)


@contextmanager
def abandoned_raised() -> Iterator[None]:
    """Raises why a run within was abandoned; around what turns exceptions into failures.

    Raises:
        InvalidInputError: If an assumption of the program doesn't hold for its inputs.
    """
    try:
        yield
    except Abandoned as stopped:
        raise stopped.args[0] from None
