"""From a serial program to the programs of the ranks, and to a build folder.

arguments   what a user may say of a compilation
options     what a user decides about it, understood and checked
recorded    the same, as a build remembers it
passes      the order of the passes
builds      what was compiled, written down; ONNX files
"""

from autopar.pipeline.arguments import CompileArguments
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
from autopar.pipeline.recorded import recorded_options

__all__ = [
    "NO_PRESETS",
    "PASSES",
    "CompileArguments",
    "CompileOptions",
    "Compiled",
    "Observer",
    "compile_onnx",
    "compile_program",
    "inherit",
    "predicted",
    "recorded_options",
    "with_fastest_mesh",
    "write",
]
