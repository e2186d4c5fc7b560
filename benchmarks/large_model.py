"""Compiles a training step of Llama-70B without its weights, and prints what that takes.

    python benchmarks/large_model.py                    80 layers for 8x64
    python benchmarks/large_model.py --layers 12 24 48  how it grows
    python benchmarks/large_model.py --mesh pp=8,dp=8,tp=8 --microbatches 64
                                                        as a pipeline of 8 stages
    python benchmarks/large_model.py ... --memory 0.7   within this part of what it holds without

CPU seconds of the capture and of all passes, and the most memory that the process had.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from dataclasses import replace

SEQUENCE = 4096
"""Tokens of a row."""


def measure(
    layers: int, mesh: str, microbatches: int, rows: int, schedule: str, part: float
) -> None:
    """Prints a row of the table."""
    import torch
    from language_models import LLAMA_70B, llama, tokens

    from autopar.cost import peak_rank_timeline
    from autopar.frontend.torch import Recipe, capture
    from autopar.pipeline import CompileOptions, compile_program

    with torch.device("meta"):
        model = llama({**LLAMA_70B, "num_hidden_layers": layers})
    parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters())
    recipe = Recipe(optimizer=optimizer, clip_grad_norm=1.0, accumulate=microbatches)
    start = time.process_time()
    captured = capture(model, tokens(rows * microbatches, SEQUENCE), recipe)
    middle = time.process_time()
    options = CompileOptions.from_text(mesh=mesh)
    if "pp" in options.mesh.dim_names:
        options = options.in_stages("pp", schedule=schedule)
    compiled = compile_program(captured.program, options)
    if part:
        held = peak_rank_timeline(compiled.partitioned).peak_bytes
        options = replace(options, memory_bytes=int(held * part))
        middle = time.process_time()
        compiled = compile_program(captured.program, options)
    end = time.process_time()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"| {layers} | {parameters / 1e9:.1f} | {len(captured.program.main.ops):,} |"
        f" {max(len(each.main.ops) for each in compiled.deployment.programs):,} |"
        f" {middle - start:.1f} | {end - middle:.1f} | {memory:.2f} |",
        flush=True,
    )


def main() -> int:
    """Measures each depth in a process of its own, for its memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[80])
    parser.add_argument("--mesh", default="8x64")
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--rows", type=int, default=8, help="of a microbatch")
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--memory", type=float, default=0.0)
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        measure(
            options.layers[0],
            options.mesh,
            options.microbatches,
            options.rows,
            options.schedule,
            options.memory,
        )
        return 0
    columns = "layers | 10^9 parameters | ops | of a rank at most | capture, CPU s | passes, CPU s"
    print(f"| {columns} | memory, GB |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for layers in options.layers:
        row = [sys.executable, *sys.argv, "--layers", str(layers), "--row"]
        subprocess.run(row, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
