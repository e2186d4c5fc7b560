"""The command line: autopar compile | inspect | run | verify | ...

Heavy imports happen inside the commands, so that `autopar --help` answers at once.
"""

from __future__ import annotations

import click

from autopar.cli.compiling import compile_command
from autopar.cli.console import Commands
from autopar.cli.inspecting import inspect_command
from autopar.cli.planning import (
    calibrate_command,
    diff_command,
    explain_command,
    plan_command,
)
from autopar.cli.profiling import profile_command
from autopar.cli.running import run_command
from autopar.cli.verifying import verify_command
from autopar.version import __version__


@click.group(
    "autopar",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="autopar")
@click.option("--traceback", is_flag=True, help="Show where in autopar an error was raised.")
def main(traceback: bool) -> None:
    """Compile a model written for one device into one program per rank, and run them.

    \b
    Examples:
      autopar compile model.onnx --mesh 2x4 --dims batch=8 -o build/
      autopar inspect build/                   what it costs
      autopar inspect build/ --rank 5          what rank 5 runs
      autopar run build/ --random-inputs 0     8 processes on this host
      autopar verify build/ --against model.onnx

    On a cluster, torch's launcher starts the ranks:

    \b
      torchrun --nproc-per-node 8 -m autopar.runtime build/ --input ids=ids.npy

    Exit codes: 0 done; 1 a model, build or other file can't be used, or is found to differ;
    2 wrong usage; 70 a defect of autopar; 130 interrupted, 143 ended by SIGTERM.
    """
    del traceback  # `Commands` looks at it.


for command in (
    compile_command,
    inspect_command,
    explain_command,
    diff_command,
    plan_command,
    calibrate_command,
    profile_command,
    run_command,
    verify_command,
):
    main.add_command(command)
