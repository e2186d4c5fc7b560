"""Reads pickles without running anything: objects become records of what they were made of.

Names in a pickle are looked up nowhere. Each that is allowed becomes a class of its own, made for
this one reading, whose objects keep their arguments and their state and do nothing else.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Container
from typing import Any, ClassVar


class NotInert(Exception):
    """A pickle asks for something else than is allowed, or isn't one. Says what."""


class Inert:
    """What stands for an object of a pickle.

    Attributes:
        name: Module and name of its class, or of the function that would have made it.
        made_of: The arguments.
        state: What it was to be filled with; None if nothing.
    """

    name: ClassVar[str] = ""
    made_of: tuple[Any, ...]
    state: Any

    def __new__(cls, *made_of: Any, **named: Any) -> Inert:
        """Keeps the arguments by position."""
        del named
        self = super().__new__(cls)
        self.made_of, self.state = made_of, None
        return self

    def __init__(self, *made_of: Any, **named: Any) -> None:
        """Does nothing."""

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Does nothing: what dictionaries of other kinds hold isn't read."""


def read_inert(data: bytes, allowed: Container[str]) -> Any:
    """Returns what a pickle holds: plain values, and an `Inert` for each object.

    Args:
        data: The pickle.
        allowed: The names that may occur, as `torch.Size`.

    Raises:
        NotInert: If it has other names, or can't be read, or would take more memory than it has
            bytes.
    """
    _check_sizes(data)
    try:
        return _Reader(data, allowed).load()
    except NotInert:
        raise
    except Exception as error:
        # The interpreter raises whatever a damaged pickle runs into.
        raise NotInert(f"it is no pickle: {str(error) or type(error).__name__}") from error


class _Reader(pickle.Unpickler):
    def __init__(self, data: bytes, allowed: Container[str]) -> None:
        super().__init__(io.BytesIO(data))
        self._allowed = allowed
        self._classes: dict[str, type[Inert]] = {}

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Returns the class that stands for a name."""
        name = f"{module_name}.{global_name}"
        if name not in self._allowed:
            raise NotInert(f"it asks for {name}, which isn't read: that could run code")
        if name not in self._classes:
            self._classes[name] = type("Record", (Inert,), {"name": name})
        return self._classes[name]

    def persistent_load(self, pid: Any) -> Any:
        """Returns what stands for an object that is elsewhere: its identity."""
        return pid


def _check_sizes(data: bytes) -> None:
    """Refuses sizes that the interpreter would make room for before it looks what is there."""
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if "PUT" in opcode.name and int(argument or 0) > len(data):
                raise NotInert("it is no pickle: it numbers more objects than it has bytes")
    except NotInert:
        raise
    except Exception as error:
        raise NotInert(f"it is no pickle: {str(error) or type(error).__name__}") from error
