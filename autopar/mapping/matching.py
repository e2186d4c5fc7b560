"""Whether collectives that meet are one and the same, and whether their sizes fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from autopar.ir.collectives import (
    ARRIVED,
    BLOCK,
    DECLARED,
    HELD,
    SENT,
    WHOLE,
    WINDOW,
    declared,
)
from autopar.ir.deployment import Deployment
from autopar.ir.dims import block_extent
from autopar.ir.expr.arrays import Ints, evaluate_on_ranks
from autopar.ir.expr.expression import IntExpr, is_open
from autopar.ir.program import Arg
from autopar.ir.rules.numbering import Numbering
from autopar.ir.rules.window import Window
from autopar.mapping.classes import RankClass
from autopar.mapping.collectives import Collective
from autopar.mapping.membership import Membership, at_ranks, rank_text
from autopar.mapping.open_values import OpenValues, has_open

Party = tuple[RankClass, Collective]
"""One class and the collective that its ranks are in."""


@dataclass(frozen=True)
class Meeting:
    """Collectives that fire together in the lists of one group, seen from all ranks at once.

    Attributes:
        group: The group.
        ranks: Everyone who takes part, ascending.
        brings: Size of each dimension of the tensor that a rank brings, on every rank. A size that
            is the same everywhere is an array of one element; so below.
        gets: Size of each dimension of the tensor that a rank gets.
        settings: The integer arguments on which all members must agree.
        others: All other arguments.
        open: What sizes stand for that are open.
    """

    group: Membership
    ranks: Ints
    brings: tuple[Ints, ...]
    gets: tuple[Ints, ...]
    settings: Mapping[str, Ints]
    others: Mapping[str, Arg]
    open: OpenValues

    def dim(self, name: str) -> int:
        """Returns an argument that is a dimension, the same on all ranks."""
        return int(at_ranks(self.settings[name], self.ranks)[0])

    def block(self, size: Ints) -> Ints:
        """Returns each member's block of a dimension of this size: ceil(size / n), the last less.

        The rule is that of `autopar.ir.layout`.
        """
        if has_open(size):
            return self.open.blocks(size, self.group.size, self.group.position)
        block = -(-size // self.group.size)
        return np.clip(size - self.group.position * block, 0, block)

    def of_first(self) -> list[Ints]:
        """Returns what the first member of each list brings."""
        return [at_ranks(size, self.group.first) for size in self.brings]


Sizes = Sequence[Ints]


def _sizes(met: Meeting, kind: str) -> tuple[Sizes, Sizes]:
    """Returns the sizes of what every rank must bring, and of what it must get."""
    brings, gets = met.of_first(), met.of_first()
    for dim in declared(kind).dims:
        dim_number = met.dim(dim.name)
        whole = met.settings[dim.size] if dim.size else brings[dim_number]
        brings[dim_number] = _PARTS[dim.brings](met, whole)
        gets[dim_number] = _PARTS[dim.gets](met, whole)
    return brings, gets


def _whole(met: Meeting, size: Ints) -> Ints:
    return size


def _held(met: Meeting, size: Ints) -> Ints:
    held, at = met.settings["block"], _numbering(met).held_by(met.group.position)
    if has_open(size) or has_open(held):
        return met.open.computed(_held_open, (size, held), (_parts(met, "held"), at))
    extent: Ints = np.clip(size - at * held, 0, held)
    return extent


def _held_open(size: IntExpr, block: IntExpr, parts: int, at: int) -> IntExpr:
    return block_extent(size, block, parts, at)[1]


def _parts(met: Meeting, name: str) -> Ints:
    """Returns into how many blocks a dimension is cut that members hold, or read."""
    numbering = _numbering(met)
    axes = {"held": numbering.held, "read": numbering.read}[name]
    if not numbering.sizes:
        return met.group.size
    return np.full(1, prod(numbering.sizes[axis] for axis in axes), np.int64)


def _window(met: Meeting, size: Ints) -> Ints:
    sizes = (size, *(met.settings[name] for name in ("outputs", "outputs_block", "start")))
    if any(map(has_open, sizes)):
        return _window_open(met, sizes)
    settings, read = met.settings, met.settings["outputs_block"]
    reads = _numbering(met).read_by(met.group.position)
    count = np.clip(settings["outputs"] - reads * read, 0, read)
    edge = reads * read + np.where(settings["stride"] > 0, 0, count - 1)
    low = edge * settings["stride"] + settings["start"]
    span = (count - 1) * abs(settings["stride"]) + settings["length"]
    high = np.where(count > 0, low + span, low)
    if met.others.get("fill") == "none":
        low, high = np.clip(low, 0, size), np.clip(high, 0, size)
    extent: Ints = high - low
    return extent


def _window_open(met: Meeting, sizes: Sequence[Ints]) -> Ints:
    fill = met.others.get("fill")
    assert isinstance(fill, (int, float, str))

    def length(
        size: IntExpr,
        outputs: IntExpr,
        block: IntExpr,
        start: IntExpr,
        stride: int,
        reach: int,
        *where: int,
    ) -> IntExpr:
        extent = block_extent(outputs, block, *where)
        return Window("", stride, start, reach, fill).extent(*extent, size)[1]

    at = _numbering(met).read_by(met.group.position)
    numbers = (met.settings["stride"], met.settings["length"], _parts(met, "read"), at)
    return met.open.computed(length, sizes, numbers)


def _numbering(met: Meeting) -> Numbering:
    return Numbering(*(_integers(met.others.get(name, ())) for name in ("sizes", "held", "read")))


def _integers(arg: Arg) -> tuple[int, ...]:
    return tuple(a for a in arg if isinstance(a, int)) if isinstance(arg, tuple) else ()


def _sent(met: Meeting, size: Ints) -> Ints:
    return _moved(met, size, is_sent=True)


def _arrived(met: Meeting, size: Ints) -> Ints:
    return _moved(met, size, is_sent=False)


def _moved(met: Meeting, size: Ints, *, is_sent: bool) -> Ints:
    """Returns what members of a transfer send, or get, of its dimension: the others nothing."""
    position, senders = met.group.position, met.settings["senders"]
    block = met.settings["block" if is_sent else "arriving_block"]
    is_mine = (position < senders) == is_sent
    # Where nobody takes part, settings are 0.
    copies = np.maximum(met.settings["copies"], 1)
    number = position if is_sent else (position - senders) // copies
    if has_open(size) or has_open(block):
        return met.open.computed(_moved_open, (size, block), (number, is_mine.astype(np.int64)))
    extent: Ints = np.where(is_mine, np.clip(size - number * block, 0, block), 0)
    return extent


def _moved_open(size: IntExpr, block: IntExpr, number: int, is_mine: int) -> IntExpr:
    return block_extent(size, block, number + 1, number)[1] if is_mine else 0


_PARTS: Mapping[str, Callable[[Meeting, Ints], Ints]] = {
    WHOLE: _whole,
    BLOCK: Meeting.block,
    HELD: _held,
    WINDOW: _window,
    SENT: _sent,
    ARRIVED: _arrived,
}
"""The size of a member's part of a dimension, given the size of all of it."""


