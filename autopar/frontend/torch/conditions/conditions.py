"""What code asks of the values of tensors while it is captured, as `if mask.any()` and `.item()`.

Nothing is computed while a model is captured. Where its code asks for a value all the same, the
answer is that of the example batch, computed from what the value depends on and from nothing else.
The program is right for batches with the same answers, so each becomes an *assumption* (see
`autopar.ir.assumptions`), which every run checks.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils import _pytree as pytree

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch.capture.sized import check_op
from autopar.frontend.torch.conditions.cones import Cones, Drawn, Made, Unknown, behind, plain
from autopar.frontend.torch.conditions.narrowing import ExampleSizes
from autopar.frontend.torch.origin import place_of, user_frame
from autopar.frontend.torch.rows.selections import Selected
from autopar.frontend.torch.stored.formulas import Formula, formula_of
from autopar.ir.assumptions import Scalar

aten = torch.ops.aten

Answer = Scalar | complex

QUESTIONS = (aten._local_scalar_dense.default, aten.equal.default, aten.allclose.default)
"""Ops that return plain values of tensors."""

ASSERTIONS = (aten._assert_async.default, aten._assert_async.msg)
"""Ops that fail unless a tensor is true."""

CHECKS = (aten._linalg_check_errors.default,)
"""Ops that fail if a decomposition did."""

_COMPARISONS = (aten.lt.Scalar, aten.le.Scalar, aten.gt.Scalar, aten.ge.Scalar)
_UNIFORM = (aten.rand.default, aten.rand_like.default)
_ALMOST_ONE = 1 - 2.0**-24


@dataclass(frozen=True)
class Asked:
    """A question.

    Attributes:
        func: The op that asks.
        answer: What it returned.
        varies: Whether another batch, or other weights, may have another answer.
        place: The user's line.
    """

    func: Any
    answer: Answer
    varies: bool
    place: str = ""


class Answering:
    """The mode of fake tensors of a model and a batch, and what these stand for.

    Code runs several times while it is captured. Each run computes what it asks by itself: torch
    answers questions about constants without the mode where it traces, so they have no numbers.

    Args:
        known: What was asked of the same code before, for what can't be computed here.
        sizes: The open sizes of the batch; None if it has none.

    Attributes:
        mode: The mode.
        sizes: The open sizes of the batch.
        asked: What the latest run asked so far, in order.
        selected: Which tensors have rows that data select.
    """

    def __init__(self, known: Sequence[Asked] = (), sizes: ExampleSizes | None = None) -> None:
        self._known = known
        self.sizes = ExampleSizes() if sizes is None else sizes
        # Of what is no tensor of the batch, no size is open.
        self.mode = FakeTensorMode(
            allow_non_fake_inputs=True,
            shape_env=None if sizes is None else sizes.env,
            static_shapes=True,
        )
        # Ops of a higher order know modes by their very type, so this is no subclass.
        self._dispatch = self.mode.dispatch
        self.mode.dispatch = self._noted  # type: ignore[method-assign]
        self.asked: list[Asked] = []
        self._cones = Cones(self.sizes)
        self.selected = Selected()
        self._answers = False
        self._within = False

    def know(self, fake: Tensor, tensor: Tensor) -> None:
        """Says what stands behind a fake tensor of the batch or the model."""
        self._cones.know(fake, tensor)

    def fixed(self, tensor: Tensor) -> Tensor | None:
        """Returns the value of a tensor that no batch, weight or draw changes; None of others."""
        return self._cones.fixed(tensor)

    def is_written(self, fake: Tensor) -> bool:
        """Whether an op wrote to the memory of a fake tensor."""
        return self._cones.is_written(fake)

    def formula(self, tensor: Tensor, names: Mapping[int, str]) -> Formula | None:
        """Returns how a tensor is made of what the model stores; None if of anything else.

        Args:
            tensor: The tensor.
            names: Of what may be read, by the identity of fake tensors.
        """

        def made(fake: Tensor) -> Made | None:
            return None if self._cones.is_written(fake) else self._cones.made(fake)

        return formula_of(behind(tensor), names, made)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Answers questions within; elsewhere they are refused, as torch does."""
        self._answers = self._cones.holds = True
        try:
            yield
        finally:
            self._answers = self._cones.holds = False
            self._cones.forget()

    def begin(self) -> None:
        """Says that the code runs once more."""
        self.asked = []
        self.selected.begin()

    def _noted(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> object:
        """Runs an op on fake tensors and notes what it made."""
        kwargs = kwargs or {}
        if self._within:  # What an op is made of is its own affair.
            return self._dispatch(func, types, args, kwargs)
        check_op(func, args, self.sizes)
        self._within = True
        try:
            if func in QUESTIONS and self._answers:
                self.asked.append(self._answered(func, types, args, kwargs))
                self.selected.asked(args, varies=self.asked[-1].varies)
                return self.asked[-1].answer
            result = self._result(func, types, args, kwargs)
        finally:
            self._within = False
        self._cones.note(result, func, args, kwargs)
        if self._answers:
            self.selected.note(func, args, kwargs, result)
        return result

    def _result(
        self, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> object:
        """Returns what an op makes of fake tensors, shaped by constants where these shape it.

        Raises:
            DynamicOutputShapeException: If values that may be others shape it.
        """
        try:
            return self._dispatch(func, types, args, kwargs)
        except DynamicOutputShapeException:
            found = self._cones.constant(func, args, kwargs)
            if found is None:
                raise
            with plain():
                return pytree.tree_map_only(Tensor, self.mode.from_tensor, found)

    def _answered(
        self, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Asked:
        """Returns a question with its answer.

        Raises:
            DataDependentOutputException: If it isn't known.
            InvalidInputError: If it is drawn by lot.
        """
        try:
            constant: Any = self._dispatch(func, types, args, kwargs)
            return Asked(func, constant, varies=False)
        except DataDependentOutputException as unanswered:
            place = place_of(user_frame(sys._getframe(1)))
            try:
                return replace(self._computed(func, args, kwargs), place=place)
            except Unknown:
                alike = _varying(self._known, place, func)
                # A line may ask several times, as in a loop, or in several modules.
                if (at := len(_varying(self.asked, place, func))) < len(alike):
                    return alike[at]
                raise unanswered from None
            except Drawn:
                return Asked(func, self._decided(args[0]), varies=False)

    def _computed(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Asked:
        known = {id(arg): self._cones.value(arg) for arg in args if isinstance(arg, Tensor)}
        values = [known[id(arg)].tensor if id(arg) in known else arg for arg in args]
        with plain():
            answer: Answer = func(*values, **kwargs)
        return Asked(func, answer, any(each.varies for each in known.values()))

    def _decided(self, asked: Tensor) -> bool:
        """Returns how a comparison of a uniform draw with a number ends, if it always ends alike.

        Raises:
            InvalidInputError: If it doesn't. Names the attributes that its line reads.
        """
        made = self._cones.made(asked)
        if made is not None and made.func in _COMPARISONS:
            drawn = self._cones.made(made.operands[0])
            if drawn is not None and drawn.func in _UNIFORM:
                with plain():
                    ends = torch.tensor([0.0, _ALMOST_ONE], dtype=torch.float64)
                    found = made.func(ends, made.args[1]).tolist()
                if found[0] == found[1]:
                    return bool(found[0])
        raise InvalidInputError(by_lot(user_frame(sys._getframe(1))))


def _varying(asked: Sequence[Asked], place: str, func: Any) -> list[Asked]:
    """Returns what a line asked whose answers aren't always the same."""
    return [each for each in asked if each.varies and each.place == place and each.func is func]


def by_lot(frame: FrameType | None) -> str:
    """Returns the refusal of a line whose way is drawn by lot, with the options that it reads."""
    read = {} if frame is None else _options_read(frame)
    options = ", ".join(f"{name} (now {value:g})" for name, value in read.items())
    what = f"set {options} so that nothing is drawn" if options else "draw nothing here"
    return (
        f"{place_of(frame)}: a random number decides which way this line goes, and a program goes"
        f" one way; {what}, or compute both ways and choose with torch.where"
    )


_ATTRIBUTE = re.compile(r"\bself((?:\.\w+)+)")
_NAME = re.compile(r"(?<![\w.])[a-z_]\w*")


def _options_read(frame: FrameType) -> dict[str, float]:
    """Returns the numbers that a line of code depends on, by the names of their attributes.

    Those are the attributes of `self` in the line, and in the lines before that set what it reads.
    """
    try:
        lines, first = inspect.getsourcelines(frame.f_code)
    except (OSError, TypeError):
        return {}
    before = lines[: frame.f_lineno - max(first, 1) + 1]
    names = set(_NAME.findall(before[-1]))
    read = [line for line in before[:-1] if names & set(_NAME.findall(line.partition("=")[0]))]
    found: dict[str, float] = {}
    for path in _ATTRIBUTE.findall("".join([*read, before[-1]])):
        value: object = frame.f_locals.get("self")
        for name in path.split(".")[1:]:
            value = getattr(value, name, None)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[path.removeprefix(".")] = value
    return found


@contextmanager
def questions_kept() -> Iterator[None]:
    """Keeps what asks and asserts in graphs that are traced within, though nothing reads it."""
    kept = fx.node._side_effectful_functions
    added = {*QUESTIONS, *ASSERTIONS, *CHECKS} - kept
    kept |= added
    try:
        yield
    finally:
        kept -= added
