"""Lines of which all rows are computed that data may select, as the user is told of them."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Mapping
from pathlib import Path

from autopar.base.errors import Loc
from autopar.base.units import counted
from autopar.ir.builds.manifest import ReportEntry

ALL_ROWS = "all rows"
"""The category of these entries."""


def computed_rows(selected: Mapping[str, int]) -> Iterator[ReportEntry]:
    """Yields an entry for each line.

    Args:
        selected: How often each line makes rows.
    """
    for place, count in selected.items():
        file, _, line = place.rpartition(":")
        if not file:
            continue
        code = linecache.getline(file, int(line)).strip()
        subject = f"{Path(file).name}:{line} ({code})"
        yield ReportEntry(ALL_ROWS, subject, counted(count, "time"), Loc(file, int(line)))
