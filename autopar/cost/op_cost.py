"""What an op costs on one rank."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpCost:
    """What an op costs on one rank.

    Attributes:
        flops: Of products (see `autopar.cost.flops`).
        moved_bytes: Bytes that it reads and writes in the device's memory; 0 for collectives.
        communicated_bytes: Of a collective, the bytes of the larger of operand and result; of a
            redistribution, those that the rank gets.
        compute_seconds: Seconds on the device by roofline.
        communication_seconds: Seconds on the links between devices.
        transferred_bytes: Bytes that are sent to the host or fetched from there.
        transfer_seconds: Seconds on the link to the host.
        host_seconds: Seconds on the host, of an op that it computes.
    """

    flops: int = 0
    moved_bytes: int = 0
    communicated_bytes: int = 0
    compute_seconds: float = 0.0
    communication_seconds: float = 0.0
    transferred_bytes: int = 0
    transfer_seconds: float = 0.0
    host_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds if nothing else runs."""
        on_links = self.communication_seconds + self.transfer_seconds
        return self.compute_seconds + on_links + self.host_seconds


NOTHING = OpCost()
