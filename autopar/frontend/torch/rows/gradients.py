"""Which tensors get a gradient, as far as that depends on parts of the code that data may skip.

Autograd's graph, of a run in which no part is skipped, tells what each tensor is made of. What a
part computes is missing where it is skipped, and with it the way to what it read. Where rows are
written into a tensor, the way to what was there before is open all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge


@dataclass(eq=False)
class Skippable:
    """A part of the code that is run whether data would skip it or not, and has no effect then.

    Attributes:
        entered: Whether it would be run, a boolean without dimensions.
        place: The user's line that decides.
        first: Autograd's number of its first op.
        last: That of the first op behind it; None while it is run.
    """

    entered: Tensor
    place: str
    first: int = 0
    last: int | None = None


@dataclass(frozen=True, eq=False)
class When:
    """Which parts must be run for something to be so.

    Attributes:
        ways: The ways in which it is: a part that must be run, and what must be so besides. It is
            always so if there are none.
        needed: The parts that must be run in each of the ways.
    """

    ways: frozenset[tuple[When, Skippable]] = frozenset()
    needed: frozenset[Skippable] = frozenset()

    def within(self, parts: Iterable[Skippable]) -> When:
        """Returns when it is so in some parts."""
        made = self
        for part in parts:
            if part not in made.needed:
                made = When(frozenset([(made, part)]), made.needed | {part})
        return made

    def either(self, other: When | None) -> When:
        """Returns when it is so, or another thing is."""
        if other is None or other is self:
            return self
        if self is ALWAYS or other is ALWAYS:
            return ALWAYS
        return When(self.ways | other.ways, self.needed & other.needed)

    def tensor(self, known: dict[When, Tensor]) -> Tensor:
        """Returns whether it is so, of what depends on some part.

        Args:
            known: The same of others, to which it is added.
        """
        if self not in known:
            ways = [
                part.entered if others is ALWAYS else others.tensor(known) & part.entered
                for others, part in sorted(self.ways, key=lambda way: way[1].first)
            ]
            known[self] = reduce(torch.logical_or, ways)
        return known[self]


ALWAYS = When()


def op_number() -> int:
    """Returns autograd's number of the next op."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def gradient_node(tensor: Tensor) -> Node | None:
    """Returns where the gradient of a tensor goes; None if it has none."""
    return get_gradient_edge(tensor).node if tensor.requires_grad else None


def gradients_reached(
    outputs: Iterable[Tensor], parts: Sequence[Skippable], kept: Mapping[Node, Node]
) -> dict[Node, When]:
    """Returns where gradients go, each with when one does.

    Args:
        outputs: What is differentiated.
        parts: The parts that data may skip.
        kept: Of tensors that rows were written into, where the gradient goes of what was there.
    """
    roots = [node for each in outputs if (node := gradient_node(each)) is not None]
    found = dict.fromkeys(roots, ALWAYS)
    inside = _parts_by_number(parts)
    for node in _in_order(roots, kept):
        when = found[node]
        within = when.within(inside.get(node._sequence_nr(), ()))
        for other in _next(node):
            found[other] = within.either(found.get(other))
        if (before := kept.get(node)) is not None:
            found[before] = when.either(found.get(before))
    return found


def _parts_by_number(parts: Sequence[Skippable]) -> dict[int, list[Skippable]]:
    """Returns the parts in which ops were run, by autograd's number of the op."""
    found: dict[int, list[Skippable]] = {}
    for part in parts:
        last = op_number() if part.last is None else part.last
        for number in range(part.first, last):
            found.setdefault(number, []).append(part)
    return found


def _next(node: Node) -> list[Node]:
    return [each for each, _ in node.next_functions if each is not None]


def _in_order(roots: Sequence[Node], kept: Mapping[Node, Node]) -> list[Node]:
    """Returns nodes, each before those that its gradient goes to."""
    done: list[Node] = []
    seen: set[Node] = set()
    waiting = [(each, False) for each in roots]
    while waiting:
        node, ready = waiting.pop()
        if ready:
            done.append(node)
        elif node not in seen:
            seen.add(node)
            waiting.append((node, True))
            further = [*_next(node), *([kept[node]] if node in kept else [])]
            waiting.extend((each, False) for each in further if each not in seen)
    return done[::-1]
