"""Sums over iterations of what several stages add to: each stage sums up its own.

Each stage that reads a tied parameter makes a part of its gradient. Were those added in every
microbatch, one would be sent in each; added behind the last one, it is sent once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autopar.ir import emitted
from autopar.ir.ops.loops import REDUCE
from autopar.ir.program import Function, Op, Value

_ADD = emitted.combine("sum", "", "f32").kind


def sums_apart(main: Function) -> Function:
    """Returns a serial function in which stages add up what they have of a sum.

    Args:
        main: The function, whose ops are in stages.
    """
    apart = _Apart(main)
    ops = [new for op in main.ops for new in apart.instead_of(op)]
    kept = tuple(op for op in ops if op.results not in apart.gone)
    values = {**main.values, **apart.values}
    for results in apart.gone:
        del values[results[0]]
    return replace(main, ops=kept, values=values)


class _Apart:
    """Takes sums of one function apart.

    Attributes:
        values: Those that are new.
        gone: The results of ops that nobody needs any more.
    """

    def __init__(self, main: Function) -> None:
        self._main, self._producers, self._readers = main, main.producers(), main.consumers()
        self.values: dict[str, Value] = {}
        self.gone: set[tuple[str, ...]] = set()

    def instead_of(self, op: Op) -> Iterator[Op]:
        """Yields what takes the place of an op."""
        is_sum = op.kind == REDUCE and op.arg("monoid") == "sum"
        added = self._producers.get(op.operands[0]) if is_sum else None
        if added is None or not self._is_split(op, added):
            yield op
            return
        self.gone.add(added.results)
        sums = [self._fresh(f"{name}.sum") for name in added.operands]
        for name, total in zip(added.operands, sums, strict=True):
            self.values[total] = replace(self._value(op.results[0]), name=total)
            one = replace(op.with_operands((name,)), results=(total,))
            yield from self.instead_of(replace(one, stage=self._stage(name)))
        yield replace(
            added.with_operands(sums), results=op.results, loops=op.loops[:-1], stage=op.stage
        )

    def _is_split(self, op: Op, added: Op) -> bool:
        """Returns whether what is summed up is a sum of what two stages make, and nothing else."""
        operands = added.operands
        if added.kind != _ADD or added.arg("alpha", 1) != 1 or len(set(operands)) != 2:
            return False
        (result,) = added.results
        values = map(self._value, (*operands, *op.results))
        alike = {(value.dtype, value.shape) for value in values}
        return (
            len(alike) == 1
            and len(self._readers[result]) == 1
            and result not in self._main.outputs
            and all(self._producers.get(name) is not None for name in operands)
            and all(self._producers[name].loops == op.loops for name in operands)
            and len(set(map(self._stage, operands))) == 2
        )

    def _fresh(self, name: str) -> str:
        while name in self.values or name in self._main.values:
            name += "_"
        return name

    def _value(self, name: str) -> Value:
        return self.values.get(name) or self._main.values[name]

    def _stage(self, name: str) -> int:
        return self._producers[name].stage
