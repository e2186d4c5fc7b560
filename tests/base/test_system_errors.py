"""Errors of the system in words: never without a reason."""

from __future__ import annotations

import errno

import pytest

from autopar.base.errors import os_reason


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENOSPC, "x"),
            "No space left on device; free some, or write to another disk",
        ),
        (OSError(errno.EROFS, "x"), "Read-only file system; write to another disk"),
        (OSError(errno.EACCES, "x"), "Permission denied"),
        (OSError("4 requested and 0 written"), "4 requested and 0 written"),
        (OSError(), "OSError"),
        (IsADirectoryError("it is a folder"), "it is a folder"),
    ],
)
def test_every_error_has_a_reason(error: OSError, said: str) -> None:
    assert os_reason(error) == said
