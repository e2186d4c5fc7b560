"""Ranks: who runs the programs of a deployment in this process.

A session runs one rank among many processes, the virtual mesh runs all of them in one. What keeps
state over many runs, as training does, is written once against this interface.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.ir.deployment import Deployment
from autopar.ir.expr.at_sizes import Sizes
from autopar.ir.program import Program
from autopar.runtime.agree.agreement import Agreement, Offer
from autopar.runtime.agree.disagreement import METHOD
from autopar.runtime.agree.preparing import no_contents, prepared_by_all
from autopar.runtime.failure.standing import Standing
from autopar.runtime.job.messages import Messages
from autopar.runtime.ports.outputs import Side

Result = TypeVar("Result")

Results = Mapping[int, tuple[Tensor, ...]]
"""What each rank of this process computed, by rank."""


class Ranks(Protocol):
    """The ranks of a deployment that run in this process.

    Where there are other processes, all of them call the methods alike.
    """

    @property
    def deployment(self) -> Deployment:
        """All ranks, also those of other processes."""

    @property
    def device(self) -> torch.device:
        """Where the ranks of this process compute."""

    @property
    def programs(self) -> Mapping[int, Program]:
        """What each rank of this process runs, specialized, by rank."""

    @property
    def stored(self) -> Mapping[int, dict[str, Tensor]]:
        """Each rank's pieces of the stored inputs by value name; those of the next run."""

    @property
    def absent(self) -> set[str]:
        """Labels of stored inputs that have no values yet."""

    @property
    def agreement(self) -> Agreement:
        """What compares what the processes bring."""

    @property
    def standing(self) -> Standing:
        """Whether they can be called."""

    def reported(self) -> AbstractContextManager[None]:
        """Makes an error within known to all ranks; refuses to begin when it is too late."""

    def tally(self, choice: int) -> Sequence[int]:
        """Returns how many processes give each choice, of 0 to 3."""

    def messages(self, meeting: bool) -> Messages:
        """Connects the processes for short texts; for one thread of each.

        Args:
            meeting: Whether each exchange is a collective too, which notices at once that a
                process has died; for the main thread.
        """

    def execute(
        self, arguments: Mapping[int, tuple[Tensor, ...]], *, number: int | None = None
    ) -> Results:
        """Runs each rank's program with its pieces of all inputs.

        Args:
            arguments: By rank.
            number: What messages call this run; by default the number after that of the last.

        Raises:
            RuntimeFailure: If an op fails, here or elsewhere.
        """

    def whole(
        self, side: Side, at: int, pieces: Mapping[int, Tensor], everywhere: bool
    ) -> Tensor | None:
        """Returns a global value, put together in main memory.

        Args:
            side, at: Which input or output it is.
            pieces: The pieces of the ranks of this process.
            everywhere: Whether all processes get it, or only that of rank 0, and the others None.
        """

    def variant(self, deployment: Deployment) -> Ranks:
        """Returns the ranks of another deployment over the same stored inputs."""

    def at(self, sizes: Sizes) -> Ranks:
        """Returns the ranks at sizes that are open, by name, over the same stored inputs."""

    def close(self) -> None:
        """Ends the ranks."""


def jointly(
    ranks: Ranks,
    call: str,
    prepare: Callable[[], Result],
    contents: Callable[[Result], Mapping[str, str]] = no_contents,
    /,
    **alike: object,
) -> Result:
    """Returns what a rank prepares by itself for a call, if all ranks can: none begins it else.

    So what can go wrong on one rank alone, as a file that is missing there, is looked at in
    `prepare`, and what others wait in, or what changes the state, comes behind it.

    Args:
        ranks: Who makes the call.
        call: Its name.
        prepare: Prepares it: it doesn't communicate, nor change anything.
        contents: Returns, of what was prepared, the contents that must be the same on all ranks,
            by label, as `content_of` says them. It isn't called where nobody compares them.
        alike: What must be the same on all ranks, by name.

    Raises:
        InvalidInputError: On all ranks, if `prepare` raises it on one of them, or they make
            different calls, or bring other contents. They can go on.
        RuntimeFailure: If `prepare` raises anything else, here or elsewhere.
    """
    values = {METHOD: call, **{name: str(value) for name, value in alike.items()}}
    offer = Offer(values=values, call=call)
    return prepared_by_all(ranks.agreement, ranks.reported(), offer, prepare, contents)


def path_text(path: object) -> str:
    """Returns a path as ranks compare it, however it is given; whether it is one, others say."""
    return str(Path(path)) if isinstance(path, (str, Path)) else repr(path)


def understood(ranks: Ranks, act: Callable[[], Result]) -> Result:
    """Returns what an act returns that refuses bad input on all ranks alike: they can go on.

    Raises:
        InvalidInputError: If the act does.
        RuntimeFailure: If it raises anything else, here or elsewhere.
    """
    with ranks.reported():
        try:
            return act()
        except InvalidInputError as error:
            refused = error
    raise refused
