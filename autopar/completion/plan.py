"""Plan: what was decided about a problem.

A plan is written where programs have room for it, on values and ops, and nowhere else: a second
table of the same would have to be kept equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from autopar.completion.search.forecast import Forecast, predicted_time
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.layout import Layout
from autopar.ir.program import OpDist, Program


@dataclass(frozen=True)
class Plan:
    """A choice for every op, and a layout for every value.

    Attributes:
        program: The problem's program with all of them, and with why they are so.
        remarks: How it was decided, for the report.
        seconds: Predicted serialized seconds of a step; of slices of a mesh they aren't known.
        forecast: What search predicts of it; None where nothing was searched.
    """

    program: Program
    remarks: tuple[ReportEntry, ...] = ()
    seconds: float = math.nan
    forecast: Forecast | None = None

    @cached_property
    def layouts(self) -> Mapping[str, Layout | None]:
        """How each value of the program is stored, by name."""
        return {name: value.dist for name, value in self.program.main.values.items()}

    @cached_property
    def choices(self) -> Mapping[tuple[str, ...], OpDist | None]:
        """How each op of the program is computed, by the names of its results."""
        return {op.results: op.dist for op in self.program.main.ops}

    def is_like(self, other: Plan) -> bool:
        """Whether another plan decides the same, whyever."""
        return self.layouts == other.layouts and self.choices == other.choices

    def with_remark(self, subject: str, detail: str) -> Plan:
        """Returns the plan with one more thing to say of how it was decided."""
        return replace(self, remarks=(*self.remarks, ReportEntry("search", subject, detail)))

    @property
    def is_timed(self) -> bool:
        """Whether it is known how long a step takes."""
        return not math.isnan(self.seconds)

    def reported(self, seconds: float, added_seconds: float) -> tuple[ReportEntry, ...]:
        """Returns the remarks, with the forecast; without search, with the time alone.

        Args:
            seconds: Serialized, of what ranks run; it doesn't count where a plan isn't timed.
            added_seconds: What recomputation and transfers to the host's memory add.
        """
        if not self.is_timed:
            return self.remarks
        if self.forecast is None:
            total = predicted_time(seconds + added_seconds, added_seconds)
            return (ReportEntry("search", "time", total), *self.remarks)
        return (self.forecast.remark(seconds, added_seconds), *self.remarks)
