"""Refuses models that read tensors which an earlier call left in plain attributes.

A program keeps buffers from call to call and nothing else. Tracing runs `forward` several times, so
what one run leaves is replaced for the next one by what can't be read. What is only noted, as the
last attention weights, is overwritten unread.

What is computed from nothing that changes, as a table that the first call makes, is kept instead,
with its values: the next run reads a constant, as later calls do. It must leave the same again, or
the model follows something, as a counter does, and is refused. A tensor that was there before must
be the same after the first run too, but for its dtype: code that moves a constant to the dtype of
the batch reads it in that. One that wasn't there is as later calls find it, as numbers in
attributes are: what only a first call does for the lack of it, besides making it, isn't in the
program.

So is what is computed from buffers alone that the program doesn't write, as a table of codes that
the first call normalizes: each call makes it of what the buffers are then, as the first one does.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from torch import Tensor, nn

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch.capture.fake import FakeModel
from autopar.frontend.torch.conditions.cones import behind, plain
from autopar.frontend.torch.conditions.unreadable import Unreadable
from autopar.frontend.torch.stored.formulas import Formula, same_formula
from autopar.frontend.torch.stored.tables import is_same

DEPTH = 4
"""How far tensors are looked for in containers and objects that are attributes."""


class Leftovers:
    """The tensors that a module and those within it hold besides parameters and buffers.

    Args:
        fake: The module, before `forward` ran, and its fake tensors.
    """

    def __init__(self, fake: FakeModel) -> None:
        model = self.model = fake.module
        self.answering = fake.answering
        self.stored = _unchanging(fake)
        self.trained = {id(each.fake): name for name, each in fake.stored.items()}
        self.formulas: dict[_Path, Formula] = {}
        self.made: dict[_Path, Tensor] = {}
        self.places: dict[_Path, _Slot] = {}
        self.runs = 0
        self.held = {slot.path: slot.value for slot in _slots(model)}
        self.refused: set[_Path] = set()

    def lay_out(self) -> None:
        """Makes what the run before made of buffers."""
        if not self.formulas:
            return
        tensors = {**dict(self.model.named_buffers()), **dict(self.model.named_parameters())}
        for path, formula in self.formulas.items():
            value = formula.compute(tensors.__getitem__)
            self.made[path] = behind(value)
            self.places[path].put(value)

    def refuse_written(self, written: Container[str]) -> None:
        """Refuses what is made of buffers that the program writes.

        Args:
            written: Their names.

        Raises:
            InvalidInputError: If there is one.
        """
        for path, formula in self.formulas.items():
            for name in sorted(formula.stored):
                if name in written:
                    _Leftover(path[0], f", made of {name!r}, which forward writes to").refuse()

    def settle(self) -> None:
        """Replaces what a run of `forward` left: by its values, or by what can't be read.

        Raises:
            InvalidInputError: If constants aren't those that the run before left.
        """
        self.runs += 1
        held: dict[_Path, Tensor] = {}
        slots = list(_slots(self.model))
        for path in self.formulas.keys() - {slot.path for slot in slots}:
            _Leftover(path[0]).refuse()
        for slot in slots:
            value = None if slot.path in self.refused else self._constant(slot)
            if value is None:
                if self._remade(slot):
                    slot.put(_Leftover(slot.place))
                    continue
                self.refused.add(slot.path)
                slot.put(_Leftover(slot.place, self._why(slot)))
            else:
                slot.put(value)
                held[slot.path] = value
        for path in (*held, *self.held) if self.runs > 1 else ():
            if path not in self.held or path not in held:
                _Leftover(path[0]).refuse()
        self.held = held

    def _constant(self, slot: _Slot) -> Tensor | None:
        """Returns the values of a tensor if they are, and were, always the same."""
        before = self.held.get(slot.path)
        unchanged: bool = slot.value is before
        if unchanged:
            return before
        value = self.answering.fixed(slot.value)
        if value is None or before is None:
            return value
        if self.runs == 1:
            with plain():
                before = before.to(value.dtype)
        return value if is_same(before, value) else None

    def _remade(self, slot: _Slot) -> bool:
        """Whether a tensor is made of buffers alone, and always alike."""
        if behind(slot.value) is self.made.get(slot.path, self):
            return True
        found = self.answering.formula(slot.value, self.stored)
        known = self.formulas.get(slot.path)
        if known is not None and (found is None or not same_formula(known, found)):
            _Leftover(slot.place).refuse()
        if found is None or slot.path in self.refused or (self.runs > 1 and known is None):
            return False
        self.formulas[slot.path], self.places[slot.path] = found, slot
        return True

    def _why(self, slot: _Slot) -> str:
        """Returns what else there is to say of a tensor that can't be made again."""
        found = self.answering.formula(slot.value, self.trained)
        if found is None:
            return ""
        changed = min(found.stored - set(self.stored.values()), default="")
        return f", made of {changed!r}, which training changes" if changed else ""


def _unchanging(fake: FakeModel) -> dict[int, str]:
    """Returns the names of what training doesn't change, by the identity of fake tensors."""
    return {
        id(each.fake): name
        for name, each in fake.stored.items()
        if each.role == "buffer" or not each.fake.requires_grad
    }


_Path = tuple[Any, ...]
"""Of a tensor: the attribute, and the keys and positions within."""


class _Slot(NamedTuple):
    """Where a tensor is held: under a key of a container, or in a tuple that is there."""

    value: Any
    path: _Path
    container: Any
    key: Any
    within: tuple[int, ...] = ()

    @property
    def place(self) -> str:
        """The attribute that holds it."""
        return str(self.path[0])

    def put(self, value: object) -> None:
        """Replaces the tensor."""
        if value is not self.value:
            self.container[self.key] = _with(self.container[self.key], self.within, value)


def _with(whole: Any, at: tuple[int, ...], value: object) -> Any:
    """Returns a tuple, or one within it, with another item."""
    if not at:
        return value
    items = list(whole)
    items[at[0]] = _with(items[at[0]], at[1:], value)
    return getattr(type(whole), "_make", type(whole))(items)


def _slots(model: nn.Module) -> Iterator[_Slot]:
    seen: set[int] = set()
    for name, module in model.named_modules():
        held = vars(module)
        for attribute in [each for each in held if each not in _OWN]:
            place = f"{name}.{attribute}" if name else attribute
            yield from _found(_Slot(held[attribute], (place,), held, attribute), seen, DEPTH)


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
            for at, item in enumerate(value):
                path, within = (*slot.path, at), (*slot.within, at)
                inner = slot._replace(value=item, path=path, within=within)
                yield from _found(inner, seen, depth - 1)
            return
        container = value if isinstance(value, (list, dict)) else getattr(value, "__dict__", {})
        keys: list[Any] = list(range(len(container)) if isinstance(container, list) else container)
        for key in keys:
            inner = _Slot(container[key], (*slot.path, key), container, key)
            yield from _found(inner, seen, depth - 1)


class _Leftover(Unreadable):
    """Stands for a tensor that an earlier run left.

    Args:
        place: The attribute that holds it.
        more: What else there is to say of it.
    """

    def __init__(self, place: str, more: str = "") -> None:
        self.__dict__["place"] = place
        self.__dict__["more"] = more

    def refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Raises what is wrong with the model.

        Raises:
            InvalidInputError: Always.
        """
        raise InvalidInputError(
            f"forward reads what an earlier call left in the attribute {self.place!r}{self.more}; a"
            " program keeps only buffers from call to call: register it with register_buffer, in"
            " its final shape, and write into it (a table that the first call makes is there from"
            " the beginning if the model is called once before it is compiled)"
        )
