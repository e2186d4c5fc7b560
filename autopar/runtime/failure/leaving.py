"""Why a rank closes a session: in order, or since an error ends its script."""

from __future__ import annotations

import sys
import traceback

from autopar.runtime.execute.describe import reason_of
from autopar.runtime.failure.whereabouts import outwards, users_line


def why_leaving() -> str:
    """Returns which error is being handled, or has ended the script, and where; "" if none."""
    error = sys.exception() or _ended_by()
    if error is None:
        return ""
    if isinstance(error, SystemExit):
        return f"it called sys.exit({'' if error.code is None else repr(error.code)})"
    return told(error)


def told(error: BaseException) -> str:
    """Returns an error of the user's code as others are told of it: its class, text and place."""
    kind, reason = type(error).__name__, reason_of(error)
    what = kind if reason == kind else f"{kind}: {reason}"
    # The line that a frame has by now may be that of the `with` that is being left.
    frames = reversed([*traceback.walk_tb(error.__traceback__)])
    place = next(filter(None, (users_line(outwards(frame), line) for frame, line in frames)), "")
    return f"{what} (at {place})" if place else what


def _ended_by() -> BaseException | None:
    """Returns the error that ended the script, of which only its exit handlers are left.

    Where somebody types, it is that of an earlier line.
    """
    return None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
