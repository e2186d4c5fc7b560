"""Runs compiled programs: on this host, among torchrun's processes, or all ranks in one process.

    load(build, rank)           what a rank runs
    run(build, inputs)          this process's rank, under torchrun
    launch(build, inputs)       starts the ranks on this host
    run_virtual(build, inputs)  all ranks in this process, without a process group
    verify(build, inputs)       every rank's values against the serial program's

Needs torch and `autopar.ir`, nothing else of autopar. Names are imported when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autopar.runtime.api import (
        Session,
        Verification,
        launch,
        load,
        run,
        run_one_device,
        run_virtual,
        verify,
    )

__all__ = [
    "Session",
    "Verification",
    "launch",
    "load",
    "run",
    "run_one_device",
    "run_virtual",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from autopar.runtime import api

    return getattr(api, name)
