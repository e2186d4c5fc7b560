"""Captures code the way that it goes for compilers, or else the way that it goes without one.

Libraries ask whether they are compiled, and then leave out what depends on values, as masks that
mask nothing. What they do instead may fail where nobody tried it. Then the way is captured that
code goes eagerly, and the values that it asks for are assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch.capture.fake import FakeModel
from autopar.frontend.torch.capture.joint import Compute, Joint, capture_joint
from autopar.frontend.torch.capture.widening import widened
from autopar.frontend.torch.refusals import Untraceable
from autopar.frontend.torch.rows.presence import Absent
from autopar.frontend.torch.rows.selections import NotApart
from autopar.ir.expr.at_sizes import Sizes


class Start(NamedTuple):
    """What code is traced with, which a trace leaves changed.

    Attributes:
        fake: The model.
        batch: Fake tensors of the batch.
        beside: What is called besides the model, as a loss.
    """

    fake: FakeModel
    batch: Sequence[Tensor]
    beside: Sequence[Any] = ()


class Traced(NamedTuple):
    """What code was traced with, and the graph."""

    fake: FakeModel
    joint: Joint


TRIES = 6
"""How often code is traced at most, each time with one more line as it is for the example."""


def trace(start: Callable[[], Start], compute: Compute, *, absent: Absent) -> Traced:
    """Captures what a function computes, and the gradients of its results that have some.

    Args:
        start: Makes what a trace begins with, anew for each.
        compute: What is to be computed.
        absent: What becomes of parameters that data leave without a gradient.

    Raises:
        InvalidInputError: If it has no static program. Names the user's line.
    """
    try:
        return _traced(start, compute, compiling=True, absent=absent)
    except Untraceable as error:
        refused = error
    try:
        return _traced(start, compute, compiling=False, absent=absent)
    except InvalidInputError:
        pass
    raise refused


def _traced(
    start: Callable[[], Start], compute: Compute, *, compiling: bool, absent: Absent
) -> Traced:
    """Captures one way, as wide as the sizes of the batch may be."""

    def capture(instead: Sizes) -> Traced:
        return _captured(start, compute, compiling=compiling, absent=absent, instead=instead)

    fake, joint = capture({})
    return Traced(fake, widened(fake, joint, capture))


def _captured(
    start: Callable[[], Start],
    compute: Compute,
    *,
    compiling: bool,
    absent: Absent,
    instead: Sizes,
) -> Traced:
    """Captures with all rows that data may select where code computes them apart."""
    denied: frozenset[str] | None = frozenset()
    left_out: frozenset[tuple[str, int]] = frozenset()
    for left in reversed(range(TRIES)):
        fake, batch, beside = start()
        fake.answering.sizes.decide_by(instead)
        selected = fake.answering.selected
        selected.denied = denied if left else None
        selected.left_out = left_out
        try:
            joint = capture_joint(
                fake, compute, batch, compiling=compiling, absent=absent, beside=beside
            )
        except NotApart as error:
            denied = None if denied is None else denied | {error.place}
        except InvalidInputError:
            if selected.denied is None or not selected.found:
                raise
            if selected.visited is None:
                denied = None
            else:  # Nothing may ever be selected there, as at the place of what is masked.
                left_out |= {selected.visited}
        else:
            return Traced(fake, joint)
    raise AssertionError("the last try computes no rows that aren't there")
