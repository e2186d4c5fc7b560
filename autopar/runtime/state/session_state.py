"""The state of an inference: what calls write, and the weights, as one device would have them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from autopar.base.arguments import MAPPING, expect
from autopar.base.errors import InvalidInputError
from autopar.ir.program import STORED_ROLES
from autopar.runtime.execute.ranks import Ranks, jointly
from autopar.runtime.job.messages import Messages
from autopar.runtime.ports.ports import check_present
from autopar.runtime.state.state import MODEL_ROLES, State
from autopar.runtime.state.state_file import read_state, write_state


class SessionState:
    """The state of ranks that compute a forward pass. All processes call alike.

    Args:
        ranks: Who holds it.
        written: The names of the stored inputs that calls write.
    """

    def __init__(self, ranks: Ranks, written: frozenset[str]) -> None:
        self.ranks = ranks
        self.model = State(ranks, MODEL_ROLES)
        self.written = State(ranks, STORED_ROLES, written)

    def model_state(self, everywhere: bool) -> dict[str, Tensor]:
        """Returns parameters and buffers by name; nothing on ranks that aren't to have them."""
        return self.model.by_name(everywhere)

    def put_model(self, given: Mapping[str, Any]) -> None:
        """Takes over parameters and buffers; a program need not have all that the model has.

        Raises:
            InvalidInputError: On all ranks, if names are missing, or shapes wrong on one of them,
                or they were given other values. Names all problems.
        """
        known = jointly(
            self.ranks, "load_state_dict", lambda: self._known(given), self.model.contents
        )
        with self.ranks.reported():
            self.model.put_all(known)
        self.ranks.absent.difference_update(self.model.entries)

    def _known(self, given: Mapping[str, Any]) -> dict[str, Any]:
        expect(MAPPING, state_dict=given)
        known = {name: each for name, each in given.items() if name in self.model.label_of}
        self.model.check(known, "state dict")
        return known

    def check(self) -> None:
        """Refuses to go on without state.

        Raises:
            InvalidInputError: If calls write nothing, or what they write has no values yet.
        """
        self._check_written()
        check_present(self.ranks.absent)

    def write(self, path: Path, messages: Messages) -> None:
        """Writes what calls write to a safetensors file.

        Raises:
            InvalidInputError: On all ranks, if the file can't be written.
        """
        write_state(self.written, path, messages)

    def read(self, path: str | Path) -> None:
        """Takes over what calls write from a file.

        Raises:
            InvalidInputError: On all ranks, if calls write nothing, or a rank can't read the file
                or it doesn't fit. The state is what it was then.
        """
        read_state(self.written, path, "load_state", self._check_written)
        self.ranks.absent.difference_update(self.written.entries)

    def _check_written(self) -> None:
        if not self.written.entries:
            raise InvalidInputError(
                "the program keeps no state from call to call: the model's forward writes no buffer"
            )
