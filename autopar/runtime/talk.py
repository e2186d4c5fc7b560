"""How ranks hear of one another: sums in their process group, texts in the store.

Texts go by way of the store since a rank may have to tell them in the middle of a step, where the
order of what it sends in process groups is that of the program.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from autopar.runtime.messages import Messages
from autopar.runtime.processes import Processes


class RankTalk:
    """See `Talk`.

    Args:
        processes: Who this process is.
        device: Where what it sends is.
        connect: Connects it to the others for texts; called when there are any.
        group: The process group for sums; None for that of all ranks.
    """

    def __init__(
        self,
        processes: Processes,
        device: torch.device,
        connect: Callable[[], Messages],
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank = processes.rank
        self.size = processes.size
        self.device = device
        self.group = group
        self._connect = connect
        self._messages: Messages | None = None

    def start_sum(self, vector: Tensor) -> Callable[[], list[int]]:
        """Starts to sum a vector over all ranks; returns what waits for the sum.

        Every rank starts it before what else it sends in this group. Where it is on an
        accelerator, the host waits for the sum alone, and not for what was started after it.
        """
        work = dist.all_reduce(vector, group=self.group, async_op=True)
        assert work is not None
        if vector.is_cpu:
            return lambda: (work.wait(), vector.tolist())[1]
        beside = torch.cuda.Stream(vector.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(beside):
            work.wait()
            host = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
            host.copy_(vector, non_blocking=True)
            arrived = beside.record_event()
        vector.record_stream(beside)
        return lambda: (arrived.synchronize(), host.tolist())[1]

    def decide(self, text: str, rule: Callable[[list[str]], str]) -> str:
        """Returns, on all ranks, what a rule makes of the texts of all ranks; rank 0 applies it."""
        if self._messages is None:
            self._messages = self._connect()
        texts = self._messages.to_first(text)
        return self._messages.from_first(rule(texts) if texts else "")
