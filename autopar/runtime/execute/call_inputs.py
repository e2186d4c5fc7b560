"""What the calls of a session are given, as a rank checks it by itself."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.ir.program import Program
from autopar.runtime.execute.sized import Sized, SizedRank
from autopar.runtime.ports.batches import looks_like_a_part
from autopar.runtime.ports.dense import odd_kind
from autopar.runtime.ports.index_bounds import IndexBounds
from autopar.runtime.ports.open_inputs import OpenInputs
from autopar.runtime.ports.ports import Arrays, check_inputs, user_inputs
from autopar.runtime.state.open_state import OpenState


class CallInputs:
    """Checks and names global inputs.

    Args:
        program: What the rank runs, with its own inputs and outputs.
        serial: The program for one device, which says what indices may be.
        sized: The rank at any sizes.
        open_state: The sizes of the state that calls leave.
        processes: How many ranks there are.

    Attributes:
        names: The name of each input by its label.
    """

    def __init__(
        self,
        program: Program,
        serial: Program,
        sized: SizedRank,
        open_state: OpenState,
        processes: int,
    ) -> None:
        self._open = OpenInputs(program)
        self._sized = sized
        self._open_state = open_state
        self._processes = processes
        self._bounds = IndexBounds(serial)
        self.names = {port.user_label: port.name for port in user_inputs(program)}

    def checked(self, given: Arrays) -> tuple[Sized, dict[str, Tensor]]:
        """Returns the rank at the sizes of global inputs, and these by value name.

        Raises:
            InvalidInputError: If they don't fit the program. Says so if they look like a part of
                global ones.
        """
        here = self._sized.at(self._open_state.at(self._open.sizes(given)))
        try:
            tensors = check_inputs(here.program, given)
        except InvalidInputError as error:
            if not self._looks_like_a_part(here.program, given):
                raise
            raise InvalidInputError(f"{error}\nevery rank needs the global batch") from None
        self._bounds.check(tensors, here.sizes)
        here.writing_back.check(tensors)
        return here, tensors

    def by_label(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns what was checked by label."""
        return {label: tensors[name] for label, name in self.names.items() if name in tensors}

    def _looks_like_a_part(self, program: Program, given: Arrays) -> bool:
        known = {port.user_label: port for port in user_inputs(program)}
        names = [name for name in known.keys() & given.keys() if not odd_kind(given[name])]
        shapes = [getattr(given[name], "shape", ()) for name in names]
        wanted = [known[name].known_shape for name in names]
        return looks_like_a_part(shapes, wanted, self._processes)
