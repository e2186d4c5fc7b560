"""CPU seconds and memory of importing, and of compiling, ONNX models of many nodes.

    PYTHONPATH=. python benchmarks/import_time.py
    PYTHONPATH=. python benchmarks/import_time.py --compile --nodes 20000

Graphs of several shapes, in each of which something else could take quadratic time: a chain, layers
with weights, many readers of one value, a weight per node, an output per node, constants among the
nodes, views, a function per node, branches. Each is imported in a process of its own, behind a
small one that loads all modules. A last column has the seconds of the most nodes, relative to the
fewest, per node: 1 is linear. With `--compile` all of what `autopar compile --mesh 2` does is
measured, with the strategy `none` and as search decides.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from autopar.cli import main as autopar
from autopar.frontend.onnx import import_onnx
from tests.frontend.onnx.many_nodes import MAKERS, chain

NODES = (2_000, 5_000, 10_000, 20_000)
STRATEGIES = ("none", "auto")
FEW = 3


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--shapes", nargs="+", choices=MAKERS, default=list(MAKERS))
    parser.add_argument("--compile", action="store_true", help="and all that follows the import")
    parser.add_argument("--measure", nargs=2, metavar=("FILE", "DOES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(_measured(Path(options.measure[0]), options.measure[1])))
        return
    print(
        f"{'shape':10}{'does':16}" + "".join(f"{count:>20}" for count in options.nodes) + " ratio"
    )
    for shape in options.shapes:
        for does in STRATEGIES if options.compile else ("import",):
            _row(shape, does, options.nodes)


def _row(shape: str, does: str, nodes: list[int]) -> None:
    print(f"{shape:10}{does:16}", end="", flush=True)
    found = []
    for count in nodes:
        seconds, size = _apart(shape, does, count)
        found.append(seconds / count)
        print(f"{seconds:7.1f} s {size >> 20:6} MiB", end="", flush=True)
    print(f" {found[-1] / found[0]:5.2f}")


def _apart(shape: str, does: str, count: int) -> tuple[float, int]:
    """Returns the CPU seconds and the bytes at the peak, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(MAKERS[shape](count).SerializeToString())
        command = [sys.executable, __file__, "--measure", str(path), does]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, size = json.loads(done.stdout.splitlines()[-1])
    return seconds, size


def _measured(path: Path, does: str) -> tuple[float, int]:
    small = path.with_name("small.onnx")
    small.write_bytes(chain(FEW).SerializeToString())
    _do(small, does)
    start = time.process_time()
    _do(path, does)
    seconds = time.process_time() - start
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _do(path: Path, does: str) -> None:
    if does == "import":
        import_onnx(path)
        return
    build = str(path.with_name("build"))
    words = ["compile", str(path), "--mesh", "2", "--strategy", does, "-q", "-o", build]
    autopar.main(words, standalone_mode=False)


if __name__ == "__main__":
    main()
