"""What users say of a program, written into it: the first pass, before anything is decided."""

from __future__ import annotations

from autopar.annotate import (
    apply_activations,
    apply_mesh,
    apply_op_pins,
    apply_pins,
    apply_stages,
    refuse_unexecuted,
)
from autopar.completion.prepare.split_fused_weights import split_fused_weights
from autopar.ir.program import Program
from autopar.ir.stages import has_stages
from autopar.pipeline.options import CompileOptions
from autopar.planning.chunk import Chunks, in_chunks
from autopar.planning.chunk.late import in_backward_pass
from autopar.planning.cut import cut_into_stages
from autopar.planning.split_batch import split_batch


def annotated(program: Program, options: CompileOptions) -> tuple[Program, Chunks]:
    """Returns a program with its mesh and all that the user pinned, and what is cut of it.

    Args:
        program: The serial program.
        options: What the user decided.

    Raises:
        AnnotationError: If pins contradict the program or one another, or ask for what isn't
            carried out yet.
    """
    program, chunks = _in_chunks(program, options)
    if options.pipeline in options.mesh.dim_names and not has_stages(program.main):
        program = cut_into_stages(
            program, options.pipeline, options.schedule, options.cluster, options.widths
        )
    program = apply_stages(program, options.pipeline, len(options.widths))
    # A plan names the ops, sums of several stages among them, that there are in stages.
    if options.pins:
        program = apply_pins(program, options.mesh, options.pins)
    program = apply_op_pins(program, options.op_pins)
    refuse_unexecuted(program, options.pipeline)
    return program, chunks


def uncut(program: Program, options: CompileOptions) -> Program:
    """Returns a program with its mesh, and all that is decided before it is cut into stages."""
    return _in_chunks(program, options)[0]


def _in_chunks(program: Program, options: CompileOptions) -> tuple[Program, Chunks]:
    """Returns the same, and what is cut of it into parts that are computed one after another."""
    program = apply_mesh(program, options.mesh)
    if options.microbatches > 1:
        program = split_batch(program, options.microbatches)
    chunks = in_chunks(program, options.chunks or (), phases_apart=options.phases_apart)
    program = chunks.program
    if options.pipeline:
        program = in_backward_pass(program)
    if options.apart:
        program = split_fused_weights(program)
    return apply_activations(program, options.activations), chunks
