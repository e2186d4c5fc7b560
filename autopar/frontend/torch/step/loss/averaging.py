"""Averaging: how the losses of microbatches make the loss of their batch.

Means are weighted by rows, sums are added up, and what is divided by a number of the batch, as how
many targets count, is divided by that of all microbatches. What a loss is made of is read off its
captured graph. Where that doesn't say, the losses of microbatches are weighted by their rows, as by
a loop that accumulates gradients, and the user is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import fx

from autopar.base.errors import InvalidInputError
from autopar.frontend.lower.source_line import source_line
from autopar.frontend.torch.capture.joint import Joint
from autopar.frontend.torch.step.loss.additive import Sum, power_of_rows
from autopar.frontend.torch.step.loss.denominators import (
    Uncounted,
    divisor,
    is_counted,
    total_of,
    with_denominators,
)
from autopar.frontend.torch.step.loss.terms import Kind, Term, Terms, terms_of
from autopar.frontend.torch.step.microbatches import Microbatches, Rows
from autopar.frontend.torch.step.recipe import BATCH, MICROBATCH
from autopar.ir.builds.manifest import ReportEntry

PER_MICROBATCH = "per microbatch"
"""The category of entries about losses that are those of microbatches."""

_WHY = {
    "mean": "it is another one for other microbatches",
    "steady": "it is another one for other microbatches",
    "other": "what it is divided by can't be read off its code",
    "counted": "how many targets count isn't decided by the batch alone, or the sum is in float16",
    "ratio": "what it is divided by, or a part of it, isn't made of each row by itself",
    "sum": "its elements aren't made of each row by itself, or it is added to means",
}
"""Why a term of the loss is that of microbatches, by its kind."""


@dataclass(frozen=True)
class Averaged:
    """How the losses of microbatches are put together.

    Attributes:
        joints: The captured graphs, by the rows of their microbatches.
        microbatches: How the batch is cut, with the weights of its microbatches.
        report: Which terms of the loss are those of microbatches.
    """

    joints: Mapping[Rows, Joint]
    microbatches: Microbatches
    report: tuple[ReportEntry, ...] = ()


def averaged(
    joints: Mapping[Rows, Joint],
    microbatches: Microbatches,
    wanted: str,
    more: Callable[[], Joint],
) -> Averaged:
    """Returns how the losses of microbatches are put together.

    Args:
        joints: The captured graphs, by the rows of their microbatches, which are changed.
        microbatches: How the batch is cut.
        wanted: One of `LOSS_DENOMINATORS`.
        more: Captures the first microbatch with one row more.

    Raises:
        InvalidInputError: If the denominators of the whole batch are wanted, and there are terms
            of the loss for which they can't be told.
    """
    first = next(iter(joints.values()))
    if wanted == MICROBATCH or not first.tangents or not microbatches.bounds:
        return Averaged(joints, microbatches)
    loss = _Loss(joints, more)
    kinds = loss.kinds()
    terms = next(iter(loss.terms.values()))
    if wanted == BATCH and "other" in kinds:
        raise InvalidInputError(_refusal(terms[kinds.index("other")]))
    if kinds and set(kinds) == {"sum"}:
        count = len(microbatches.rows)
        return Averaged(joints, replace(microbatches, weights=(1.0,) * count))
    pairs = zip(terms, kinds, strict=True)
    report = tuple(_entry(term) for term, kind in pairs if kind == "other")
    return Averaged(loss.divided(kinds), microbatches, report)


class _Loss:
    """The terms of a loss in captured graphs for microbatches of several sizes."""

    def __init__(self, joints: Mapping[Rows, Joint], more: Callable[[], Joint]) -> None:
        self._joints = joints
        self._more = more
        self.terms = {rows: terms_of(joint) for rows, joint in joints.items()}

    def kinds(self) -> list[Kind]:
        """Returns what each term is, `other` for what has no known denominator."""
        first, *others = ([term.kind for term in terms] for terms in self.terms.values())
        if any(kinds != first for kinds in others):
            return ["other"] * len(first)
        probe = self._probe() if {"sum", "ratio"}.intersection(first) else None
        found = [self._kind(at, probe) for at in range(len(first))]
        if len({*found}) > 1:  # Weights can't be those of sums and of means.
            found = ["other" if kind == "sum" else kind for kind in found]
        return found

    def divided(self, kinds: Sequence[Kind]) -> dict[Rows, Joint]:
        """Returns the captured graphs with the denominators of the whole batch."""
        at = [number for number, kind in enumerate(kinds) if kind in ("counted", "ratio")]
        return {
            rows: with_denominators(joint, [self.terms[rows][number] for number in at])
            for rows, joint in self._joints.items()
        }

    def _probe(self) -> _Probe | None:
        joint = next(iter(self._joints.values()))
        try:
            return _Probe(joint, self._more())
        except InvalidInputError:
            return None

    def _kind(self, at: int, probe: _Probe | None) -> Kind:
        terms = [each[at] for each in self.terms.values()]
        kind = terms[0].kind
        if kind in ("sum", "ratio"):
            kind = "other" if probe is None else probe.kind(at)
        if kind in ("counted", "ratio"):
            pairs = zip(self._joints.values(), terms, strict=True)
            return kind if all(is_counted(joint, term) for joint, term in pairs) else "other"
        return kind


class _Probe:
    """A captured graph beside that of the same code for one row more."""

    def __init__(self, joint: Joint, more: Joint) -> None:
        self._joints = joint, more
        self._terms = Terms(joint), Terms(more)
        self._found = terms_of(joint), terms_of(more)

    def kind(self, at: int) -> Kind:
        """Returns what a term is that adds something up."""
        ours, theirs = self._found
        if len(ours) != len(theirs) or ours[at].kind != theirs[at].kind:
            return "other"
        pair = ours[at], theirs[at]
        if ours[at].kind == "ratio":
            return "ratio" if all(power == 1 for power in self._powers_of_ratio(*pair)) else "other"
        power = self._power([each.node for each in pair], [j.outputs[0] for j in self._joints])
        kinds: dict[int | None, Kind] = {1: "sum", 0: "mean"}
        return kinds.get(power, "other")

    def _powers_of_ratio(self, one: Term, other: Term) -> Iterator[int | None]:
        above = [
            [each.node for each in terms.of(term.node.args[0])]
            for terms, term in zip(self._terms, (one, other), strict=True)
        ]
        for nodes in zip(*above, strict=True):
            yield self._power(nodes, [one.node, other.node])
        try:
            below = [total_of(divisor(term))[0] for term in (one, other)]
        except Uncounted:
            yield None
        else:
            yield self._power(below, [divisor(one), divisor(other)])

    def _power(self, nodes: Sequence[fx.Node], ends: Sequence[fx.Node]) -> int | None:
        ours, theirs = (Sum(*each) for each in zip(self._joints, nodes, ends, strict=True))
        return power_of_rows(ours, theirs)


def _entry(term: Term) -> ReportEntry:
    loc = source_line(term.node)
    return ReportEntry(PER_MICROBATCH, str(loc), _WHY[term.kind], loc)


def _refusal(term: Term) -> str:
    return (
        f"loss_denominator='batch': {source_line(term.node)}: this term of the loss can only be"
        f" that of microbatches: {_WHY[term.kind]}; with 'auto' it is, and the rest of the loss is"
        " that of the batch"
    )
