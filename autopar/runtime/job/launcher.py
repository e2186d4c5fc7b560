"""Starts all ranks of a build on this host with torch's own launcher.

The launcher runs as a process of its own: it installs signal handlers, sets environment variables
and logs, none of which belongs into the caller's process. Inputs and outputs travel as files.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from autopar.base.arguments import COUNT, FLAG, NAMES, SECONDS, Kind, expect
from autopar.base.errors import RuntimeFailure
from autopar.ir.builds.files import read_build
from autopar.runtime.execute.distributed import DEFAULT_START_TIMEOUT, DEFAULT_TIMEOUT
from autopar.runtime.files.scratch import scratch_folder
from autopar.runtime.ports.boxes import whole_box
from autopar.runtime.ports.open_inputs import serial_for
from autopar.runtime.ports.ports import (
    Arrays,
    check_inputs,
    label_of,
    labelled_inputs,
    user_inputs,
)
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights

_BACKEND = Kind(
    lambda value: isinstance(value, str) and value in ("auto", "gloo", "nccl"),
    "'auto', 'gloo' or 'nccl'",
)

SHUTDOWN_SECONDS = 35.0
"""For how long an interrupted launcher may take to end its ranks; it gives them 30 s itself."""


def launch(
    build: str | Path,
    inputs: Arrays | Sequence[Any],
    *,
    backend: str = "auto",
    torch_compile: bool = False,
    timeout: float = DEFAULT_TIMEOUT,
    start_timeout: float = DEFAULT_START_TIMEOUT,
    threads: int = 1,
    modules: Sequence[str] = (),
    updates: bool = False,
) -> dict[str, Tensor]:
    """Runs a build in one process per rank on this host and returns the global outputs by label.

    Args:
        build: The build folder.
        inputs: Global inputs by label, or a list of them in the order of the program.
        backend: `gloo` (on the CPU), `nccl` (on GPUs), or `auto`: nccl where there are GPUs.
        torch_compile: Whether to run the programs through `torch.compile`.
        timeout: For how long each collective waits for other ranks.
        start_timeout: For how long the start does.
        threads: Threads that each rank computes with.
        modules: Modules that each rank imports first: they register ops of other libraries.
        updates: Whether new content of parameters and other state is returned too.

    Raises:
        InvalidInputError: If the inputs don't fit the program.
        RuntimeFailure: If a rank fails.
    """
    expect(_BACKEND, backend=backend)
    expect(FLAG, torch_compile=torch_compile, updates=updates)
    expect(SECONDS, timeout=timeout, start_timeout=start_timeout)
    expect(COUNT, threads=threads)
    expect(NAMES, modules=modules)
    found = read_build(build)
    arrays = labelled_inputs(found.serial, inputs)
    tensors = check_inputs(serial_for(found.serial, arrays), arrays)
    labels = {port.name: label_of(port) for port in user_inputs(found.serial)}
    with scratch_folder() as folder:
        given, output = folder / "inputs.safetensors", folder / "outputs.safetensors"
        write_weights(given, {labels[name]: tensor for name, tensor in tensors.items()})
        options = ["--input", given, "--output", output, "--error-folder", folder]
        options += ["--backend", backend, "--timeout", timeout]
        options += ["--start-timeout", start_timeout]
        options += ["--torch-compile"] if torch_compile else []
        options += ["--updates"] if updates else []
        options += [word for module in modules for word in ("--modules", module)]
        command = _torchrun(found.rank_table.world_size, folder)
        command += ["-m", "autopar.runtime", str(build), *map(str, options)]
        status, log = _run(command, _environment(threads))
        if status:
            raise RuntimeFailure(_what_happened(folder, log))
        outputs = _read_all(output)
        wanted = map(label_of, found.serial.signature.outputs)
        return {label: outputs[label] for label in wanted if label in outputs}


def _run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Returns the launcher's exit code and what it logged; an interrupt ends it and its ranks."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as job:
        try:
            _, log = job.communicate()
        except BaseException:
            # The ranks are in sessions of their own: only the launcher can end them.
            job.terminate()
            with suppress(subprocess.TimeoutExpired):
                job.wait(timeout=SHUTDOWN_SECONDS)
            job.kill()
            raise
    return job.returncode, log


def _torchrun(ranks: int, folder: Path) -> list[str]:
    # The ranks' own output goes to files: with a failure every rank would print the launcher's
    # summary's worth of it. The launcher meets itself over a file, which unlike its store listens
    # nowhere, and the ranks meet on loopback, with keys that nobody can guess.
    meeting = folder / "rendezvous"
    return [
        *(sys.executable, "-m", "autopar.runtime.job.parent", "torch.distributed.run"),
        *("--nnodes=1", f"--nproc-per-node={ranks}", "--max-restarts=0", "--local-addr=127.0.0.1"),
        *("--rdzv-backend=c10d", "--rdzv-conf=store_type=file", f"--rdzv-endpoint={meeting}"),
        f"--rdzv-id={secrets.token_hex(16)}",
        *("--redirects=3", f"--log-dir={folder / 'logs'}"),
    ]


def _environment(threads: int) -> Mapping[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        # The launcher's store is a file; rank 0 serves that of the ranks.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


def _what_happened(folder: Path, launcher_log: str) -> str:
    """Returns the message of the failure: the ranks' own, or what the launcher saw of them."""
    messages = {path.name: path.read_text() for path in sorted(folder.glob("rank*"))}
    for rank, message in messages.items():
        if message.startswith(f"{rank.replace('rank', 'rank ')} failed: "):
            return message
    if messages:
        return next(iter(messages.values()))
    killed = re.search(r"exitcode: (-?\d+)\) local_rank: (\d+)", launcher_log)
    printed = [line for log in sorted(folder.glob("logs/**/stderr.log")) for line in _last(log)]
    if killed and killed[1].startswith("-"):
        return f"rank {killed[2]} was killed by signal {killed[1][1:]}"
    lines = printed or launcher_log.strip().splitlines()
    return f"the ranks ended without a message; the last line was: {lines[-1] if lines else '-'}"


def _last(log: Path) -> list[str]:
    return log.read_text(errors="replace").strip().splitlines()[-1:]


def _read_all(path: Path) -> dict[str, Tensor]:
    with WeightFile(path) as file:
        return {
            label: file.read(label, entry.dtype, entry.shape, whole_box(entry.shape))
            for label, entry in file.entries.items()
        }
