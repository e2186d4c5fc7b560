"""Runs compiled programs: on this host, among torchrun's processes, or all ranks in one process.

    load(build)                 this process's rank, under torchrun: to train, or to call
    open_trainer(build)         the same, or all ranks in this process, to train
    run(build, inputs)          this process's rank, once
    launch(build, inputs)       starts the ranks on this host
    run_virtual(build, inputs)  all ranks in this process, without a process group
    verify(build, inputs)       every rank's values against the serial program's
    read_program(build, rank)   what a rank runs

Needs torch and `autopar.ir`, nothing else of autopar. Names are imported when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autopar.runtime.api import (
        NonFiniteLoss,
        Session,
        Trainer,
        Verification,
        launch,
        load,
        open_trainer,
        read_program,
        run,
        run_one_device,
        run_virtual,
        verify,
    )

__all__ = [
    "NonFiniteLoss",
    "Session",
    "Trainer",
    "Verification",
    "launch",
    "load",
    "open_trainer",
    "read_program",
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