class Matcher:
    """Compares collectives of a deployment; evaluates every rank expression once."""

    def __init__(self, deployment: Deployment) -> None:
        self._world = deployment.world_size
        table = np.asarray([entry.coords for entry in deployment.ranks], np.int64)
        table = table.reshape(self._world, len(deployment.axes))
        self._coords = {axis: table[:, column] for column, axis in enumerate(deployment.axes)}
        self._values: dict[IntExpr, Ints] = {}
        self._open = OpenValues()
        self._fitting: set[object] = set()

    def problem(self, group: Membership, parties: Sequence[Party]) -> str:
        """Returns why these collectives, met in one group, don't match; "" if they do."""
        (mine, first), *others = parties
        for _, each in parties:
            if malformed := _malformed(each):
                return f"{malformed}: {each}"
        for theirs, other in others:
            if difference := _difference(first, other):
                sides = ((mine.ranks, first), (theirs.ranks, other))
                told = "".join(f"\n    {rank_text(who.tolist())}: {each}" for who, each in sides)
                return f"group {group.name!r}: {difference}{told}"
        alike = (group.name, *((who, *_sizes_of(each)) for who, each in parties))
        if alike in self._fitting:
            return ""
        problem = self._misfit(group, parties)
        if not problem:
            # The same collective in another layer needs no second look.
            self._fitting.add(alike)
        return problem

    def _misfit(self, group: Membership, parties: Sequence[Party]) -> str:
        """Returns which sizes or settings don't fit; "" if all do."""
        first = parties[0][1]
        try:
            met = self._meeting(group, parties)
        except KeyError as error:
            return f"a size depends on {error}, but ranks have only {list(self._coords)}: {first}"
        for name, values in met.settings.items():
            if problem := _compare(met, first, name, values, at_ranks(values, group.first)):
                return problem
        return _size_problem(met, first)

    def _meeting(self, group: Membership, parties: Sequence[Party]) -> Meeting:
        operands = [each.operand.shape for _, each in parties]
        results = [each.result.shape for _, each in parties]
        integers = [each.integers for _, each in parties]
        settings = {
            name: self._gathered(parties, [own[name] for own in integers]) for name in integers[0]
        }
        return Meeting(
            group,
            _everyone([who.ranks for who, _ in parties]),
            tuple(self._gathered(parties, sizes) for sizes in zip(*operands, strict=True)),
            tuple(self._gathered(parties, sizes) for sizes in zip(*results, strict=True)),
            settings,
            parties[0][1].settings,
            self._open,
        )

    def _gathered(self, parties: Sequence[Party], exprs: Sequence[IntExpr]) -> Ints:
        """Returns one array with each party's expression on its ranks."""
        if len(parties) == 1:
            return self._value(exprs[0])
        gathered = np.zeros(self._world, np.int64)
        for (who, _), expr in zip(parties, exprs, strict=True):
            gathered[who.ranks] = at_ranks(self._value(expr), who.ranks)
        return gathered

    def _value(self, expr: IntExpr) -> Ints:
        if expr not in self._values:
            is_number = isinstance(expr, int) or not is_open(expr)
            evaluate = evaluate_on_ranks if is_number else self._open.on_ranks
            self._values[expr] = evaluate(expr, self._coords)
        return self._values[expr]


