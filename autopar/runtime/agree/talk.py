"""How ranks hear of one another: sums of a few numbers, and texts in the store.

Texts go by way of the store since a rank may have to tell them in the middle of a step, where the
order of what it sends in process groups is that of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from autopar.runtime.agree.sums import Sums
from autopar.runtime.job.messages import Messages
from autopar.runtime.job.processes import Processes


class RankTalk:
    """See `Talk`.

    Args:
        processes: Who this process is.
        device: Where what it sends is.
        connect: Connects it to the others for texts; called when there are any.
        sums: Sums what it sends.
    """

    def __init__(
        self,
        processes: Processes,
        device: torch.device,
        connect: Callable[[], Messages],
        sums: Sums,
    ) -> None:
        self.rank = processes.rank
        self.size = processes.size
        self.device = device
        self.sums = sums
        self._connect = connect
        self._messages: Messages | None = None

    def start_sum(self, numbers: Sequence[int | Tensor]) -> Callable[[], list[int]]:
        """Starts to sum numbers over all ranks; returns what waits for the sums; see `Sums`."""
        return self.sums.start(numbers)

    def decide(self, text: str, rule: Callable[[list[str]], str]) -> str:
        """Returns, on all ranks, what a rule makes of the texts of all ranks; rank 0 applies it."""
        if self._messages is None:
            self._messages = self._connect()
        texts = self._messages.to_first(text)
        return self._messages.from_first(rule(texts) if texts else "")
