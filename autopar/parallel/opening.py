"""Which sizes of a module's calls stay open."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from autopar.frontend.torch import Dynamic
from autopar.frontend.torch.step.batch import Structure
from autopar.frontend.torch.step.dynamic import Opened, open_shapes
from autopar.ir.expr.at_sizes import Sizes, at_sizes
from autopar.ir.expr.expression import IntExpr
from autopar.ir.program import Port, Program, Signature
from autopar.runtime.kernels.table import IR_DTYPES, TORCH_DTYPES
from autopar.runtime.ports.open_inputs import is_left_open, sizes_of_inputs
from autopar.runtime.ports.ports import check_inputs

Shape = tuple[IntExpr, ...]


class OpenCalls:
    """The sizes that a user leaves open, as the first call shows which these are.

    Args:
        dynamic: What the user says of the example's tensors; see `autopar.compile`.
    """

    def __init__(self, dynamic: Dynamic | None) -> None:
        self._dynamic = dynamic
        self._shapes: dict[str, Shape] | None = None
        self._said: frozenset[str] = frozenset()

    def opened(self, call: Structure, tensors: Sequence[Tensor]) -> Opened:
        """Returns the shapes of the global tensors of a call, in which sizes may be open.

        Tensors that the example doesn't have, or has with other dimensions, are as they are.

        Raises:
            InvalidInputError: If the first call doesn't have what the user names.
        """
        if self._shapes is None:
            found = open_shapes(self._dynamic, call.labels, tensors)
            self._shapes = dict(zip(call.labels, found.shapes, strict=True))
            self._said = found.said
            return found
        pairs = zip(call.labels, tensors, strict=True)
        shapes = tuple(self._shape(label, tuple(each.shape)) for label, each in pairs)
        return Opened(shapes, self._said)

    def _shape(self, label: str, shape: tuple[int, ...]) -> Shape:
        known = (self._shapes or {}).get(label, shape)
        if len(known) != len(shape):
            return shape
        pairs = zip(known, shape, strict=True)
        return tuple(size if isinstance(open_size, int) else open_size for open_size, size in pairs)


def check_sizes(call: Structure, opened: Opened, tensors: Sequence[Tensor]) -> None:
    """Refuses global tensors of a call whose sizes the user doesn't leave open.

    Raises:
        InvalidInputError: If sizes aren't in their ranges, or differ though they are one.
    """
    types = (IR_DTYPES.get(each.dtype, "f32") for each in tensors)
    ports = zip(call.labels, types, opened.shapes, strict=True)
    inputs = tuple(Port(label, label, dtype, shape, "input") for label, dtype, shape in ports)
    sizes_of_call(Program({}, Signature(inputs)), [tuple(each.shape) for each in tensors])


def sizes_of_call(call: Program, shapes: Sequence[Sequence[int]]) -> Sizes:
    """Returns what is open of a call, at the global shapes of its tensors.

    Args:
        call: A program whose inputs are the tensors of a call, in order.
        shapes: Their shapes.

    Raises:
        InvalidInputError: If the sizes aren't in their ranges, or aren't what others say.
    """
    if not is_left_open(call):
        return {}
    given = {
        port.name: torch.zeros((), dtype=TORCH_DTYPES[port.dtype]).expand(tuple(shape))
        for port, shape in zip(call.signature.inputs, shapes, strict=True)
    }
    sizes = sizes_of_inputs(call, given)
    check_inputs(at_sizes(call, sizes), given)
    return sizes
