"""Where torch asks what holds for open sizes while a model is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    ShapeEnv,
    statically_known_true,
)

Answer = Callable[[sympy.Basic], bool | None]
"""Whether a condition on open sizes holds for all of them; None if that isn't known."""


class AskingEnv(ShapeEnv):
    """What torch knows of open sizes, and who is asked what it doesn't know.

    Sizes are only those that are given: none may follow from data.

    Args:
        decide: Who is asked where torch can't tell.
        prove: Who is asked before torch looks for an answer, which takes it longer.
    """

    def __init__(self, decide: Answer | None = None, prove: Answer | None = None) -> None:
        super().__init__(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
        self._decide = decide
        self._prove = prove

    def evaluate_expr(self, orig_expr: sympy.Basic, *args: Any, **kwargs: Any) -> sympy.Basic:
        """Returns what an expression is, which must be the same for all sizes."""
        proven = self.proven(orig_expr)
        if proven is not None:
            return proven
        if self._prove is not None and (fallback := _fallback(args, kwargs)) is not None:
            return _truth(fallback)
        try:
            return super().evaluate_expr(orig_expr, *args, **kwargs)
        except GuardOnDataDependentSymNode as error:
            answer = None if self._decide is None else self._decide(error.cond)
            if answer is None:
                raise
            return _truth(answer)

    def guard_or_defer_runtime_assert(  # type: ignore[override]
        self, orig_expr: sympy.Basic, *args: Any, **kwargs: Any
    ) -> bool:
        """Takes for granted what isn't sure."""
        proven = self.proven(orig_expr)
        if proven is not None:
            return bool(proven)
        return super().guard_or_defer_runtime_assert(orig_expr, *args, **kwargs)

    def proven(self, condition: sympy.Basic) -> sympy.Basic | None:
        """Returns true or false where that is known of a condition, without looking for it."""
        if self._prove is None or not isinstance(condition, sympy.Basic):
            return None
        found = self._prove(condition)
        return None if found is None else _truth(found)


def is_sure(condition: object) -> bool:
    """Returns whether a condition holds for all sizes that are open."""
    if not isinstance(condition, torch.SymBool):
        return bool(condition)
    env = condition.node.shape_env
    if isinstance(env, AskingEnv) and (proven := env.proven(condition.node.expr)) is not None:
        return bool(proven)
    return statically_known_true(condition)


def _fallback(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    """Returns what torch takes for the answer where it doesn't know it."""
    found = kwargs.get("fallback_value", args[3] if len(args) > 3 else None)
    return found if isinstance(found, bool) else None


def _truth(answer: bool) -> sympy.Basic:
    return sympy.true if answer else sympy.false
