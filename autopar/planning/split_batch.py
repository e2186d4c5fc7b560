"""Split batch: a program whose batch passes through it in microbatches, one after another.

Time is taken for a mesh of one axis, whose coordinate is the microbatch. The preset `data` says how
a batch is split along an axis, and partition what that means; done one after another (`unroll`) it
is a program for one device again, which is planned as any other. What can't be split along the
batch is computed once, as soon as all microbatches have come so far.
"""

from __future__ import annotations

from dataclasses import replace

from autopar.base.errors import AnnotationError, InvalidInputError
from autopar.completion import Legalize
from autopar.completion.complete import NO_BATCH, SINGLE, propagated
from autopar.completion.legalize import DEFAULT_CLUSTER
from autopar.completion.presets.batch import batch_inputs, single_inputs
from autopar.completion.problem.problem import Problem
from autopar.cost import Cluster
from autopar.ir.dims import SubDim, block_size, dim_size
from autopar.ir.expr.expression import IntExpr, planned
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Function, Program, Value
from autopar.partition import Partition
from autopar.partition.unroll import Unrolled, unroll

TIME = "time"
"""The axis whose coordinates are microbatches."""

STRATEGY = f"data:{TIME}"


def split_batch(program: Program, microbatches: int) -> Program:
    """Returns a program that takes its batch in microbatches; an empty one is left out.

    Args:
        program: A serial program without updates: of inference, or of a module and its gradients.
        microbatches: Their number.

    Raises:
        InvalidInputError: If it has no batch to be split, or is a training step.
    """
    if any(op.phase == "update" for op in program.main.ops):
        raise InvalidInputError(
            f"microbatches={microbatches} is for inference; in training, accumulate= says into how"
            " many microbatches a batch is cut"
        )
    bare = _alone(program)
    parts = _needed(bare, microbatches)
    problem = _problem(bare, parts)
    legalize = Legalize(problem.cluster, problem.planner)
    completed = legalize(propagated(problem, STRATEGY).program)
    whole = completed.with_main(_whole(completed.main, problem.mesh))
    ranks = Partition(problem.cluster, problem.planner)(whole)
    done = unroll(ranks.main, problem.mesh)
    return program.with_main(_with_pins(done, program.main))


def has_batch(program: Program) -> bool:
    """Returns whether anything of a program is a batch that may be split; one row isn't."""
    (way, *_) = _problem(_alone(program), 2).ways
    return bool(batch_inputs(way.graph))


def _alone(program: Program) -> Program:
    """Returns a program for one device, without pins."""
    return replace(program, mesh=None).with_main(_bare(program.main))


def _problem(program: Program, parts: int) -> Problem:
    time = ProcessMesh.of_shape((parts,), (TIME,))
    return Problem.from_program(replace(program, mesh=time), Cluster.load(DEFAULT_CLUSTER))


def _needed(program: Program, microbatches: int) -> int:
    """Returns how many microbatches have something of a batch.

    Raises:
        InvalidInputError: If nothing of the program is a batch, or an open one isn't planned for as
            many rows.
    """
    (way, *_) = _problem(program, microbatches).ways
    batches = batch_inputs(way.graph)
    if not batches:
        single = single_inputs(way.graph)
        why = f"{', '.join(single)}: {SINGLE}" if single else NO_BATCH
        raise InvalidInputError(f"microbatches={microbatches}: {why}; or leave microbatches out")
    for value, stretch in batches.items():
        rows = planned(stretch.size)
        if not isinstance(stretch.size, int) and rows < microbatches:
            raise InvalidInputError(
                f"microbatches={microbatches}: {way.graph.values[value].name} is planned for {rows}"
                " rows, which are fewer; give fewer microbatches, or plan for more rows"
            )
    return max(_count(stretch.size, microbatches) for stretch in batches.values())


def _count(size: IntExpr, parts: int) -> int:
    """Returns into how many blocks a dimension is cut that have anything."""
    block = block_size(size, parts)
    if not isinstance(size, int) or not isinstance(block, int):
        return parts
    return block_size(size, block) if block else 1


def _bare(main: Function) -> Function:
    """Returns a function without pins."""
    values = {name: replace(value, dist=None, origin=None) for name, value in main.values.items()}
    ops = tuple(replace(op, dist=None, origin=None) for op in main.ops)
    return replace(main, values=values, ops=ops)


def _whole(main: Function, time: ProcessMesh) -> Function:
    """Returns a completed function whose inputs and outputs are there as a whole."""
    values = dict(main.values)
    for name in (*main.inputs, *main.outputs):
        layout = Layout.replicated(time, values[name].global_shape)
        values[name] = replace(values[name], dist=layout.normalized())
    return replace(main, values=values)


def _with_pins(done: Unrolled, main: Function) -> Function:
    """Returns an unrolled function in which values are pinned, in every microbatch, as before."""
    values = dict(done.function.values)
    for name, value in main.values.items():
        if value.dist is not None:
            for part in done.parts.get(name, (name,)):
                values[part] = _pinned(values[part], value, value.dist)
    return replace(done.function, values=values)


def _pinned(part: Value, value: Value, layout: Layout) -> Value:
    """Returns a part of a value, laid out as that.

    Raises:
        AnnotationError: If a dimension that is cut is pinned in sub-dimensions.
    """
    dims = []
    for dim, size in zip(layout.dims, part.shape, strict=True):
        if dim_size(dim) != size and len(dim) > 1:
            raise AnnotationError(
                f"{value.loc}: %{value.name} is pinned within a dimension that microbatches cut;"
                " pin the dimension as a whole, or leave microbatches out"
            )
        dims.append(dim if dim_size(dim) == size else (SubDim(size, dim[0].axes),))
    return replace(part, dist=replace(layout, dims=tuple(dims)), origin=value.origin)
