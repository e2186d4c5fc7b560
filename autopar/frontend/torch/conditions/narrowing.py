"""Open sizes of a batch: what code that is captured decides by them narrows what they may be.

Nothing is known of an open size but its range. Where code asks for more, as `if x.shape[0] == 1`,
the answer is that of the example, and the range becomes one in which it is always the same. Where
few sizes are left out by that, they may be taken in again (see `capture.widening`). A range that
the user gave must be what it was in the end: else the code is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from traceback import FrameSummary
from typing import Any

import sympy
from torch.utils._traceback import CapturedTraceback

from autopar.base.errors import InvalidInputError, Loc
from autopar.base.package import PACKAGE
from autopar.frontend.lower.asking import AskingEnv
from autopar.frontend.lower.open_sizes import LIMITS, OpenSizes, conjuncts
from autopar.frontend.lower.relations import relation_of
from autopar.frontend.lower.symbols import SymSize
from autopar.frontend.torch.origin import is_user_code
from autopar.ir.builds.manifest import NARROWED, ReportEntry
from autopar.ir.expr.at_sizes import Sizes
from autopar.ir.expr.expression import UNBOUNDED, IntExpr, Size

_ASKED = (sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)
_CONDITIONS = (*_ASKED, sympy.And, sympy.Or, sympy.Not)


FEW = 2
"""How many sizes may be taken in again, one by one."""


class SizeDecides(InvalidInputError):
    """What code does depends on an open size."""


class ExampleSizes(OpenSizes):
    """The open sizes of a batch, with those of the example.

    Args:
        said: Names of sizes whose ranges the user gave.
    """

    def __init__(self, said: frozenset[str] = frozenset()) -> None:
        super().__init__(AskingEnv(self.decided))
        self._said = said
        self._examples: dict[sympy.Basic, int] = {}
        self._is_trial = False
        self._decisive: dict[sympy.Basic, int] = {}
        self._given: dict[str, Size] = {}
        self._numbers: dict[str, int] = {}
        self._deciding_lines: dict[str, str] = {}
        self._lines: dict[tuple[str, str], Loc] = {}

    def take_example(self, shape: Sequence[IntExpr], sizes: Sequence[int]) -> None:
        """Notes what the open sizes of a shape are in the example."""
        for size, number in zip(shape, sizes, strict=True):
            if isinstance(size, Size):
                self._examples[self.symbol(size).node.expr] = number
                self._numbers[size.name] = number
                self._given[size.name] = size
        self._decisive.update(self._examples)

    def decide_by(self, instead: Sizes) -> None:
        """Says by which sizes code decides, by name, where that isn't the example's."""
        self._is_trial = bool(instead)
        self._numbers.update(instead)
        for symbol in self._examples:
            name = self._ranges[str(symbol)].name
            self._decisive[symbol] = self._numbers[name]

    def in_example(self, size: SymSize) -> int:
        """Returns what a size is in the example."""
        return size if isinstance(size, int) else int(size.node.expr.subs(self._examples))

    def decided(self, condition: sympy.Basic) -> bool | None:
        """Returns what a condition is in the example, if it is the same in the range from now on.

        Returns:
            None if it isn't: it is no condition on one size, or the user gave the range.
        """
        answer = condition.subs(self._decisive)
        if not isinstance(condition, _CONDITIONS) or answer not in (sympy.true, sympy.false):
            return None
        before = dict(self._ranges)
        relation = condition if answer == sympy.true else sympy.Not(condition)
        is_sure = all(map(self.is_made_true, conjuncts(relation))) and self._has_example()
        changed = [symbol for symbol, size in self._ranges.items() if size != before[symbol]]
        said = [symbol for symbol in changed if before[symbol].name in self._said]
        if not is_sure or not all(self._leaves_few_out(before[symbol]) for symbol in said):
            self._ranges.update(before)
            return bool(answer) if self._is_kept(relation) else None
        stack = _stack() if changed else None
        for symbol in said:
            line = f"{_line(stack)}: {self.refusal(condition)}"
            self._deciding_lines.setdefault(before[symbol].name, line)
        for symbol in changed:
            self._note(before[symbol], stack)
            self.take_for_granted(self._ranges[symbol])
        return bool(answer == sympy.true)

    def _is_kept(self, condition: sympy.Basic) -> bool:
        """Keeps a condition on several sizes for calls to check; returns whether it is plain."""
        parts = list(conjuncts(condition))
        relations = [relation_of(part, self._expr) for part in parts]
        if any(each is None or len(each.names) < 2 for each in relations):
            return False
        return all(self.keep(part, _line(_stack())) for part in parts)

    def left_out(self, name: str) -> list[int]:
        """Returns what a size can't be any more, from the largest on, where that is few."""
        size, given = self.sizes[name], self._given.get(name)
        if given is None or size.least - given.least > FEW:
            return []
        least = given.least if name in self._said else max(given.least, 1)
        return list(range(size.least - 1, least - 1, -1))

    def _leaves_few_out(self, before: Size) -> bool:
        """Whether a size is narrowed by few, from below; other sizes are tried as they are."""
        if self._is_trial:
            return True
        size, given = self.sizes[before.name], self._given[before.name]
        if (size.most, size.step) != (before.most, before.step):
            return False
        return size.least - given.least <= FEW

    def take_in(self, name: str, least: int) -> None:
        """Says that a size may be this small after all."""
        symbol = next(each for each, size in self._ranges.items() if size.name == name)
        self._ranges[symbol] = replace(self._ranges[symbol], least=least)
        if least == self._given[name].least:
            self._lines.pop((name, "least"), None)
            self._deciding_lines.pop(name, None)

    def check_said(self) -> None:
        """Refuses code that does something else for sizes that the user said.

        Raises:
            SizeDecides: If there are any. Names the line.
        """
        for line in self._deciding_lines.values():
            raise SizeDecides(line)

    def _note(self, before: Size, stack: Any) -> None:
        """Notes where a size was narrowed."""
        size = self.sizes[before.name]
        for bound in LIMITS:
            if getattr(size, bound) != getattr(before, bound):
                self._lines[size.name, bound] = _line(stack)

    def narrow_all(self) -> None:
        """Narrows sizes to those for which what torch took for granted holds.

        Raises:
            SizeDecides: If that isn't said by ranges of sizes. Names the user's line.
        """
        for part, stack in self.taken_for_granted():
            before = self.sizes
            self.is_made_true(part)
            if not self._has_example():
                raise SizeDecides(f"{_line(stack)}: {self.refusal(part)}")
            for size in before.values():
                self._note(size, stack)
        for part, stack in self.taken_for_granted():
            if self.is_made_true(part) or self.is_defined(part):
                continue
            is_so = part.subs(self._decisive) == sympy.true
            if not is_so or not self.keep(part, _line(stack)):
                raise SizeDecides(f"{_line(stack)}: {self.refusal(part)}")

    def _has_example(self) -> bool:
        """Whether all sizes may still be those of the example."""
        sizes = ((self.sizes[name], number) for name, number in self._numbers.items())
        return all(size.admits(number) for size, number in sizes)

    def _chosen(self, size: Size) -> int:
        return self._numbers.get(size.name, size.planned)

    def narrowed(self) -> Iterator[ReportEntry]:
        """Yields what sizes may be that can't be all that they could."""
        for (name, bound), loc in self._lines.items():
            found = f"{LIMITS[bound]} {getattr(self.sizes[name], bound)}"
            yield ReportEntry(NARROWED, name, found, loc)
        yield from self.checked()

    def refusal(self, condition: sympy.Basic) -> str:
        """Returns why code is refused that does something else at other sizes, and what to do."""
        told, names = self.told(condition)
        if not names:
            # As in slices up to an open size with torch before 2.13, whose length it doesn't say.
            return (
                f"what this line does depends on a size that torch doesn't know, whether {told};"
                " take the sizes that it reads out of dynamic="
            )
        whether = f", whether {told}" if isinstance(condition, _CONDITIONS) else ""
        found = [self._deciding(condition)] if self._deciding(condition) else []
        found = found or self.ranges_within(condition)
        ranges = "a range" if len(found) < 2 else "ranges"
        return (
            f"what this line does depends on the size of {names}{whether}; take {names} out of"
            f" dynamic=, or give {ranges} in which it always does the same"
            + (f", as {' and '.join(map(repr, found))}" if found else "")
        )

    def _deciding(self, condition: sympy.Basic) -> str:
        """Returns a range, as users write it, in which a condition is always as planned; or ""."""
        if not isinstance(condition, _ASKED):
            return ""
        if condition.args[0].is_number:
            condition = condition.reversed
        symbol, number = condition.args
        size = self._ranges.get(str(symbol))
        if size is None or not isinstance(number, sympy.Integer):
            return ""
        border, (least, most) = int(number), (size.least, size.most)
        for low, high in (
            (least, border),
            (least, border - 1),
            (border, most),
            (border + 1, most),
        ):
            ends = {low, low + 1, high - 1, high}
            alike = len({condition.subs(symbol, each) for each in ends}) == 1
            if low <= self._chosen(size) <= high and alike:
                return f"{size.name}={low or ''}:{'' if high == UNBOUNDED else high}"
        return ""


def _stack() -> CapturedTraceback:
    found: CapturedTraceback = CapturedTraceback.extract()  # type: ignore[no-untyped-call]
    return found


def _line(stack: CapturedTraceback | None) -> Loc:
    """Returns the innermost line of the user's model in a stack that torch noted, if there is one.

    While torch differentiates, there is none.
    """
    frames = [] if stack is None else list(stack.summary())  # type: ignore[no-untyped-call]
    calls = [at for at, frame in enumerate(frames) if _calls_model(frame)]
    inner = frames[calls[-1] :] if calls else []
    own = [frame for frame in inner if is_user_code(frame.filename)]
    return Loc(own[-1].filename, own[-1].lineno or 0) if own else Loc(name="the model")


def _calls_model(frame: FrameSummary) -> bool:
    """Whether a frame is that of what calls the model while it is captured."""
    return frame.name == "forward" and frame.filename == _CAPTURE


_CAPTURE = str(PACKAGE / "frontend" / "torch" / "capture" / "joint.py")
