"""Refuses models that read tensors which an earlier call left in plain attributes.

A program keeps buffers from call to call and nothing else. Tracing runs `forward` several times, so
what one run leaves is replaced for the next one by what can't be read. What is only noted, as the
last attention weights, is overwritten unread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from torch import Tensor, nn

from autopar.frontend.torch.unreadable import Unreadable
from autopar.ir.errors import InvalidInputError

DEPTH = 4
"""How far tensors are looked for in containers and objects that are attributes."""


class Leftovers:
    """The tensors that a module and those within it hold besides parameters and buffers.

    Args:
        model: The module, before `forward` ran.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.known = {id(slot.value): slot.value for slot in _slots(model)}

    def forbid(self) -> None:
        """Replaces the tensors that a run of `forward` left by ones that can't be read."""
        for slot in list(_slots(self.model)):
            if id(slot.value) not in self.known:
                slot.container[slot.key] = _Leftover(slot.place)


class _Slot(NamedTuple):
    """Where a tensor is held: under a key of a container, or in a tuple that is there."""

    value: Tensor
    place: str
    container: Any
    key: Any


def _slots(model: nn.Module) -> Iterator[_Slot]:
    seen: set[int] = set()
    for name, module in model.named_modules():
        held = vars(module)
        for attribute in held.keys() - _OWN:
            place = f"{name}.{attribute}" if name else attribute
            yield from _found(_Slot(held[attribute], place, held, attribute), seen, DEPTH)


_OWN = frozenset(vars(nn.Module()))
"""Attributes that every module has, its parameters and buffers among them."""

_OTHER = (nn.Module, ModuleType, type)


def _found(slot: _Slot, seen: set[int], depth: int) -> Iterator[_Slot]:
    value: Any = slot.value
    if isinstance(value, Tensor):
        yield slot
    elif depth and id(value) not in seen and not isinstance(value, _OTHER) and not callable(value):
        seen.add(id(value))
        if isinstance(value, tuple):
            for item in value:
                yield from _found(slot._replace(value=item), seen, depth - 1)
            return
        container = value if isinstance(value, (list, dict)) else getattr(value, "__dict__", {})
        keys: Sequence[Any] = (
            range(len(container)) if isinstance(container, list) else list(container)
        )
        for key in keys:
            yield from _found(_Slot(container[key], slot.place, container, key), seen, depth - 1)


class _Leftover(Unreadable):
    """Stands for a tensor that an earlier run left.

    Args:
        place: The attribute that holds it.
    """

    def __init__(self, place: str) -> None:
        self.__dict__["place"] = place

    def refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Raises what is wrong with the model.

        Raises:
            InvalidInputError: Always.
        """
        raise InvalidInputError(
            f"forward reads what an earlier call left in the attribute {self.place!r}; a program"
            " keeps only buffers from call to call: register it with register_buffer, in its final"
            " shape, and write into it (a table that the first call makes is there from the"
            " beginning if the model is called once before it is compiled)"
        )
