"""Stages: from what the user put into stages to the stage of every op of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autopar.base.errors import AnnotationError, near_misses
from autopar.ir.ops.shape.view import FREE
from autopar.ir.program import Function, Op, Program


def apply_stages(program: Program, axis: str) -> Program:
    """Returns a program whose ops are in the stages of a pipeline, but for updates.

    * A forward op is in the stage that it was put into, or a later one if an operand is made there.
    * What only rearranges inputs, or makes constants, is where it is read first.
    * A backward op is in the stage of the forward op whose gradient it computes. Sums of gradients
      are in the first stage of those.

    Args:
        program: A serial program with a mesh.
        axis: The mesh axis along which stages lie; "" for no pipeline: then nothing changes.

    Raises:
        AnnotationError: If the mesh has no such axis, or nothing is put into a stage behind the
            first one.
    """
    if not axis:
        return program
    assert program.mesh is not None
    known = program.mesh.dim_names
    if axis not in known:
        raise AnnotationError(
            f"pipeline={axis!r}: the mesh has no such axis{near_misses(axis, known)}; its axes are"
            f" {', '.join(known)}"
        )
    main = program.main
    if not any(op.stage for op in main.ops):
        raise AnnotationError(
            f"pipeline={axis!r}: nothing is in a stage behind the first one; put parts of the model"
            " into stages, by `with annotate.pipeline_stage(1):` in its forward"
        )
    stages = _Stages(main)
    ops = tuple(replace(op, stage=stages.of_op(op)) for op in main.ops)
    return program.with_main(replace(main, ops=ops))


class _Stages:
    """The stages in which values are made, of the forward pass and then of the backward pass."""

    def __init__(self, main: Function) -> None:
        self._forward: dict[str, int] = {}
        self._backward: dict[str, int] = {}
        self._late: set[str] = set()
        forward = [op for op in main.ops if op.phase == "forward"]
        for op in forward:
            self._forward.update(dict.fromkeys(op.results, max(self._of_operands(op), op.stage)))
            if self._is_prepared(op):
                self._late.update(op.results)
        for op in main.ops:
            if op.phase == "backward":
                self._backward.update(dict.fromkeys(op.results, self._of_backward(op)))
        self._move_to_readers([op for op in main.ops if op.phase != "update"])

    def of_op(self, op: Op) -> int:
        """Returns the stage of an op; 0 of an update, which runs where its parameter is."""
        made = self._forward if op.phase == "forward" else self._backward
        return made.get(op.results[0], 0) if op.results else 0

    def _of_operands(self, op: Op) -> int:
        return max(
            (self._forward[name] for name in op.operands if name in self._forward), default=0
        )

    def _is_prepared(self, op: Op) -> bool:
        """Returns whether an op only rearranges inputs, or what is made of nothing."""
        free = not op.operands or op.kind in FREE
        return free and all(n not in self._forward or n in self._late for n in op.operands)

    def _move_to_readers(self, ops: list[Op]) -> None:
        read: dict[str, int] = {}
        for op in reversed(ops):
            for name in self._late.intersection(op.results):
                self._forward[name] = read.get(name, op.stage)
            stage = self.of_op(op)
            for name in op.operands:
                read[name] = min(read.get(name, stage), stage)

    def _of_backward(self, op: Op) -> int:
        if op.stage:
            return op.stage
        read = list(self._read_of_forward(op))
        if read:
            return max(read)
        gradients = (self._backward[name] for name in op.operands if name in self._backward)
        return min(gradients, default=0)

    def _read_of_forward(self, op: Op) -> Iterator[int]:
        for name in op.operands:
            if name in self._forward and name not in self._late:
                yield self._forward[name]
