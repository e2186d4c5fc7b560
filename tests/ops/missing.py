"""Why some ops have no rule, and why rules lack splits that brute force finds valid."""

from __future__ import annotations

from collections.abc import Mapping

from tests.ops.test_coverage import NO_RULE

MISSING: Mapping[str, str] = {}
"""Reason -> ops that have a rule which lacks a valid split."""


def reason_for(kind: str) -> str:
    """Returns why an op has no rule, or not for every split; "" if nobody says."""
    for reasons in (NO_RULE, MISSING):
        for reason, kinds in reasons.items():
            if kind in kinds.split():
                return reason
    return ""
