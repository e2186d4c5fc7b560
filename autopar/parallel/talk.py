"""How the ranks of a parallel module hear of one another: in a process group, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor


class GroupTalk:
    """See `autopar.runtime.agreement.Talk`.

    Args:
        group: A group in which tensors on the CPU can be sent; None for that of all ranks.
    """

    device = torch.device("cpu")

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def start_sum(self, vector: Tensor) -> Callable[[], list[int]]:
        """Starts to sum a vector over all ranks; returns what waits for the sum."""
        work = dist.all_reduce(vector, group=self.group, async_op=True)
        assert work is not None
        return lambda: (work.wait(), vector.tolist())[1]

    def decide(self, text: str, rule: Callable[[list[str]], str]) -> str:
        """Returns what a rule makes of the texts of all ranks; each rank applies it."""
        return rule(texts_of_all(text, self.group))


def texts_of_all(text: str, group: dist.ProcessGroup | None) -> list[str]:
    """Returns the text of each rank. All ranks call alike.

    Args:
        text: This rank's.
        group: As that of `GroupTalk`.
    """
    mine = bytearray(text.encode())
    lengths = [length for (length,) in numbers_of_all([len(mine)], group)]
    sent = torch.frombuffer(mine.ljust(max(*lengths, 1), b"\0"), dtype=torch.uint8)
    arrived = [torch.empty_like(sent) for _ in lengths]
    dist.all_gather(arrived, sent, group=group)
    return [
        each.numpy().tobytes()[:length].decode()
        for each, length in zip(arrived, lengths, strict=True)
    ]


def numbers_of_all(numbers: Sequence[int], group: dist.ProcessGroup | None) -> list[list[int]]:
    """Returns the numbers of each rank, equally many of all. All ranks call alike.

    Args:
        numbers: This rank's.
        group: As that of `GroupTalk`.
    """
    sent = torch.tensor(numbers, dtype=torch.int64)
    arrived = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
    if numbers:
        dist.all_gather(arrived, sent, group=group)
    return [each.tolist() for each in arrived]
