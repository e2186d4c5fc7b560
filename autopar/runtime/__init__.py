"""Runs compiled programs: on this host, among torchrun's processes, or all ranks in one process.

    load(build)                this process's rank, under torchrun: a Trainer, or a Session to call
    run(build, inputs)         once: in processes on this host, or (virtual, serial) in this one
    verify(build, inputs)      every rank's values against the serial program's
    read_program(build, rank)  what a rank runs

Needs torch and `autopar.ir`, nothing else of autopar. Names are imported when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autopar.runtime.api import (
        NonFiniteLoss,
        Session,
        Trace,
        Trainer,
        Verification,
        load,
        read_program,
        run,
        verify,
    )

__all__ = [
    "NonFiniteLoss",
    "Session",
    "Trace",
    "Trainer",
    "Verification",
    "load",
    "read_program",
    "run",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from autopar.runtime import api

    return getattr(api, name)
