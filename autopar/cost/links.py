"""Links: what joins devices to one another and to the memory of their host."""

from __future__ import annotations

from dataclasses import dataclass

TOPOLOGIES = ("switch", "ring")


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """What a collective takes on a level of links, where it isn't what the level says of all.

    Attributes:
        kind: `all_reduce`, `all_gather`, ..., or `point_to_point`.
        alpha_seconds, beta_seconds_per_byte: See `LinkLevel`.
    """

    kind: str
    alpha_seconds: float
    beta_seconds_per_byte: float


@dataclass(frozen=True, slots=True)
class LinkLevel:
    """One level of the tree: how `size` groups of the level below are joined.

    Attributes:
        name: What the link is.
        size: How many groups of the level below (devices, at the innermost one) it joins.
        alpha_seconds: Latency of a message.
        beta_seconds_per_byte: Time per byte that a device sends, all devices sending at once.
        topology: One of `TOPOLOGIES`: `switch`, where everybody reaches everybody, or `ring`.
        collectives: Figures of single collectives, as they were measured.
    """

    name: str
    size: int
    alpha_seconds: float
    beta_seconds_per_byte: float
    topology: str = "switch"
    collectives: tuple[CollectiveCost, ...] = ()

    def for_collective(self, kind: str) -> LinkLevel:
        """Returns the level with the figures of one collective."""
        for each in self.collectives:
            if each.kind == kind:
                alpha, beta = each.alpha_seconds, each.beta_seconds_per_byte
                return LinkLevel(self.name, self.size, alpha, beta, self.topology)
        return self

    def least(self) -> LinkLevel:
        """Returns the level with the least figures of any collective."""
        own, known = (self.alpha_seconds, self.beta_seconds_per_byte), self.collectives
        alpha = min((own[0], *(each.alpha_seconds for each in known)))
        beta = min((own[1], *(each.beta_seconds_per_byte for each in known)))
        return LinkLevel(self.name, self.size, alpha, beta, self.topology)


@dataclass(frozen=True, slots=True)
class HostLink:
    """What joins each device to the memory of its host, one transfer per direction at a time.

    Attributes:
        name: What the link is.
        alpha_seconds: What a transfer takes besides.
        beta_seconds_per_byte: Time per byte, all devices of a host transferring at once.
    """

    name: str
    alpha_seconds: float
    beta_seconds_per_byte: float

    def transfer_seconds(self, nbytes: int) -> float:
        """Returns the time of a transfer in one direction."""
        return self.alpha_seconds + self.beta_seconds_per_byte * nbytes
