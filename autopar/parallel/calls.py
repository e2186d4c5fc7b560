"""What a call of a module is: its mode and its arguments, as ranks compare them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch.step.batch import Structure
from autopar.frontend.torch.step.dynamic import Opened
from autopar.ir.expr.expression import planned
from autopar.ir.layout import Layout
from autopar.runtime.ports.dense import odd_kind


class Modes(NamedTuple):
    """What of a module's state decides what it computes.

    Attributes:
        training: Of each of its modules, whether it is in training mode.
        trained: Of each of its parameters, whether it requires gradients.
    """

    training: tuple[bool, ...]
    trained: tuple[bool, ...]


class Wanted(NamedTuple):
    """What a program is wanted for.

    Attributes:
        key: What is the same for all calls that a program may be for.
        modes: Those that the module is in.
        call: The structure of the call.
        tensors: Its tensors, whole; but for their values, those of parts are like them.
        opened: Their shapes, of which sizes may be open.
        layouts: How the ranks hold them, if they are given in parts.
    """

    key: Any
    modes: Modes
    call: Structure
    tensors: Sequence[Tensor]
    opened: Opened
    layouts: Sequence[Layout] = ()

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of its tensors."""
        return tuple(tuple(each.shape) for each in self.tensors)


def check_plain(call: Structure) -> None:
    """Refuses arguments by which programs can't be told apart."""
    for leaf in call.rest():
        try:
            hash(leaf)
        except TypeError as error:
            raise InvalidInputError(
                f"the call brings a {type(leaf).__name__}; hand over tensors, as"
                " torch.from_numpy(array), and plain numbers, texts and flags beside them"
            ) from error


def check_tensors(call: Structure, tensors: Sequence[Tensor], absent: bool) -> None:
    """Refuses tensors that aren't dense.

    Args:
        call: Has their names.
        tensors: The tensors.
        absent: Whether they may be without values, as an example is.
    """
    for label, each in zip(call.labels, tensors, strict=True):
        kind = odd_kind(each, absent)
        if kind:
            raise InvalidInputError(f"{label!r} is {kind}")


def check_whole(microbatches: int) -> None:
    """Refuses parts of a batch that is cut into microbatches, of each of which a rank has a part.

    Raises:
        InvalidInputError: If it is cut.
    """
    if microbatches > 1:
        raise InvalidInputError(
            f"local=True: of each of {microbatches} microbatches a rank reads a part, which is no"
            " block of the batch; hand over the global batch, or leave microbatches= out"
        )


def described(modes: Modes, call: Structure, tensors: Sequence[Tensor], local: bool) -> str:
    """Returns what a call is, in words; without the sizes of parts."""
    parts = [
        f"{label} {str(each.dtype).removeprefix('torch.')}"
        + (f" of {each.ndim} dimensions" if local else str(list(each.shape)))
        for label, each in zip(call.labels, tensors, strict=True)
    ]
    plain = (bool, int, float, str)
    parts.extend(repr(leaf) for leaf in call.rest() if isinstance(leaf, plain))
    mode = "train" if modes.training[0] else "eval"
    gradients = "with" if torch.is_grad_enabled() else "without"
    return f"{', '.join(parts)}, in {mode} mode, {gradients} gradients"


def whole_like(part: Tensor, layout: Layout) -> Tensor:
    """Returns a tensor that is like the one of which this is a part, without its values."""
    like = part.detach().new_zeros(()).expand(tuple(map(planned, layout.shape)))
    return like.requires_grad_(part.requires_grad)
