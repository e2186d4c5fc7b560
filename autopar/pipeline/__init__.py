"""From a serial program to the programs of the ranks, and to a build folder.

arguments     what a user may say of a compilation
options       what a user decides about it, understood and checked
loss_outside  which schedules a pipeline can have whose loss is outside of the program
recorded      the same, as a build remembers it
annotated     what the user says of a program, written into it
passes        the order of the passes
fastest_...   schedules, and widths of stages, where the user leaves them open
decided       what a compilation decided and made of it
builds        what was compiled, written down
"""

from autopar.pipeline.arguments import DEFAULTS, CompileArguments
from autopar.pipeline.builds import write
from autopar.pipeline.decided import Compiled, Decided
from autopar.pipeline.loss_outside import check_loss_outside
from autopar.pipeline.options import NO_PRESETS, CompileOptions
from autopar.pipeline.passes import PASSES, compile_program, fastest_mesh, inherit
from autopar.pipeline.recorded import recorded_options
from autopar.planning.lowering import Observer
from autopar.planning.split_batch import has_batch

__all__ = [
    "DEFAULTS",
    "NO_PRESETS",
    "PASSES",
    "CompileArguments",
    "CompileOptions",
    "Compiled",
    "Decided",
    "Observer",
    "check_loss_outside",
    "compile_program",
    "fastest_mesh",
    "has_batch",
    "inherit",
    "recorded_options",
    "write",
]
