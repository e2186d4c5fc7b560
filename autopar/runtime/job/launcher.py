"""Starts all ranks of a build on this host with torch's own launcher.

The launcher runs as a process of its own: it installs signal handlers, sets environment variables
and logs, none of which belongs into the caller's process. Inputs and outputs travel as files.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from autopar.base.arguments import COUNT, FLAG, NAMES, PATH, SECONDS, expect
from autopar.base.errors import RuntimeFailure
from autopar.base.file import check_file
from autopar.ir.builds.files import read_build
from autopar.runtime.files.scratch import scratch_folder
from autopar.runtime.job.patience import DEFAULT_START_TIMEOUT, DEFAULT_TIMEOUT
from autopar.runtime.job.torchrun import (
    BACKEND,
    SHUTDOWN_SECONDS,
    environment_of_ranks,
    torchrun_command,
    what_happened,
)
from autopar.runtime.ports.boxes import whole_box
from autopar.runtime.ports.open_inputs import serial_for
from autopar.runtime.ports.ports import (
    Arrays,
    check_inputs,
    labelled_inputs,
    user_inputs,
)
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights


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
    trace: str | Path | None = None,
) -> dict[str, Tensor]:
    """Runs a build in one process per rank on this host and returns the global outputs by label.

    Args:
        build: The build folder.
        inputs: Global inputs by label, or a list of them in the order of the program.
        backend: `gloo` (on the CPU), `nccl` (on GPUs), or `auto`: what the build is for.
        torch_compile: Whether to run the programs through `torch.compile`.
        timeout: For how long each collective waits for other ranks.
        start_timeout: For how long the start does.
        threads: Threads that each rank computes with.
        modules: Modules that each rank imports first: they register ops of other libraries.
        updates: Whether new content of parameters and other state is returned too.
        trace: Where to write when each op of each rank ran; by default nothing is recorded.

    Raises:
        InvalidInputError: If the inputs don't fit the program.
        RuntimeFailure: If a rank fails.
    """
    expect(BACKEND, backend=backend)
    expect(FLAG, torch_compile=torch_compile, updates=updates)
    expect(SECONDS, timeout=timeout, start_timeout=start_timeout)
    expect(COUNT, threads=threads)
    expect(NAMES, modules=modules)
    expect(PATH.or_none, trace=trace)
    if trace is not None:
        check_file(trace)
    found = read_build(build)
    arrays = labelled_inputs(found.serial, inputs)
    tensors = check_inputs(serial_for(found.serial, arrays), arrays)
    labels = {port.name: port.user_label for port in user_inputs(found.serial)}
    with scratch_folder() as folder:
        given, output = folder / "inputs.safetensors", folder / "outputs.safetensors"
        write_weights(given, {labels[name]: tensor for name, tensor in tensors.items()})
        options = ["--input", given, "--output", output, "--error-folder", folder]
        options += ["--backend", backend, "--timeout", timeout]
        options += ["--start-timeout", start_timeout]
        options += ["--torch-compile"] if torch_compile else []
        options += ["--updates"] if updates else []
        options += [] if trace is None else ["--trace", trace]
        options += [word for module in modules for word in ("--modules", module)]
        command = torchrun_command(found.rank_table.world_size, folder)
        command += ["-m", "autopar.runtime", str(build), *map(str, options)]
        status, log = _run(command, environment_of_ranks(threads))
        if status:
            raise RuntimeFailure(what_happened(folder, log))
        outputs = _read_all(output)
        wanted = [port.user_label for port in found.serial.signature.outputs]
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


def _read_all(path: Path) -> dict[str, Tensor]:
    with WeightFile(path) as file:
        return {
            label: file.read(label, entry.dtype, entry.shape, whole_box(entry.shape))
            for label, entry in file.entries.items()
        }
