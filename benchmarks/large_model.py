"""Compiles a training step of Llama-70B without its weights, and prints what that takes.

    python benchmarks/large_model.py                    80 layers for 8x64
    python benchmarks/large_model.py --layers 12 24 48  how it grows

CPU seconds of the capture and of all passes, and the most memory that the process had.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

SEQUENCE, BATCH = 4096, 8


def measure(layers: int, mesh: str) -> None:
    """Prints a row of the table."""
    import torch
    from language_models import LLAMA_70B, llama, tokens

    from autopar.frontend.torch import Recipe, capture
    from autopar.pipeline import CompileOptions, compile_program

    with torch.device("meta"):
        model = llama({**LLAMA_70B, "num_hidden_layers": layers})
    parameters = sum(parameter.numel() for parameter in model.parameters())
    recipe = Recipe(optimizer=torch.optim.AdamW(model.parameters()), clip_grad_norm=1.0)
    start = time.process_time()
    captured = capture(model, tokens(BATCH, SEQUENCE), recipe)
    middle = time.process_time()
    compile_program(captured.program, CompileOptions.from_text(mesh=mesh))
    end = time.process_time()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"| {layers} | {parameters / 1e9:.1f} | {len(captured.program.main.ops):,} |"
        f" {middle - start:.1f} | {end - middle:.1f} | {memory:.2f} |",
        flush=True,
    )


def main() -> int:
    """Measures each depth in a process of its own, for its memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[80])
    parser.add_argument("--mesh", default="8x64")
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        measure(options.layers[0], options.mesh)
        return 0
    print("| layers | 10^9 parameters | ops | capture, CPU s | passes, CPU s | memory, GB |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for layers in options.layers:
        row = [sys.executable, __file__, "--layers", str(layers), "--mesh", options.mesh, "--row"]
        subprocess.run(row, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
