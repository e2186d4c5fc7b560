"""The state of a program as one device would have it: whole tensors by name.

Parameters and buffers have the names of the model, the optimizer's state those of torch: `exp_avg`
of a parameter. Ranks hold pieces of them; here they are put together and taken apart.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError, near_misses
from autopar.runtime.execute.ranks import Ranks
from autopar.runtime.files.digest import content_of
from autopar.runtime.kernels.table import IR_DTYPES
from autopar.runtime.ports.boxes import Box, narrowed, take
from autopar.runtime.ports.boxes import Region as Part
from autopar.runtime.ports.ports import labelled, port_box, region_of
from autopar.runtime.ports.regions import Region, regions

MODEL_ROLES = ("parameter", "buffer")
OPTIMIZER_ROLES = ("optimizer_state",)
UNSAVED_ROLES = ("state",)
"""Roles of what is kept from call to call and is in no state dict of the model."""


class Piece(NamedTuple):
    """What a rank holds of a tensor.

    Attributes:
        tensor: Its elements.
        box: Where they are in the part.
        shape: Shape of the whole tensor.
        part: The part of the whole tensor that the box is a piece of; None for all of it.
    """

    tensor: Tensor
    box: Box
    shape: tuple[int, ...]
    part: Part | None = None

    def of(self, whole: Tensor) -> Tensor:
        """Returns these elements of another tensor of the whole shape."""
        return take(narrowed(whole, self.part), self.box)

    def regions(self) -> list[Region]:
        """Returns the rectangles of the whole tensor that make up the piece."""
        if self.part is None:
            return regions(self.box)
        starts = [start for start, _ in self.part]
        return [
            region._replace(
                offsets=tuple(o + s for o, s in zip(region.offsets, starts, strict=True))
            )
            for region in regions(self.box)
        ]


Key = tuple[str | int, ...]
"""The way to an entry through nested mappings and lists: `("model", "up.weight")`."""


class Held(NamedTuple):
    """What the ranks of this process hold of a tensor of a checkpoint.

    Attributes:
        keys: All its keys: a tied parameter has several.
        dtype: Of its elements.
        shape: Of the whole tensor.
        pieces: What they hold, or what they write.
    """

    keys: tuple[Key, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: Sequence[Piece]


@dataclass(frozen=True)
class Content:
    """What a checkpoint holds, or is to be read from one.

    Attributes:
        tensors: Its tensors, in the same order on all ranks.
        values: Plain values, the same on all ranks.
    """

    tensors: Sequence[Held]
    values: Mapping[Key, Any]

    def without_pieces(self) -> Content:
        """Returns it without what ranks hold, so that it keeps no memory."""
        return Content([held._replace(pieces=()) for held in self.tensors], self.values)


def flat_key(key: Key) -> str:
    """Returns the name of an entry: its key, joined with dots."""
    return ".".join(map(str, key))


@dataclass(frozen=True)
class Entry:
    """A tensor of the state.

    Attributes:
        dtype: A name of the IR.
        shape: Its shape.
        names: All its names, the label first: a tied parameter has several.
        at: The inputs that are its parts; usually one, which is all of it.
    """

    dtype: str
    shape: tuple[int, ...]
    names: tuple[str, ...]
    at: tuple[int, ...]


class State:
    """The stored inputs of a program by label.

    Args:
        ranks: Who holds the pieces.
        roles: Which stored inputs belong to it.
        names: Those among them that do, by value name; by default all.
    """

    def __init__(
        self, ranks: Ranks, roles: Iterable[str], names: Container[str] | None = None
    ) -> None:
        self.ranks = ranks
        self._ports = ranks.programs[min(ranks.programs)].signature.inputs
        places: dict[str, list[int]] = {}
        for at, port in enumerate(self._ports):
            if port.role in roles and (names is None or port.name in names):
                places.setdefault(port.label, []).append(at)
        self.entries = {label: self._entry(label, at) for label, at in places.items()}
        self.label_of = {
            name: label for label, entry in self.entries.items() for name in entry.names
        }

    def name_of(self, label: str) -> str:
        """Returns the name of the value that is a tensor, or its first part."""
        return self._ports[self.entries[label].at[0]].name

    def name_in(self, label: str, given: Container[str]) -> str | None:
        """Returns the first of a tensor's names under which it is given; None if under none."""
        return next((name for name in self.entries[label].names if name in given), None)

    def whole(self, label: str, everywhere: bool = True) -> Tensor | None:
        """Returns a whole tensor in main memory, in memory of its own; all ranks call alike.

        Args:
            label: Which one.
            everywhere: Whether all ranks get it, or only rank 0.
        """
        found = {at: self._gathered(at, everywhere) for at in self.entries[label].at}
        parts = {at: tensor for at, tensor in found.items() if tensor is not None}
        return labelled(self._ports, parts)[label] if parts else None

    def by_name(self, everywhere: bool = True) -> dict[str, Tensor]:
        """Returns all tensors, whole, under all their names; all ranks call alike.

        Args:
            everywhere: Whether all ranks get them, or only rank 0, and the others nothing.
        """
        found = {label: self.whole(label, everywhere) for label in self.entries}
        return {
            name: tensor
            for label, tensor in found.items()
            if tensor is not None
            for name in self.entries[label].names
        }

    def contents(self, given: Mapping[str, Tensor]) -> dict[str, str]:
        """Returns what whole tensors hold, each given under one of its names, by label."""
        named = ((label, self.name_in(label, given)) for label in self.entries)
        return {label: content_of(given[name]) for label, name in named if name is not None}

    def put_all(self, given: Mapping[str, Tensor]) -> None:
        """Takes over whole tensors, each under one of its names."""
        for label in self.entries:
            name = self.name_in(label, given)
            assert name is not None
            self.put(label, given[name])

    def pieces(self, label: str) -> dict[int, tuple[Piece, ...]]:
        """Returns what each rank of this process holds of a tensor: usually one piece."""
        entry = self.entries[label]
        return {
            rank: tuple(
                Piece(
                    self.ranks.stored[rank][port.name],
                    port_box(port, {}),
                    entry.shape,
                    region_of(port),
                )
                for port in (program.signature.inputs[at] for at in entry.at)
            )
            for rank, program in self.ranks.programs.items()
        }

    def all_pieces(self, label: str) -> list[Piece]:
        """Returns what the ranks of this process hold of a tensor."""
        return [piece for pieces in self.pieces(label).values() for piece in pieces]

    def put(self, label: str, whole: Tensor) -> None:
        """Writes what the ranks of this process hold of a whole tensor into their pieces."""
        for piece in self.all_pieces(label):
            piece.tensor.copy_(piece.of(whole.detach()))

    def _entry(self, label: str, at: Sequence[int]) -> Entry:
        port = self._ports[at[0]]
        shape = port.known_shape if port.part is None else port.part.shape
        return Entry(port.dtype, shape, (label, *port.aliases), tuple(at))

    def _gathered(self, at: int, everywhere: bool) -> Tensor | None:
        name = self._ports[at].name
        held = {rank: stored[name].detach() for rank, stored in self.ranks.stored.items()}
        return self.ranks.whole("inputs", at, held, everywhere)

    def check(self, given: Mapping[str, Any], what: str) -> None:
        """Refuses tensors that aren't those of this state.

        Args:
            given: Tensors by label.
            what: What errors call them, as `state dict`.

        Raises:
            InvalidInputError: If tensors are missing or surplus, of the wrong shape, or without
                values. Names all.
        """
        missing = (label for label in self.entries if self.name_in(label, given) is None)
        problems = [f"{label!r} is missing" for label in missing]
        for name, tensor in given.items():
            if name not in self.label_of:
                problems.append(f"{name!r} is surplus{near_misses(name, self.label_of)}")
                continue
            entry = self.entries[self.label_of[name]]
            if not isinstance(tensor, Tensor) or tuple(tensor.shape) != entry.shape:
                expected = f"{entry.dtype}{list(entry.shape)}"
                problems.append(f"{name!r} is {_type(tensor)}, it must be {expected}")
            elif tensor.is_meta:
                problems.append(f"{name!r} has no values: it is on the meta device")
            elif tensor.layout != torch.strided:
                problems.append(f"{name!r} is sparse; give it as to_dense() returns it")
        if problems:
            lines = "\n".join(f"  - {problem}" for problem in problems)
            raise InvalidInputError(f"the {what} doesn't fit the program:\n{lines}")


def _type(given: Any) -> str:
    if not isinstance(given, Tensor):
        return f"a {type(given).__name__}"
    return f"{IR_DTYPES.get(given.dtype, str(given.dtype))}{list(given.shape)}"