def _sizes_of(each: Collective) -> tuple[object, ...]:
    """Returns all of a collective from which it follows whether sizes fit."""
    return each.op.kind, each.operand.shape, each.result.shape, tuple(each.settings.items())


def _everyone(parties: Sequence[Ints]) -> Ints:
    return parties[0] if len(parties) == 1 else np.sort(np.concatenate(parties))


def _malformed(each: Collective) -> str:
    """Returns what is wrong with a collective by itself; "" if nothing is."""
    declaration = DECLARED.get(each.op.kind)
    if declaration is None:
        return "unknown kind of collective"
    missing = [name for name in declaration.needed if name not in each.integers]
    if missing:
        return f"argument {missing[0]} is missing or no integer"
    for name in (dim.name for dim in declaration.dims):
        dim = each.integers[name]
        if not isinstance(dim, int) or not 0 <= dim < len(each.operand.shape):
            return f"{name}={dim} is no dimension of a tensor with {len(each.operand.shape)}"
    if len(each.result.shape) != len(each.operand.shape):
        return f"it brings {len(each.operand.shape)} dimensions and gets {len(each.result.shape)}"
    return ""


def _difference(one: Collective, other: Collective) -> str:
    """Returns what differs between two collectives, sizes aside; "" if nothing does."""
    if one is other:
        return ""
    if one.op.kind != other.op.kind:
        return "collectives of different kinds meet"
    if one.operand.dtype != other.operand.dtype:
        return f"dtypes differ: {one.operand.dtype} and {other.operand.dtype}"
    counts = [(len(each.operand.shape), len(each.result.shape)) for each in (one, other)]
    if counts[0] != counts[1]:
        return f"numbers of dimensions differ: {counts[0][0]} and {counts[1][0]}"
    if one.settings.keys() != other.settings.keys() or one.integers.keys() != other.integers.keys():
        return f"arguments differ: {list(one.settings)} and {list(other.settings)}"
    for name, arg in one.settings.items():
        if name not in one.integers and arg != other.settings[name]:
            return f"{name} differs: {arg} and {other.settings[name]}"
    if (one.function, one.result.name) != (other.function, other.result.name):
        return "two different collectives meet; one side has another order or lacks one"
    return ""


def _size_problem(met: Meeting, each: Collective) -> str:
    brings, gets = _sizes(met, each.op.kind)
    for what, sizes, wanted in (("brings", met.brings, brings), ("gets", met.gets, gets)):
        for dim, (have, want) in enumerate(zip(sizes, wanted, strict=True)):
            if problem := _compare(met, each, f"what it {what} along dimension {dim}", have, want):
                return problem
    for name in declared(each.op.kind).members:
        position = met.settings[name]
        if problem := _compare(met, each, name, position, position % met.group.size):
            return problem
    return ""


def _compare(met: Meeting, each: Collective, what: str, have: Ints, want: Ints) -> str:
    """Returns a message about the ranks on which `have` is not what it must be, or ""."""
    differs = have != want
    if not differs.any():
        return ""
    wrong = met.ranks[np.broadcast_to(differs, met.group.size.shape)[met.ranks]]
    if not len(wrong):
        return ""
    rank = int(wrong[0])
    have, want = (np.broadcast_to(values, met.group.size.shape) for values in (have, want))
    members = met.group.lists[int(met.group.list_of[rank])]
    has, needs = (met.open.expr(int(values[rank])) for values in (have, want))
    return (
        f"group {met.group.name!r}: sizes differ at {rank_text(wrong.tolist())}: {what} is"
        f" {has} on rank {rank}, where {needs} fits the others of {list(members)}"
        f"\n    {each}"
    )
