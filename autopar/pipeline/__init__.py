"""From a serial program to the programs of the ranks, and to a build folder.

options     what a user decides about a compilation
passes      the order of the passes
builds      what was compiled, written down; ONNX files
"""

from autopar.pipeline.builds import compile_onnx, write
from autopar.pipeline.options import NO_PRESETS, CompileOptions
from autopar.pipeline.passes import (
    PASSES,
    Compiled,
    Observer,
    compile_program,
    inherit,
    predicted,
    with_fastest_mesh,
)

__all__ = [
    "NO_PRESETS",
    "PASSES",
    "CompileOptions",
    "Compiled",
    "Observer",
    "compile_onnx",
    "compile_program",
    "inherit",
    "predicted",
    "with_fastest_mesh",
    "write",
]
