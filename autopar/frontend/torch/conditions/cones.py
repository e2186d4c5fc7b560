"""Values of fake tensors: how each was made is noted, and done again for the few that matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from autopar.frontend.torch.conditions.narrowing import ExampleSizes


class Unknown(Exception):
    """A value depends on a tensor without values."""


class Drawn(Exception):
    """A value depends on random numbers, and on nothing else that can change."""


@dataclass(frozen=True)
class Made:
    """How a fake tensor was made.

    Attributes:
        func: The op.
        args, kwargs: Its arguments.
        at: Which of its results the tensor is; None if there is one.
    """

    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    at: int | None

    @property
    def operands(self) -> list[FakeTensor]:
        """The fake tensors among the arguments."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, FakeTensor)]

    @property
    def is_sized(self) -> bool:
        """Whether open sizes are among the arguments."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return any(isinstance(leaf, torch.SymInt) for leaf in leaves)

    @property
    def draws(self) -> bool:
        """Whether it depends on random numbers."""
        return torch.Tag.nondeterministic_seeded in self.func.tags


@dataclass(frozen=True)
class Known:
    """What stands behind a fake tensor.

    Attributes:
        tensor: Its value.
        varies: Whether another batch, or other weights, may change it.
    """

    tensor: Tensor
    varies: bool


ROOM = 2**30
"""Bytes of values that are kept for further questions; beyond them, each is computed anew."""


class Cones:
    """Knows how fake tensors were made, and so their values.

    Ops that write to their operands aren't followed: what they wrote to is unknown from then on.

    Args:
        sizes: The open sizes of the batch, which are as in the example.
    """

    def __init__(self, sizes: ExampleSizes) -> None:
        self._sizes = sizes
        self._made = WeakIdKeyDictionary()
        # Each that ends would take the one along that it was made of, and so all of them, in more
        # calls within one another than Python's stack has.
        self._alive: list[FakeTensor] = []
        self.holds = False
        self._known = WeakIdKeyDictionary()
        self._written: dict[int, torch.UntypedStorage] = {}
        self._room = ROOM

    def know(self, fake: Tensor, tensor: Tensor) -> None:
        """Says what stands behind a fake tensor of the batch or the model."""
        self._known[fake] = Known(tensor.detach(), varies=True)
        if fake in self._made:  # It is made of nothing.
            del self._made[fake]

    def note(self, result: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Notes what an op returned."""
        if not isinstance(func, torch._ops.OpOverload):
            return
        if func._schema.is_mutable:
            for leaf in pytree.tree_leaves((args, kwargs)):
                if isinstance(leaf, FakeTensor):
                    storage = leaf.untyped_storage()
                    self._written[storage._cdata] = storage
            return
        several = isinstance(result, (tuple, list))
        for at, tensor in enumerate(result if several else [result]):
            # What an op hands through was made before.
            old = tensor in self._made or tensor in self._known
            if isinstance(tensor, FakeTensor) and not old:
                self._made[tensor] = Made(func, args, kwargs, at if several else None)
                if self.holds:
                    self._alive.append(tensor)

    def forget(self) -> None:
        """Forgets how tensors were made."""
        self._made.clear()
        self._alive.clear()

    def made(self, fake: Tensor) -> Made | None:
        """Returns how a fake tensor was made, if that was noted."""
        found: Made | None = self._made.get(fake, None)  # type: ignore[no-untyped-call]
        return found

    def is_written(self, fake: Tensor) -> bool:
        """Whether an op wrote to the memory of a fake tensor."""
        return fake.untyped_storage()._cdata in self._written

    def value(self, tensor: Tensor) -> Known:
        """Returns what stands behind a tensor, on the CPU. What is random is drawn.

        Raises:
            Unknown: If it depends on a tensor without values.
            Drawn: If it depends on random numbers, and on nothing else that can change.
        """
        if not isinstance(tensor, FakeTensor):
            return Known(tensor, varies=False)
        order = self._needed(tensor)
        computed = {id(each) for each in order}
        readers = Counter(id(operand) for each in order for operand in self._made[each].operands)
        with plain():
            for each in order:
                found = self._known[each] = self._computed(each)
                self._room -= found.tensor.nbytes
                for operand in self._made[each].operands:
                    readers[id(operand)] -= 1
                    last = not readers[id(operand)] and id(operand) in computed
                    if last and self._room < 0 and operand in self._known:
                        self._room += self._known[operand].tensor.nbytes
                        del self._known[operand]
        found = self._known[tensor]
        return Known(self._like(tensor, found.tensor), found.varies)

    def fixed(self, tensor: Tensor) -> Tensor | None:
        """Returns the value of a tensor that no batch, weight or draw changes; None of others.

        Nothing is computed for the others.
        """
        seen: set[int] = set()
        waiting = [behind(tensor)]
        while waiting:
            each = waiting.pop()
            if id(each) in seen or not isinstance(each, FakeTensor):
                continue
            seen.add(id(each))
            known: Known | None = self._known.get(each, None)  # type: ignore[no-untyped-call]
            made = self.made(each)
            if known is not None and known.varies:
                return None
            if known is None and (made is None or made.draws or made.is_sized):
                return None
            waiting.extend(made.operands if known is None and made is not None else [])
        try:
            return self.value(behind(tensor)).tensor
        except Unknown:
            return None

    def constant(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Returns what an op makes of values that never change; None if they may."""
        try:
            known = {
                id(leaf): self.value(leaf)
                for leaf in pytree.tree_leaves((args, kwargs))
                if isinstance(leaf, Tensor)
            }
        except (Unknown, Drawn):
            return None
        sized = any(isinstance(leaf, torch.SymInt) for leaf in pytree.tree_leaves((args, kwargs)))
        if sized or any(each.varies for each in known.values()):
            return None
        args, kwargs = pytree.tree_map_only(
            Tensor, lambda leaf: known[id(leaf)].tensor, (args, kwargs)
        )
        with plain():
            return func(*args, **kwargs)

    def _needed(self, asked: FakeTensor) -> list[FakeTensor]:
        """Returns the tensors on which one depends, in the order in which they were made."""
        order: list[FakeTensor] = []
        seen: set[int] = set()
        waiting = [(asked, False)]
        varies = drawn = False
        while waiting:
            tensor, ready = waiting.pop()
            if ready:
                order.append(tensor)
            elif id(tensor) not in seen:
                seen.add(id(tensor))
                if self.is_written(tensor):
                    raise Unknown
                if tensor in self._known:
                    varies |= self._known[tensor].varies
                    continue
                made = self.made(tensor)
                if made is None:
                    raise Unknown
                drawn |= made.draws
                varies |= made.is_sized
                waiting.append((tensor, True))
                waiting.extend((operand, False) for operand in made.operands)
        if drawn and not varies:
            raise Drawn
        return order

    def _computed(self, tensor: FakeTensor) -> Known:
        made: Made = self._made[tensor]
        varies = made.draws or made.is_sized
        varies |= any(self._known[each].varies for each in made.operands)
        args, kwargs = pytree.tree_map_only(FakeTensor, self._real, (made.args, made.kwargs))
        args, kwargs = pytree.tree_map_only(torch.SymInt, self._sizes.in_example, (args, kwargs))
        result = made.func(*args, **kwargs)
        return Known(result if made.at is None else result[made.at], varies)

    def _real(self, fake: FakeTensor) -> Tensor:
        return self._like(fake, self._known[fake].tensor)

    def _like(self, fake: FakeTensor, tensor: Tensor) -> Tensor:
        """Returns a value on the CPU, in the strides that views of the fake tensor count on.

        Raises:
            Unknown: If it has no values itself.
        """
        if tensor.is_meta or isinstance(tensor, FakeTensor):
            raise Unknown
        tensor = tensor.cpu()
        strides = tuple(map(self._sizes.in_example, fake.stride()))
        if tensor.stride() == strides:
            return tensor
        with plain():
            return tensor.new_empty_strided(tensor.shape, strides).copy_(tensor)


def behind(tensor: Tensor) -> Tensor:
    """Returns the fake tensor that one stands for while writes are taken out of what is traced."""
    if isinstance(tensor, FunctionalTensor):
        torch._sync(tensor)  # type: ignore[attr-defined, no-untyped-call]
        found: Tensor = torch._from_functional_tensor(tensor.elem)
        return found
    return tensor


@contextmanager
def plain() -> Iterator[None]:
    """Computes with real tensors, and leaves the generator as it is."""
    with _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
