"""Searches plans of training steps without their weights, and prints what that takes.

    python benchmarks/search.py            every row
    python benchmarks/search.py gpt2 mlp   some

CPU seconds of capture, of all passes with a preset, and of a search, from the captured program to
the completed one; the bar of the search, which is the larger one of 5 and twice what the others
take; the most memory that the process had; how many times the predicted seconds of the plan are
those of a reference (`search_rows.Reference`); and what the report says of the plan. CPU seconds
are those of this machine: llama takes 6.9 where the bar of 5 was set. Older bars: gpt2 3, llama 8,
mlp 5, and on four axes mlp-4 6, gpt2-4 10 and gpt2-8 30; 1 GB each.

    python benchmarks/search.py --effort 10 unet      with ten times the work

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

from search_rows import ROWS

if TYPE_CHECKING:
    from autopar.ir.mesh import ProcessMesh

HOSTS_OF_8 = "h100x{hosts}"

LEAST_BAR = 5.0
"""CPU seconds that any search may take."""


def captured(name: str) -> Any:
    """Returns the serial program of a training step."""
    import torch

    from autopar.frontend.torch import Recipe, capture

    module, batch, loss = ROWS[name].training()
    recipe = Recipe(loss=loss, optimizer=torch.optim.AdamW(module.parameters()))
    return capture(module, batch, recipe).program


def measure_shapes(name: str, devices: int, *, scratch: bool) -> None:
    """Prints what searching the shape of a mesh takes, against searching from scratch."""
    from autopar.annotate import apply_mesh
    from autopar.completion import Complete
    from autopar.cost import Cluster
    from autopar.planning.mesh_shape import fastest_shape, mesh_shapes, remark

    program = captured(name)
    cluster = Cluster.load(HOSTS_OF_8.format(hosts=-(-devices // 8)))

    def taken(meshes: Iterable[ProcessMesh]) -> float:
        start = time.process_time()
        for mesh in meshes:
            Complete(cluster, "auto").plan(apply_mesh(program, mesh))
        return time.process_time() - start

    start = time.process_time()
    shapes = fastest_shape(program, devices, cluster).shapes
    seconds = time.process_time() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    against = f"{seconds / taken([shapes[0].mesh]):.1f} times the best shape alone"
    if scratch:
        against += f", {seconds / taken(mesh_shapes(devices)):.2f} times every shape from scratch"
    detail = remark(shapes).detail
    taken_up = f"{seconds:.1f} CPU s, {memory:.2f} GB"
    print(f"{name}, {devices} devices: {taken_up}, {against}; {detail}", flush=True)


def measure(name: str, effort: float) -> None:
    """Prints a row of the table."""
    from autopar.annotate import apply_mesh, parse_mesh
    from autopar.completion import Complete
    from autopar.completion.search.watch import Watch
    from autopar.cost import Cluster
    from autopar.pipeline import CompileOptions, compile_program

    row, start = ROWS[name], time.process_time()
    serial = captured(name)
    captured_at = time.process_time()
    options = CompileOptions.from_text(mesh=row.mesh, strategy="data", cluster=row.cluster)
    compile_program(serial, options)
    passed_at = time.process_time()
    complete = Complete(Cluster.load(row.cluster), "auto", watch=Watch(effort=effort))
    forecast = complete.plan(apply_mesh(serial, parse_mesh(row.mesh))).forecast
    seconds = time.process_time() - passed_at
    assert forecast is not None
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    bar = max(LEAST_BAR, 2 * (passed_at - start))
    print(
        f"| {name} | {row.mesh}, {row.cluster} | {len(serial.main.ops):,} |"
        f" {captured_at - start:.1f} | {passed_at - captured_at:.1f} | {seconds:.1f} | {bar:.1f} |"
        f" {memory:.2f} | {forecast.seconds / row.reference.seconds:.4f} |"
        f" {forecast.remark().detail} |",
        flush=True,
    )


def main() -> int:
    """Measures each program in a process of its own, for its memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=[*ROWS])
    parser.add_argument("--devices", type=int, help="search the shape of a mesh")
    parser.add_argument("--scratch", action="store_true", help="and every shape from scratch")
    parser.add_argument("--effort", type=float, default=1.0, help="see `autopar compile`")
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        measure(options.names[0], options.effort)
        return 0
    if options.devices:
        for name in options.names:
            measure_shapes(name, options.devices, scratch=options.scratch)
        return 0
    print("| program | on | ops | capture | passes | search | bar | GB | reference | plan |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name in options.names:
        command = [sys.executable, __file__, name, "--row", "--effort", str(options.effort)]
        subprocess.run(command, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
