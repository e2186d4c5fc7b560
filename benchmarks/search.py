"""Searches plans of training steps without their weights, and prints what that takes.

    python benchmarks/search.py            every row
    python benchmarks/search.py gpt2 mlp   some

CPU seconds from the captured program to the completed one, on the H100 profile; the most memory
that the process had, capture included; and what the report says of the plan. The bars, in CPU
seconds: gpt2 3, llama 8, mlp 5, and on four axes mlp-4 6, gpt2-4 10 and gpt2-8 30; 1 GB each.

    python benchmarks/search.py --devices 64 gpt2             meshes of all shapes
    python benchmarks/search.py --devices 12 --scratch mlp    and each by itself

prints in the same way what searching the shape of a mesh takes, on hosts of 8, and how many times
that is of what completing on the best shape takes, or on every shape, each from scratch.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autopar.ir.mesh import ProcessMesh

ROWS = {
    "gpt2": "32x8",
    "llama": "32x8",
    "t5": "2x4",
    "bert": "2x4",
    "mlp": "8x8x4",
    "mlp-4": "4x4x4x4",
    "gpt2-4": "4x4x4x4",
    "gpt2-8": "8x8x2x2",
}
CLUSTER = "h100"
HOSTS_OF_8 = "h100x{hosts}"


def model(name: str) -> tuple[Any, Any, Any]:
    """Returns a model on the meta device, a batch, and a loss (None: the model has it)."""
    import torch
    from language_models import LLAMA_8B, bert, gpt2, llama, t5, tokens
    from torch import nn
    from torch.nn import functional

    with torch.device("meta"):
        if name.startswith("mlp"):
            blocks = [nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))] * 2
            x = torch.zeros(1024, 1024)
            return nn.Sequential(*blocks).train(), (x, x), functional.mse_loss
        if name.startswith("gpt2"):
            return gpt2(), tokens(256, 1024), None
        if name in ("bert", "t5"):
            return bert() if name == "bert" else t5(), tokens(32, 512), None
        return llama(LLAMA_8B), tokens(256, 4096), None


def captured(name: str) -> Any:
    """Returns the serial program of a training step."""
    import torch

    from autopar.frontend.torch import Recipe, capture

    module, batch, loss = model(name)
    recipe = Recipe(loss=loss, optimizer=torch.optim.AdamW(module.parameters()))
    return capture(module, batch, recipe).program


def measure_shapes(name: str, devices: int, *, scratch: bool) -> None:
    """Prints what searching the shape of a mesh takes, against searching from scratch."""
    from autopar.annotate import apply_mesh
    from autopar.completion import Complete
    from autopar.cost import Cluster
    from autopar.planning.mesh_shape import fastest_shape, mesh_shapes, remark

    program = captured(name)
    complete = Complete(Cluster.load(HOSTS_OF_8.format(hosts=-(-devices // 8))), "auto")

    def taken(meshes: Iterable[ProcessMesh]) -> float:
        start = time.process_time()
        for mesh in meshes:
            complete.decide(apply_mesh(program, mesh))
        return time.process_time() - start

    start = time.process_time()
    shapes = fastest_shape(program, devices, complete).shapes
    seconds = time.process_time() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    against = f"{seconds / taken([shapes[0].mesh]):.1f} times the best shape alone"
    if scratch:
        against += f", {seconds / taken(mesh_shapes(devices)):.2f} times every shape from scratch"
    detail = remark(shapes).detail
    taken_up = f"{seconds:.1f} CPU s, {memory:.2f} GB"
    print(f"{name}, {devices} devices: {taken_up}, {against}; {detail}", flush=True)


def measure(name: str) -> None:
    """Prints a row of the table."""
    from autopar.annotate import apply_mesh, parse_mesh
    from autopar.completion import Complete
    from autopar.cost import Cluster

    program = apply_mesh(captured(name), parse_mesh(ROWS[name]))
    cluster = Cluster.load(CLUSTER)
    start = time.process_time()
    forecast = Complete(cluster, "auto").decide(program).forecast
    seconds = time.process_time() - start
    assert forecast is not None
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"| {name} | {ROWS[name]} | {len(program.main.ops):,} | {seconds:.1f} | {memory:.2f} |"
        f" {forecast.remark().detail} |",
        flush=True,
    )


def main() -> int:
    """Measures each program in a process of its own, for its memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=[*ROWS])
    parser.add_argument("--devices", type=int, help="search the shape of a mesh")
    parser.add_argument("--scratch", action="store_true", help="and every shape from scratch")
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        measure(options.names[0])
        return 0
    if options.devices:
        for name in options.names:
            measure_shapes(name, options.devices, scratch=options.scratch)
        return 0
    print("| program | mesh | ops | search, CPU s | memory, GB | plan |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for name in options.names:
        subprocess.run([sys.executable, __file__, name, "--row"], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
