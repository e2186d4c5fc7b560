"""Every case that ever failed, with what was wrong."""

from __future__ import annotations

from collections.abc import Mapping

CORPUS: Mapping[str, str] = {}
"""By `TARGET:SEED`."""
