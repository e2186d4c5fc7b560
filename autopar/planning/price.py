"""Price: predicted seconds and bytes of what ranks run."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.cost import (
    Cluster,
    CommunicationModel,
    evaluate,
    evaluate_together,
    peak_rank_timeline,
)
from autopar.ir.parts import programs_of
from autopar.ir.program import Program


@dataclass(frozen=True)
class Price:
    """What one execution of a program takes on the rank with the largest parts.

    Attributes:
        seconds: Serialized: as if nothing overlapped, and ranks on one slice of the mesh waited for
            those on others.
        overlapped_seconds: With sums beside what doesn't wait for them, and slices side by side.
        communication_seconds: Of all collectives, one after another.
        communication_bytes: The larger of operand and result of each collective, summed up.
        peak_bytes: The most memory that is taken at a time, by the rank that takes most.
        transfer_seconds: Of all transfers to the host's memory and back, one after another.
        host_bytes: The most that waits in the host's memory at a time.
        host_seconds: Of all updates by the host.
    """

    seconds: float
    overlapped_seconds: float
    communication_seconds: float
    communication_bytes: int
    peak_bytes: int
    transfer_seconds: float = 0.0
    host_bytes: int = 0
    host_seconds: float = 0.0


def price(ranks: Program, cluster: Cluster, model: CommunicationModel | None = None) -> Price:
    """Returns the price of what ranks run.

    Args:
        ranks: The partitioned program.
        cluster: The hardware.
        model: The seconds of collectives on the program's mesh, if they are known.
    """
    evaluation = evaluate(ranks, cluster, model=model)
    overlapped_seconds = evaluation.overlapped_seconds
    if len(parts := programs_of(ranks).kinds) > 1:
        together = evaluate_together(parts, cluster, model=model)
        overlapped_seconds = max(each.overlapped_seconds for each in together)
    timeline = peak_rank_timeline(ranks)
    return Price(
        evaluation.serialized_seconds,
        overlapped_seconds,
        evaluation.communication_seconds,
        evaluation.communicated_bytes,
        timeline.peak_bytes,
        evaluation.transfer_seconds,
        timeline.host_bytes,
        evaluation.host_seconds,
    )
