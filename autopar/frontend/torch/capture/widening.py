"""Takes sizes back in that code tells apart but does the same for.

Libraries ask whether a length is 1, and then compute the same as for others. What code decides by a
size narrows it to the side of the example (see `narrowing`). Where that leaves few sizes out, as 1,
the code is captured once more with the answers for those: if the graphs are the same at that size,
it is taken in again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product

from autopar.base.errors import InvalidInputError
from autopar.frontend.lower.relations import is_implied
from autopar.frontend.torch.capture.alike import are_alike
from autopar.frontend.torch.capture.fake import FakeModel
from autopar.frontend.torch.capture.joint import Joint
from autopar.frontend.torch.conditions.narrowing import ExampleSizes, SizeDecides
from autopar.frontend.torch.refusals import Untraceable
from autopar.ir.expr.at_sizes import Sizes, as_coords
from autopar.ir.expr.given import Given

Capture = Callable[[Sizes], tuple[FakeModel, Joint]]
"""Captures code with the answers for some sizes, by name, or else for those of the example."""


def widened(fake: FakeModel, joint: Joint, capture: Capture) -> Joint:
    """Returns a captured graph whose sizes are as wide as it is right for.

    Args:
        fake: What it was captured with, of which the sizes are widened.
        joint: The graph.
        capture: Captures the same code at other sizes.

    Raises:
        Untraceable: If a size can't be all that the user said. Names the line that decides by it.
    """
    sizes = fake.answering.sizes
    before = {name: (size.least, sizes.left_out(name)) for name, size in sizes.sizes.items()}
    taken: dict[str, list[int]] = {}
    for name, (_, numbers) in before.items():
        for number in numbers:
            points = _points({**taken, name: [number]}, name)
            if not all(_is_right(joint, sizes, capture, point) for point in points):
                break
            taken.setdefault(name, []).append(number)
            sizes.take_in(name, number)
    try:
        sizes.check_said()
    except SizeDecides as error:
        raise Untraceable(str(error)) from error
    return replace(joint, narrowed=tuple(sizes.narrowed())) if taken else joint


def _points(taken: Mapping[str, list[int]], name: str) -> Iterator[Sizes]:
    """Yields sizes at which one that is to be taken in meets those that are, or none of them."""
    others = {other: [None, *numbers] for other, numbers in taken.items() if other != name}
    for chosen in product(*others.values()):
        rest = zip(others, chosen, strict=True)
        yield {name: taken[name][0], **{other: n for other, n in rest if n is not None}}


def _is_right(joint: Joint, sizes: ExampleSizes, capture: Capture, point: Sizes) -> bool:
    """Whether a graph is also that of the code at other sizes, by name."""
    try:
        fake, other = capture(point)
    except InvalidInputError:
        return False
    others = fake.answering.sizes
    return _need_no_more(sizes, others, point) and are_alike(joint, sizes, other, others, point)


def _need_no_more(sizes: ExampleSizes, others: ExampleSizes, point: Sizes) -> bool:
    """Whether what calls check for a graph is all that they would check for another one."""
    known = as_coords(point)
    given = Given(each.at(known) for each in sizes.relations)
    return all(is_implied(each.at(known), given) for each in others.relations)
