"""What a user wants of activations until the backward pass reads them, as an op's plan says it.

plan(keep=save)                                 what it makes stays in the device's memory
plan(keep=offload)                              it waits in the host's memory
plan(keep=recompute)                            it is computed again
plan(keep=recompute, region=transformer.h.0)    so is all of a region but what leaves it
"""

from __future__ import annotations

from dataclasses import replace

from autopar.base.errors import AnnotationError, near_misses
from autopar.ir.program import Op, Program

SAVE, RECOMPUTE, OFFLOAD = "save", "recompute", "offload"
CHOICES = (SAVE, RECOMPUTE, OFFLOAD)

KEEP, REGION = "keep", "region"
"""Plan fields."""

NOTE = "autopar.activations"
"""The key of a choice and its region in what torch notes of a node (its `meta["custom"]`)."""

NUMBERED = "#"
"""Begins the name of a region that the model's code marks; others are modules or prefixes."""


def check_choice(choice: object, place: str) -> str:
    """Returns a choice.

    Raises:
        AnnotationError: If it is none.
    """
    if choice not in CHOICES:
        hint = near_misses(str(choice), CHOICES)
        raise AnnotationError(f"{place}: {choice!r} is none of {', '.join(CHOICES)}{hint}")
    return str(choice)


def kept(op: Op, choice: str, region: str = "") -> Op:
    """Returns an op with a choice in its plan."""
    plan = [(name, text) for name, text in op.plan if name not in (KEEP, REGION)]
    plan.append((KEEP, choice))
    if region:
        plan.append((REGION, region))
    return replace(op, plan=tuple(plan))


def choice_of(op: Op) -> tuple[str, str]:
    """Returns the choice and the region in an op's plan; "" for none."""
    plan = dict(op.plan)
    return plan.get(KEEP, ""), plan.get(REGION, "")


def is_asked(program: Program) -> bool:
    """Whether a user wants anything of the activations of a program."""
    ops = (op for function in program.functions.values() for op in function.ops)
    return any(name == KEEP for op in ops for name, _ in op.plan)
