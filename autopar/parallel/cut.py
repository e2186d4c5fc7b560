"""Where the first variant of a module was cut into stages: later ones are cut there too.

Parameters lie where the first variant reads them. So an op of another one that reads parameters is
in the stage in which they are, and what is between such ops follows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from autopar.base.errors import Loc
from autopar.ir.program import Op, Program
from autopar.ir.stages import has_stages

Stages = frozenset[int]
Key = TypeVar("Key")


@dataclass(frozen=True)
class Cut:
    """The stages of a program.

    Attributes:
        parameters: In which each parameter is read, by name.
        places: In which there are ops of a kind and a line of the user's.
    """

    parameters: Mapping[str, Stages] = field(default_factory=dict)
    places: Mapping[tuple[str, Loc], Stages] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program) -> Cut:
        """Returns those of a program; none if it has no stages behind the first one."""
        if not has_stages(program.main):
            return cls()
        parameters: dict[str, set[int]] = defaultdict(set)
        places: dict[tuple[str, Loc], set[int]] = defaultdict(set)
        for op, read in _reading(program):
            places[op.kind, op.loc].add(op.stage)
            for name in read:
                parameters[name].add(op.stage)
        return cls(_frozen(parameters), _frozen(places))

    def applied(self, program: Program) -> Program:
        """Returns a program whose ops that read parameters are in the stages where these are.

        One in which the user has put ops into stages stays as it is.
        """
        if not self.parameters or has_stages(program.main):
            return program
        at: dict[str, int] = {}
        found: dict[tuple[str, ...], int] = {}
        for op, read in _reading(program):
            reached = max((at[name] for name in op.operands if name in at), default=0)
            stages = [self._of(op, name, reached) for name in read if name in self.parameters]
            found[op.results] = max(stages, default=0)
            at.update(dict.fromkeys(op.results, max(reached, found[op.results])))
        ops = tuple(replace(op, stage=found.get(op.results, 0)) for op in program.main.ops)
        return program.with_main(replace(program.main, ops=ops))

    def _of(self, op: Op, parameter: str, reached: int) -> int:
        """Returns the stage of an op that reads a parameter.

        Args:
            op: The op.
            parameter: The parameter.
            reached: The stage in which its other operands are.
        """
        stages = self.parameters[parameter]
        stages = stages & self.places.get((op.kind, op.loc), stages) or stages
        return min((stage for stage in stages if stage >= reached), default=max(stages))


def _reading(program: Program) -> Iterator[tuple[Op, set[str]]]:
    """Yields the forward ops, each with the parameters that it reads, or views of which."""
    main = program.main
    views = {name: name for name in main.inputs if main.values[name].role == "parameter"}
    for op in main.ops:
        if op.phase == "forward":
            if len(op.operands) == 1 and op.operands[0] in views:
                views.update(dict.fromkeys(op.results, views[op.operands[0]]))
            else:
                yield op, {views[name] for name in op.operands if name in views}


def _frozen(found: Mapping[Key, set[int]]) -> dict[Key, Stages]:
    return {key: frozenset(stages) for key, stages in found.items()}
