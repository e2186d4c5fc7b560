"""Training on as many processes as there are: a job that is started again with more or fewer.

    def compile(world_size):
        model = GPT()
        return autopar.compile(model, batch(0), devices=world_size, loss=..., optimizer=...)

    with autopar.elastic.load(compile, "builds/", resume="checkpoints/") as trainer:
        while trainer.steps < STEPS and not trainer.stopping:
            loss = trainer.step(batch(trainer.steps))

Checkpoints fit any mesh, and a program fits one. So a job that starts with a number of processes
that it never had compiles for it first: rank 0 does, and the others wait.

    builds/4         the build for 4 processes
    builds/4.json    what it was made of
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from autopar.base.arguments import CALLABLE, PATH, SECONDS, expect, shown
from autopar.base.errors import AutoparError, InvalidInputError, os_reason
from autopar.base.units import counted
from autopar.compiled import CompiledModel
from autopar.ir.builds.files import read_build
from autopar.runtime.api import load as load_build
from autopar.runtime.failure.whereabouts import is_library
from autopar.runtime.files.digest import digest_bytes
from autopar.runtime.job.preparing import prepare_on_first
from autopar.runtime.job.processes import Processes
from autopar.runtime.training.trainer import Trainer
from autopar.version import __version__

Compile = Callable[[int], CompiledModel]
"""Compiles for a number of processes."""

COMPILE_TIMEOUT = 3600.0
"""Seconds that ranks wait for rank 0 to compile."""

_FORWARDED = ("start_timeout", "on_failure")


def load(
    compile: Compile,
    builds: str | Path = "builds",
    *,
    resume: str | Path | None = None,
    config: Any = None,
    compile_timeout: float = COMPILE_TIMEOUT,
    **options: Any,
) -> Trainer:
    """Opens this process's rank of a build for as many processes as the job has.

    Rank 0 compiles it if there is none yet, while the others wait. It compiles again where
    the one that is there was made of something else: by other versions of autopar or torch, with
    other arguments on the command line, or when the script, or a module that it had imported by
    now, was another one. Installed packages are not looked at, nor what the script reads.

    Args:
        compile: Called on rank 0 with the number of processes; returns what `autopar.compile`
            returns for a mesh of so many. What it computes may depend on nothing else than the
            script, its arguments, and `config`.
        builds: A folder that all ranks see, with a build for each number of processes.
        resume: A folder with checkpoints, of any mesh. See `Trainer.resume`.
        config: What else the build is made of, whatever JSON can hold.
        compile_timeout: Seconds that the other ranks wait for rank 0 to compile.
        options: Those of `autopar.load`.

    Returns:
        The trainer.

    Raises:
        AutoparError: If it can't be compiled: on rank 0 what `compile` raised, on the others a
            `RuntimeFailure` that says so.
        InvalidInputError: If a folder can't be written, there are only damaged checkpoints, or
            what was compiled doesn't train.
        RuntimeFailure: If the ranks differ, or another rank failed.
    """
    expect(CALLABLE, compile=compile)
    expect(PATH, builds=builds)
    expect(PATH.or_none, resume=resume)
    expect(SECONDS, compile_timeout=compile_timeout)
    processes: Processes = options.setdefault("processes", Processes.from_environment())
    folder = Path(builds) / str(processes.size)
    forwarded = {name: options[name] for name in _FORWARDED if name in options}

    def prepare() -> None:
        made_of = ingredients(config)
        if not is_made_of(folder, made_of):
            build(compile, processes.size, folder, made_of)

    prepare_on_first(prepare, processes, compile_timeout, **forwarded)
    found = load_build(folder, resume=resume, **options)
    if isinstance(found, Trainer):
        return found
    found.close()
    raise InvalidInputError(
        f"compile({processes.size}) returned no training step: give an optimizer"
    )


def build(compile: Compile, size: int, folder: Path, made_of: Mapping[str, Any]) -> None:
    """Compiles for a number of processes.

    Args:
        compile: What compiles.
        size: The number of processes.
        folder: Where the build goes.
        made_of: See `ingredients`.

    Raises:
        AutoparError: If `compile` does.
        InvalidInputError: If it compiled for another number, or a file can't be written.
    """
    compiled = compile(size)
    if not isinstance(compiled, CompiledModel):
        raise InvalidInputError(
            f"compile({size}) returned {shown(compiled)}: return what autopar.compile does"
        )
    found = compiled.deployment.world_size
    if found != size:
        raise InvalidInputError(
            f"compile({size}) returned a program for {counted(found, 'rank')}; choose a mesh of as"
            " many ranks as it is called with"
        )
    compiled.save(folder)
    record = json.dumps({"build": read_build(folder).digest, "made_of": made_of})
    path = _record_of(folder)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(record)
        fresh.replace(path)
    except OSError as error:
        raise InvalidInputError(f"can't write {path}: {os_reason(error)}") from error


def is_made_of(folder: Path, made_of: Mapping[str, Any]) -> bool:
    """Returns whether there is a build that was made of this; none that is damaged.

    Args:
        folder: The build folder.
        made_of: See `ingredients`.
    """
    try:
        record = json.loads(_record_of(folder).read_text())
        return bool(record == {"build": read_build(folder).digest, "made_of": made_of})
    except (OSError, ValueError, AutoparError):
        return False


def ingredients(config: Any = None) -> dict[str, Any]:
    """Returns what a build is made of, as far as it is known: what JSON can hold.

    Args:
        config: What the user says.

    Raises:
        InvalidInputError: If JSON can't hold that.
    """
    found = {
        "autopar": __version__,
        "torch": torch.__version__,
        "arguments": sys.argv[1:],
        "sources": _sources(),
        "config": config,
    }
    try:
        same: dict[str, Any] = json.loads(json.dumps(found))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"config= can't be kept beside the build: {error}; give numbers, texts, lists, and"
            " dictionaries of them"
        ) from error
    return same


def _record_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def _sources() -> list[str]:
    """Returns the digests of the files of the user's modules."""
    named = {getattr(module, "__file__", None) or "<none>" for module in sys.modules.values()}
    files = [Path(file) for file in named if not is_library(file)]
    return sorted(f"{digest_bytes(file.read_bytes()):016x}" for file in files if file.is_file())
