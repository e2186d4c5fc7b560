"""Captures code the way that it goes for compilers, or else the way that it goes without one.

Libraries ask whether they are compiled, and then leave out what depends on values, as masks that
mask nothing. What they do instead may fail where nobody tried it. Then the way is captured that
code goes eagerly, and the values that it asks for are assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from autopar.frontend.torch.fake import FakeModel
from autopar.frontend.torch.joint import Compute, Joint, capture_joint
from autopar.frontend.torch.refusals import Untraceable
from autopar.ir.errors import InvalidInputError


class Start(NamedTuple):
    """What code is traced with, which a trace leaves changed."""

    fake: FakeModel
    batch: Sequence[Tensor]


class Traced(NamedTuple):
    """What code was traced with, and the graph."""

    fake: FakeModel
    joint: Joint


def trace(start: Callable[[], Start], compute: Compute) -> Traced:
    """Captures what a function computes, and the gradients of its results that have some.

    Args:
        start: Makes what a trace begins with, anew for each.
        compute: What is to be computed.

    Raises:
        InvalidInputError: If it has no static program. Names the user's line.
    """
    fake, batch = start()
    try:
        return Traced(fake, capture_joint(fake, compute, batch))
    except Untraceable as error:
        refused = error
    fake, batch = start()
    try:
        return Traced(fake, capture_joint(fake, compute, batch, compiling=False))
    except InvalidInputError:
        pass
    raise refused
