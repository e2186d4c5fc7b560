"""Runs one rank of a build: `torchrun --nproc-per-node 8 -m autopar.runtime build/ ...`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from autopar.base.errors import AutoparError
from autopar.runtime.execute.libraries import import_modules
from autopar.runtime.execute.session import Session
from autopar.runtime.failure.telling import tell
from autopar.runtime.files.tensors import check_output, read_arrays, save_arrays
from autopar.runtime.job.parent import end_with_parent
from autopar.runtime.job.patience import DEFAULT_START_TIMEOUT, DEFAULT_TIMEOUT
from autopar.runtime.job.processes import Processes
from autopar.runtime.ports.open_inputs import complete_inputs
from autopar.runtime.ports.ports import input_types, with_seed


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs this rank and returns its exit code; errors are printed once, without a traceback."""
    options = _parser().parse_args(arguments)
    processes = Processes()
    try:
        processes = Processes.from_environment()
        outputs = _run(options, processes)
        if processes.rank == 0 and options.output is None:
            _summarize(outputs)
        return 0
    except AutoparError as error:
        tell(error, processes)
        if options.error_folder is not None:
            (options.error_folder / f"rank{processes.rank}").write_text(str(error))
        return 1


def _run(options: argparse.Namespace, processes: Processes) -> dict[str, Tensor]:
    if options.error_folder is not None:
        end_with_parent(signal.SIGKILL)
    import_modules(options.modules)
    session = Session(
        options.build,
        backend=options.backend,
        timeout=options.timeout,
        start_timeout=options.start_timeout,
        torch_compile=options.torch_compile,
        trace=options.trace,
        processes=processes,
    )
    with session, session.supervisor.reported():
        if processes.rank == 0 and options.output is not None:
            check_output(options.output)
        given = read_arrays(options.input, input_types(session.program))
        inputs = complete_inputs(session.program, given, options.random_inputs)
        inputs = with_seed(session.program, inputs, options.seed)
        outputs = session.run(inputs, updates=options.updates)
        if processes.rank == 0 and options.output is not None:
            save_arrays(options.output, outputs)
        return outputs


def _summarize(outputs: dict[str, Tensor]) -> None:
    for label, tensor in outputs.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        print(f"{label}: {dtype}{list(tensor.shape)}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("autopar.runtime", description=__doc__)
    parser.add_argument("build", type=Path, help="build folder")
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy", help="or FILE.npz"
    )
    parser.add_argument("--random-inputs", type=int, metavar="SEED", help="for inputs not given")
    parser.add_argument(
        "--modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="registers ops of another library",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the program's random ops")
    parser.add_argument("--output", type=Path, metavar="FILE.npz", help="or FILE.safetensors")
    parser.add_argument("--backend", choices=("auto", "gloo", "nccl"), default="auto")
    parser.add_argument("--updates", action="store_true", help="show new state too")
    parser.add_argument("--torch-compile", action="store_true", help="run through torch.compile")
    parser.add_argument("--trace", type=Path, metavar="FILE.json", help="when each op ran")
    parser.add_argument("--timeout", type=float, default=DEFAULT_TIMEOUT, metavar="SECONDS")
    parser.add_argument(
        "--start-timeout", type=float, default=DEFAULT_START_TIMEOUT, metavar="SECONDS"
    )
    parser.add_argument("--error-folder", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
