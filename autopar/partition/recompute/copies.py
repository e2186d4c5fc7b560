"""Writes a replay into a function: copies and transfers become ops and values of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autopar.ir import emitted
from autopar.ir.emitted import Emitted
from autopar.ir.layout import Origin
from autopar.ir.memory.transfers import PLAN
from autopar.ir.program import Function, Op, OpDist, Value
from autopar.partition.recompute.replay import Step, ValueCopy
from autopar.partition.recompute.tape import Tape

AGAIN = "computed again for the backward pass"
AWAY = "in the host's memory until the backward pass"
BACK = "back from the host's memory"


def write_copies(tape: Tape, steps: Sequence[Step]) -> Function:
    """Returns the function that runs these steps."""
    ops, values = written(tape, steps)
    return replace(tape.function, ops=tuple(op for each in ops for op in each), values=values)


def written(tape: Tape, steps: Sequence[Step]) -> tuple[list[list[Op]], dict[str, Value]]:
    """Returns the ops of each step, and all values."""
    writer = _Writer(tape)
    return [writer.written(step) for step in steps], writer.values


class _Writer:
    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.values = dict(tape.function.values)
        self.names: dict[ValueCopy, str] = {}
        self.away: dict[int, str] = {}
        self.ops: list[Op] = []

    def written(self, step: Step) -> list[Op]:
        """Returns the ops of the next step."""
        self.ops = []
        if step.moves < 0:
            self._compute(step)
        elif step.makes:
            self._reload(step)
        else:
            self._offload(step)
        return self.ops

    def _compute(self, step: Step) -> None:
        op = self.tape.ops[step.op]
        if step.copy >= 0:
            again = self.tape.again[step.op]
            assert again is not None
            results = [self._fresh(held[0], "again", AGAIN) for held in step.makes]
            self.names.update(zip(step.makes, results, strict=True))
            op = replace(again, results=tuple(results), microbatch=step.batch)
        given = (self.tape.reads if step.copy < 0 else self.tape.again_reads)[step.op]
        read = {
            self.tape.names[value]: self._name(held)
            for value, held in zip(given, step.reads, strict=True)
        }
        self.ops.append(op.with_operands([read[name] for name in op.operands]))

    def _offload(self, step: Step) -> None:
        value = self.tape.names[step.moves]
        sent = self._fresh(step.moves, "sent", AWAY, "host")
        host = self._fresh(step.moves, "host", AWAY, "host")
        self._transfer(step, emitted.offload().with_operand(value), sent, "forward")
        self._transfer(step, emitted.end_offload(value).with_operand(sent), host, "forward")
        self.away[step.moves] = host

    def _reload(self, step: Step) -> None:
        coming = self._fresh(step.moves, "coming", BACK)
        back = self._fresh(step.moves, "back", BACK)
        host = self.away[step.moves]
        self._transfer(step, emitted.reload().with_operand(host), coming, "backward")
        self._transfer(step, emitted.end_reload().with_operand(coming), back, "backward")
        self.names[step.makes[0]] = back

    def _transfer(self, step: Step, transfer: Emitted, result: str, phase: str) -> None:
        maker = self.tape.ops[step.op]
        op = Op(
            *transfer,
            (result,),
            None if maker.dist is None else OpDist(maker.dist.mesh),
            Origin("chosen", f"%{self.tape.names[step.moves]}, {AWAY}"),
            maker.loc,
            maker.stage,
            maker.microbatch,
            phase,
            ((PLAN, self.tape.names[step.moves]),),
        )
        self.ops.append(op)

    def _name(self, held: ValueCopy) -> str:
        """Returns the name of a copy; a value that isn't copied is read as it is."""
        return self.names.get(held, self.tape.names[held[0]])

    def _fresh(self, value: int, ending: str, why: str, memory: str = "") -> str:
        """Adds a value like another one, and returns its name."""
        like = self.values[self.tape.names[value]]
        name, count = f"{like.name}.{ending}", 1
        while name in self.values:
            count += 1
            name = f"{like.name}.{ending}{count}"
        made: Value = replace(
            like, name=name, role="activation", origin=Origin("chosen", f"%{like.name}, {why}")
        )
        if memory and like.dist is not None:
            made = replace(made, dist=replace(like.dist, offload=memory))
        self.values[name] = made
        return name
