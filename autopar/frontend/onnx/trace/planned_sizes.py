"""Open sizes of a model: what nodes do by them is as for the sizes that plans are made for.

Where a node asks for more than is known of sizes, as whether a window fits, they are narrowed from
below to those for which the answer is the same, which the report says. Sizes are never narrowed
from above in that way, nor where the user gave a range: then the node is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import sympy
import torch

from autopar.base.errors import Loc
from autopar.frontend.lower.asking import AskingEnv
from autopar.frontend.lower.open_sizes import LIMITS, OpenSizes, conjuncts
from autopar.frontend.onnx.trace.node import Node
from autopar.ir.builds.manifest import NARROWED, ReportEntry
from autopar.ir.expr.expression import UNBOUNDED, IntExpr, Size


class PlannedSizes(OpenSizes):
    """The open sizes of one model, with those that plans are made for.

    Attributes:
        node: The node that is run.
    """

    def __init__(self) -> None:
        super().__init__(AskingEnv(self.decided, self.proven))
        self.node: Node | None = None
        self._given: dict[str, Size] = {}
        self._where: dict[tuple[str, str], str] = {}
        self._granted_by: dict[int, Node | None] = {}

    def take_for_granted(self, size: Size) -> None:
        """Lets torch know the range of a size."""
        self._given.setdefault(size.name, size)
        super().take_for_granted(size)

    def decided(self, condition: sympy.Basic) -> bool | None:
        """Returns what a condition is as planned, if it is the same in the range from now on.

        Returns:
            None if it isn't.
        """
        answer = self._as_planned(condition)
        if answer not in (sympy.true, sympy.false):
            return None
        relation = condition if answer == sympy.true else sympy.Not(condition)
        before = dict(self._ranges)
        is_sure = all(map(self.is_made_true, conjuncts(relation)))
        changed = [symbol for symbol, size in self._ranges.items() if size != before[symbol]]
        if not is_sure or not all(self._may_narrow(before[symbol], symbol) for symbol in changed):
            self._ranges.update(before)
            return None
        for symbol in changed:
            super().take_for_granted(self._ranges[symbol])
        self._note_narrowed(before, self.node)
        return bool(answer == sympy.true)

    def is_at_least(self, size: IntExpr, least: int, node: Node) -> bool:
        """Returns whether a size is large enough for a node, narrowed to that if need be."""
        self.node = node
        found = self.symbolic(size) >= least
        return bool(self.decided(found.node.expr) if isinstance(found, torch.SymBool) else found)

    def _may_narrow(self, before: Size, symbol: str) -> bool:
        after, given = self._ranges[symbol], self._given[before.name]
        is_given = given.least > 0 or given.most < UNBOUNDED
        return after.most == before.most and after.planned == before.planned and not is_given

    def note_granted(self) -> None:
        """Notes that the node that was run takes for granted what torch did meanwhile."""
        if self.env.num_deferred_runtime_asserts == len(self._granted_by):
            return
        for asserts in self.env.deferred_runtime_asserts.values():
            for each in asserts:
                self._granted_by.setdefault(id(each), self.node)

    def unmet(self, file: str) -> Iterator[tuple[str, sympy.Basic]]:
        """Narrows sizes to those for which what nodes took for granted holds.

        What no ranges say is kept as a relation, if it is a plain one.

        Args:
            file: Name of the model's file.

        Yields:
            Nodes, and what of that can't be made true.
        """
        # What is narrowed for one may be what another needs.
        unmet = [(node, part) for node, part in self._granted() if not self._is_met(node, part)]
        for node, part in unmet:
            where = Loc(file, name=node.name if node else "")
            if not self._is_met(node, part) and not self.keep(part, where):
                yield node.label if node else "", part

    def _is_met(self, node: Node | None, part: sympy.Basic) -> bool:
        before = dict(self._ranges)
        found = self.is_made_true(part) or self.is_defined(part)
        self._note_narrowed(before, node)
        return found

    def _granted(self) -> Iterator[tuple[Node | None, sympy.Basic]]:
        for asserts in self.env.deferred_runtime_asserts.values():
            for each in asserts:
                node = self._granted_by.get(id(each))
                yield from ((node, part) for part in conjuncts(each.expr))

    def _note_narrowed(self, before: Mapping[str, Size], node: Node | None) -> None:
        """Notes by which node sizes were narrowed."""
        for symbol, size in self._ranges.items():
            for limit in LIMITS:
                if getattr(size, limit) != getattr(before[symbol], limit):
                    self._where[size.name, limit] = node.name if node else ""

    def narrowed(self, file: str) -> Iterator[ReportEntry]:
        """Yields what sizes may be that can't be all that they could."""
        for name, size in self.sizes.items():
            for limit, text in LIMITS.items():
                if getattr(size, limit) != getattr(self._given[name], limit):
                    where = Loc(file, name=self._where.get((name, limit), ""))
                    yield ReportEntry(NARROWED, name, f"{text} {getattr(size, limit)}", where)
