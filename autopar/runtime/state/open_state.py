"""State whose sizes are open: it begins empty with a first call, and may grow with each one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.ir.expr.at_sizes import Sizes, as_coords, port_at
from autopar.ir.expr.expression import IntExpr, Size
from autopar.ir.expr.formula import formula
from autopar.ir.program import Port, Program
from autopar.runtime.kernels.table import TORCH_DTYPES
from autopar.runtime.ports.boxes import box_shape
from autopar.runtime.ports.open_inputs import check_relations
from autopar.runtime.ports.ports import is_open_state, port_box, user_inputs


class OpenState:
    """The sizes of state from call to call: they follow from those of the calls before.

    Args:
        program: The program, at any level.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.labels = [port.user_label for port in program.signature.inputs if is_open_state(port)]
        self._given = {s.name for p in user_inputs(program) for s in p.shape if isinstance(s, Size)}
        self._next = dict(_renewed(program))
        self._sizes_behind = formula(self._next.values())
        self._now: dict[str, int] = {}

    def at(self, sizes: Sizes) -> dict[str, int]:
        """Returns all open sizes of a call.

        Args:
            sizes: Those of its inputs.

        Raises:
            InvalidInputError: If what is kept doesn't fit them, or has grown too large.
        """
        found = dict(sizes)
        for size in self._next:
            now = self._now.get(size.name, found[size.name])
            if size.name in self._given and now != found[size.name]:
                raise InvalidInputError(
                    f"{size.name} is {found[size.name]}, but {now} in the state that earlier calls"
                    f" left, as {self.labels[0]!r}; reset() begins anew"
                )
            if now > size.most:
                raise InvalidInputError(
                    f"{size.name} is {now} in the state that earlier calls left, as"
                    f" {self.labels[0]!r}, and at most {size.most}; reset() begins anew"
                )
            found[size.name] = now
        check_relations(self._program, found)
        return found

    def advance(self, sizes: Sizes) -> None:
        """Notes the sizes of what a call left.

        Args:
            sizes: All open sizes of that call.
        """
        if not self._next:
            return
        numbers = self._sizes_behind(as_coords(sizes))
        self._now = dict(zip((size.name for size in self._next), numbers, strict=True))

    def clear(self) -> None:
        """Forgets what calls left."""
        self._now.clear()


def beginning(program: Program) -> tuple[Port, ...]:
    """Returns the state that is filled in where no call has left any."""
    ports = program.signature.inputs
    return tuple(port for port in ports if port.role == "state" and port.fill is not None)


def begin_state(
    ports: Iterable[Port],
    sizes: Sizes,
    stored: dict[str, Tensor],
    device: torch.device | str,
) -> None:
    """Fills in state that no call has left, with which others begin.

    Args:
        ports: What `beginning` returns of a rank's program.
        sizes: All open sizes of a call.
        stored: The rank's stored inputs by name.
        device: Where they are.
    """
    for port in ports:
        if port.fill is not None and port.name not in stored:
            shape = box_shape(port_box(port_at(port, sizes), {}))
            dtype = TORCH_DTYPES[port.dtype]
            stored[port.name] = torch.full(shape, port.fill, dtype=dtype, device=device)


def _renewed(program: Program) -> Iterator[tuple[Size, IntExpr]]:
    """Yields each open size of state, and what it is behind a call."""
    ports = program.signature
    outputs = {port.name: port.shape for port in ports.outputs}
    renewed = {into: outputs[out] for out, into in program.main.aliases if out in outputs}
    for port in filter(is_open_state, ports.inputs):
        for size, new in zip(port.shape, renewed.get(port.name, port.shape), strict=True):
            if isinstance(size, Size):
                yield size, new
