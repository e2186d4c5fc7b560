"""Through which packages a program goes from a file to what ranks run: as a tree of calls.

    python benchmarks/package_path.py minilm.onnx --dims batch_size=8,sequence_length=16

Each line is a package that the one above calls, with how often. `ir`, `cost` and `base` serve all
and don't count, nor do observers between passes. A package below itself is entered again from what
it called: the tool then ends with 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType

from autopar.base.package import PACKAGE

SERVING = ("ir", "cost", "base", "version")
"""Packages that all others use."""

OBSERVERS = ("seen", "_verify")
"""Functions that are called back between passes, to look at a program."""


@dataclass
class Entered:
    """A package as another one calls it.

    Attributes:
        name: The package.
        calls: How often.
        inside: What it calls in turn, by name.
    """

    name: str
    calls: int = 0
    inside: dict[str, Entered] = field(default_factory=dict)

    def lines(self, depth: int = 0) -> Iterator[str]:
        """Yields the tree as text."""
        for each in self.inside.values():
            yield f"{'  ' * depth}{each.name:<{24 - 2 * depth}}{each.calls:>8,}"
            yield from each.lines(depth + 1)

    def again(self, above: tuple[str, ...] = ()) -> Iterator[str]:
        """Yields the paths on which a package is entered again from what it called."""
        for each in self.inside.values():
            if each.name in above:
                yield " -> ".join((*above, each.name))
            yield from each.again((*above, each.name))


class Tracer:
    """Follows calls between packages, as a profile function of Python.

    Attributes:
        root: What is called from outside.
    """

    def __init__(self) -> None:
        self.root = Entered("")
        self._path = [self.root]
        self._stack: list[bool] = []
        self._prefix = str(PACKAGE) + os.sep

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Notes a call or a return."""
        if event == "call":
            code = frame.f_code
            name = "" if code.co_name in OBSERVERS else self._package(code.co_filename)
            entered = bool(name) and name != self._path[-1].name
            self._stack.append(entered)
            if entered:
                inside = self._path[-1].inside
                package = inside.setdefault(name, Entered(name))
                package.calls += 1
                self._path.append(package)
        elif event == "return" and self._stack and self._stack.pop():
            self._path.pop()

    def _package(self, file: str) -> str:
        """Returns the package of a source file; "" of those that don't count."""
        if not file.startswith(self._prefix):
            return ""
        name = file.removeprefix(self._prefix).partition(os.sep)[0].removesuffix(".py")
        return "" if name in SERVING or name == "__init__" else name


def main() -> None:
    """Compiles a model, and prints the tree."""
    from autopar.cli.sizes import parse_dims
    from autopar.frontend.onnx import import_onnx
    from autopar.pipeline import CompileOptions, compile_program

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="an ONNX file, such as examples/minilm.py --print-model")
    parser.add_argument("--mesh", default="2x4")
    parser.add_argument("--dims", action="append", default=[], help="NAME=SIZE,...")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--memory", default=None)
    given = parser.parse_args()
    options = CompileOptions.from_arguments(
        mesh=given.mesh, strategy=given.strategy, memory=given.memory
    )
    tracer = Tracer()
    sys.setprofile(tracer)
    imported = import_onnx(given.model, dims=parse_dims(given.dims))
    compile_program(imported.program, options)
    sys.setprofile(None)
    print("\n".join(tracer.root.lines()))
    again = list(tracer.root.again())
    print(*(f"entered again: {path}" for path in again), sep="\n")
    sys.exit(bool(again))


if __name__ == "__main__":
    main()
