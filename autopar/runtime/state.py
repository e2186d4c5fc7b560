"""The state of a training program as one device would have it: whole tensors by name.

Parameters and buffers have the names of the model, the optimizer's state those of torch: `exp_avg`
of a parameter. Ranks hold pieces of them; here they are put together and taken apart.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from autopar.ir.errors import InvalidInputError, near_misses
from autopar.ir.program import Port
from autopar.runtime.boxes import Box, take
from autopar.runtime.kernels import IR_DTYPES
from autopar.runtime.ports import port_box
from autopar.runtime.ranks import Ranks

MODEL_ROLES = ("parameter", "buffer")
OPTIMIZER_ROLES = ("optimizer_state",)


class Piece(NamedTuple):
    """What a rank holds of a tensor.

    Attributes:
        tensor: Its elements.
        box: Where they are in the whole tensor.
        shape: Shape of the whole tensor.
    """

    tensor: Tensor
    box: Box
    shape: tuple[int, ...]


class State:
    """The stored inputs of a program by label.

    Args:
        ranks: Who holds the pieces.
        roles: Which stored inputs belong to it.
    """

    def __init__(self, ranks: Ranks, roles: Iterable[str]) -> None:
        self.ranks = ranks
        ports = ranks.programs[min(ranks.programs)].signature.inputs
        self._places = {port.label: at for at, port in enumerate(ports) if port.role in roles}
        self.ports: dict[str, Port] = {label: ports[at] for label, at in self._places.items()}
        self.label_of = {
            name: label for label, port in self.ports.items() for name in (label, *port.aliases)
        }

    def names(self, label: str) -> tuple[str, ...]:
        """Returns all names of a tensor: a tied parameter has several."""
        return (label, *self.ports[label].aliases)

    def name_in(self, label: str, given: Container[str]) -> str | None:
        """Returns the first of a tensor's names under which it is given; None if under none."""
        return next((name for name in self.names(label) if name in given), None)

    def whole(self, label: str, everywhere: bool = True) -> Tensor | None:
        """Returns a whole tensor in main memory, in memory of its own; all ranks call alike.

        Args:
            label: Which one.
            everywhere: Whether all ranks get it, or only rank 0.
        """
        name = self.ports[label].name
        held = {rank: stored[name].detach() for rank, stored in self.ranks.stored.items()}
        return self.ranks.whole("inputs", self._places[label], held, everywhere)

    def pieces(self, label: str) -> dict[int, Piece]:
        """Returns what the ranks of this process hold of a tensor, by rank."""
        return {
            rank: Piece(
                self.ranks.stored[rank][port.name], port_box(port, {}), self.ports[label].shape
            )
            for rank, program in self.ranks.programs.items()
            for port in (program.signature.inputs[self._places[label]],)
        }

    def put(self, label: str, whole: Tensor) -> None:
        """Writes what the ranks of this process hold of a whole tensor into their pieces."""
        for piece in self.pieces(label).values():
            piece.tensor.copy_(take(whole.detach(), piece.box))

    def check(self, given: Mapping[str, Any], what: str) -> None:
        """Refuses tensors that aren't those of this state.

        Args:
            given: Tensors by label.
            what: What errors call them, as `state dict`.

        Raises:
            InvalidInputError: If tensors are missing or surplus, or of the wrong shape. Names all.
        """
        missing = (label for label in self.ports if self.name_in(label, given) is None)
        problems = [f"{label!r} is missing" for label in missing]
        for name, tensor in given.items():
            if name not in self.label_of:
                problems.append(f"{name!r} is surplus{near_misses(name, self.label_of)}")
                continue
            port = self.ports[self.label_of[name]]
            if not isinstance(tensor, Tensor) or tuple(tensor.shape) != port.shape:
                expected = f"{port.dtype}{list(port.shape)}"
                problems.append(f"{name!r} is {_type(tensor)}, it must be {expected}")
        if problems:
            lines = "\n".join(f"  - {problem}" for problem in problems)
            raise InvalidInputError(f"the {what} doesn't fit the program:\n{lines}")


def _type(given: Any) -> str:
    if not isinstance(given, Tensor):
        return f"a {type(given).__name__}"
    return f"{IR_DTYPES.get(given.dtype, str(given.dtype))}{list(given.shape)}"
