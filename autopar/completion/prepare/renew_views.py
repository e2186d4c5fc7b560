"""Renewed views: a view of a parameter is taken again in each phase that reads it.

Autograd hands views of parameters that the forward pass took on to the backward pass. Where the
parameter is gathered before the view, that would keep it alive in between. A view costs nothing.
What a loop puts together of its iterations is no view: it would take the whole loop again. Nor is
what is held for one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autopar.completion.prepare.common_subexpressions import is_move
from autopar.ir.ops.loops import HOLD, LEAVES
from autopar.ir.program import STORED_ROLES, Function, Lifetime, Op, Value


def renew_views(function: Function) -> Function:
    """Returns the function with views of what the program owns taken in every phase anew."""
    if len({op.lifetime for op in function.ops}) < 2:
        return function
    return _Renewal(function).renew()


@dataclass
class _Renewal:
    """The views of stored values and of what follows from them, and where they were taken again."""

    function: Function

    def __post_init__(self) -> None:
        self.values: dict[str, Value] = dict(self.function.values)
        self.views: dict[str, Op] = {}
        self.owned = {n for n, v in self.values.items() if v.role in STORED_ROLES}
        self.renewed: dict[tuple[str, Lifetime], str] = {}
        self.ops: list[Op] = []

    def renew(self) -> Function:
        for op in self.function.ops:
            names = [self._at(name, op.lifetime) for name in op.operands]
            self.ops.append(op.with_operands(names))
            if op.operands and self.owned.issuperset(op.operands):
                self.owned.update(op.results)
                if op.kind not in (*LEAVES, HOLD) and is_move(op, self.function):
                    self.views[op.results[0]] = op
        return replace(self.function, values=self.values, ops=tuple(self.ops))

    def _at(self, name: str, lifetime: Lifetime) -> str:
        """Returns the name of a value in a lifetime; takes the view again if it must."""
        view = self.views.get(name)
        if view is None or view.lifetime == lifetime or self.values[name].dist is not None:
            return name
        if (name, lifetime) not in self.renewed:
            fresh = self._fresh(f"{name}.{lifetime.phase}")
            self.renewed[name, lifetime] = fresh
            self.values[fresh] = replace(self.values[name], name=fresh)
            again = view.with_operands([self._at(view.operands[0], lifetime)])
            self.ops.append(replace(again, results=(fresh,), **lifetime._asdict()))
        return self.renewed[name, lifetime]

    def _fresh(self, hint: str) -> str:
        name, count = hint, 0
        while name in self.values:
            count += 1
            name = f"{hint}{count}"
        return name
