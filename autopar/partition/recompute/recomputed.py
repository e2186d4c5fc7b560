"""A program in which values are computed again, and what is to be said of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autopar.base.units import counted, human_bytes, human_seconds
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.emitted import OFFLOAD
from autopar.ir.program import Program
from autopar.partition.recompute.repeat import PLAN


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A program whose backward pass computes some values again.

    Attributes:
        program: The program.
        added_seconds: What this adds to a step, in serialized seconds.
        peak_bytes: The most bytes that any rank holds at once; 0 if nobody asked.
        transfer_seconds: What of the added seconds are transfers to the host's memory and back.
        host_bytes: The most bytes that wait in the host's memory.
    """

    program: Program
    added_seconds: float
    peak_bytes: int
    transfer_seconds: float = 0.0
    host_bytes: int = 0

    @property
    def remarks(self) -> tuple[ReportEntry, ...]:
        """What the user should know."""
        return tuple(self._remarks())

    def _remarks(self) -> Iterator[ReportEntry]:
        ops = [op for each in self.program.functions.values() for op in each.ops]
        held = f"so that a device holds at most {human_bytes(self.peak_bytes)}"
        if count := sum(PLAN in dict(op.plan) for op in ops):
            seconds = human_seconds(self.added_seconds - self.transfer_seconds)
            detail = f"computed again for the backward pass, in {seconds}, {held}"
            yield ReportEntry("recompute", counted(count, "op"), detail)
        if count := sum(op.kind == OFFLOAD for op in ops):
            detail = (
                f"{human_bytes(self.host_bytes)} in the host's memory until the backward pass;"
                f" transfers take {human_seconds(self.transfer_seconds)}, {held}"
            )
            yield ReportEntry("offload", counted(count, "tensor"), detail)
