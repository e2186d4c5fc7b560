"""Forecast: what is said about a plan: its name, how long a step takes, how far that is from best.

What is computed again or waits in the host's memory is decided later, so its seconds are added when
the plan is reported: a user is told the time of the whole step.
"""

from __future__ import annotations

from dataclasses import dataclass

from autopar.base.units import human_seconds, human_slowdown
from autopar.completion.search.learned import CLOSE
from autopar.ir.builds.manifest import ReportEntry


@dataclass(frozen=True)
class Forecast:
    """What is predicted of a plan.

    Attributes:
        plan: What it does along each mesh axis.
        seconds: Serialized, before anything is done to save memory.
        bound_seconds: No plan takes less, within a limit of memory if there is one; 0 if none was
            found in time, None if it says nothing of this plan.
        preset: The name of the best preset that was tried, and its serialized seconds, before
            anything is done to save memory; None if none is to be named.
        notes: What else there is to say.
        is_limited: Whether it was chosen for a limit of memory.
    """

    plan: str
    seconds: float
    bound_seconds: float | None = None
    preset: tuple[str, float] | None = None
    notes: tuple[str, ...] = ()
    is_limited: bool = False

    def remark(self, seconds: float | None = None, added_seconds: float = 0.0) -> ReportEntry:
        """Returns the entry of the report.

        Args:
            seconds: The serialized seconds of what ranks run; None if it wasn't lowered.
            added_seconds: What recomputation and transfers to the host's memory add.
        """
        run_seconds = (self.seconds if seconds is None else seconds) + added_seconds
        total = predicted_time(run_seconds, added_seconds)
        saves = added_seconds > 0
        distance = self._distance(run_seconds, saves)
        parts = (self.plan, total, distance, self._against(saves), *self.notes)
        return ReportEntry("search", "auto", "; ".join(filter(None, parts)))

    def _against(self, saves: bool) -> str:
        """Returns what the best preset takes."""
        if self.preset is None:
            return ""
        name, seconds = self.preset
        before = " before anything is done to save memory" if saves else ""
        if abs(seconds - self.seconds) <= CLOSE * seconds:
            return f"preset {name} takes as long{before}"
        return f"the best preset tried, {name}, takes {human_seconds(seconds, 4)}{before}"

    def _distance(self, seconds: float, saves: bool) -> str:
        """Returns how far the plan may be from the fastest.

        Args:
            seconds: What it takes.
            saves: Whether some of that is to save memory.
        """
        if self.bound_seconds is None:
            return ""
        if self.is_proven(seconds):
            return "no plan that fits is faster" if self.is_limited else "no plan is faster"
        if not self.bound_seconds:
            return "no bound yet"
        best = "the fastest"
        if self.is_limited:
            best += " that fits"
        elif saves:
            best += " that does nothing to save memory"
        return f"at most {human_slowdown(seconds / self.bound_seconds)} {best}"

    def is_proven(self, seconds: float) -> bool:
        """Whether no plan takes less than so many seconds."""
        return seconds <= (self.bound_seconds or 0.0) * (1 + CLOSE)


def predicted_time(seconds: float, added_seconds: float) -> str:
    """Returns the time of a step in words.

    Args:
        seconds: The serialized seconds of all of it.
        added_seconds: What of them recomputation and transfers to the host's memory add.
    """
    total = f"{human_seconds(seconds, 4)} predicted, one op after another"
    if added_seconds > 0:
        total += f", {human_seconds(added_seconds, 4)} of it to save memory"
    return total
