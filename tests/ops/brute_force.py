"""Which splits of an op are valid, found by trying all of them, and which of these its rule lacks.

Knows nothing about rules: it cuts operands along every dimension, or into summands, runs the op on
the pieces and looks how the results make up the whole. `split_run_combine` finds rules that are
wrong; this finds rules that are missing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from autopar.ir.dims import SubDim, block_size
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import OpDist, Pending
from autopar.ir.rules.distribution import consumed, produced
from autopar.ir.rules.rule import Rule
from autopar.runtime.collectives.monoids import reduce_tensors
from tests.ops.child import in_child
from tests.ops.sample import Sample, compute
from tests.ops.split_run_combine import random_pieces, tolerance_of

Placement = int | str | None
"""Of a tensor over one mesh axis: a dimension that is split, a pending reduction, or whole."""

MOST_TRIALS = 400
"""Of one sample. Beyond, only dimensions of one size are split together."""

MOST_OF_A_SIZE = 1024
"""Of dimensions of one size. Beyond, at most one operand is not as all the others."""

REFUSALS = (
    RuntimeError,
    IndexError,
    ValueError,
    TypeError,
    NotImplementedError,
    AssertionError,
)
"""What kernels raise on operands that don't fit together."""


@dataclass(frozen=True)
class Strategy:
    """A valid way to spread an op over one mesh axis.

    Attributes:
        operands: The placement of each operand.
        results: Per result, the placements that its parts may be taken for.
    """

    operands: tuple[Placement, ...]
    results: tuple[frozenset[Placement], ...]

    @property
    def is_split(self) -> bool:
        """Whether no operand is pending."""
        return not any(isinstance(place, str) for place in self.operands)

    def __str__(self) -> str:
        best = (min(places, key=_preference) for places in self.results)
        return f"{_text(self.operands)} -> {_text(best)}"


def valid_strategies(sample: Sample, *, guarded: bool = False) -> list[Strategy]:
    """Returns every strategy under which the parts make up the whole, for any number of parts.

    Args:
        sample: The op and its operands.
        guarded: Whether each trial runs in a process of its own. Some kernels trust their callers,
            and corrupt memory if operands don't fit together.
    """
    trials = list(_operand_placements(sample.tensors))
    if not guarded:
        return _least(_valid(sample, trials))
    return _least([found for trial in trials for found in _survivors(sample, trial)])


def _survivors(sample: Sample, trial: tuple[Placement, ...]) -> list[Strategy]:
    """Tries in a child process. One that fails afterwards has corrupted its memory."""
    try:
        return in_child(partial(_valid, sample, [trial])) or []
    except RuntimeError:
        return []


def _least(found: Sequence[Strategy]) -> list[Strategy]:
    """Returns the strategies without those that spread an operand for nothing."""
    by_operands = {strategy.operands: strategy for strategy in found}

    def needless(strategy: Strategy, at: int) -> bool:
        less = by_operands.get((*strategy.operands[:at], None, *strategy.operands[at + 1 :]))
        return less is not None and _same_results(less, strategy)

    return [
        strategy
        for strategy in found
        if not any(
            place is not None and needless(strategy, at)
            for at, place in enumerate(strategy.operands)
        )
    ]


def _valid(sample: Sample, trials: Sequence[tuple[Placement, ...]]) -> list[Strategy]:
    draws = [sample.tensors, *_redrawn(sample)]
    wholes = [compute(sample.kind, sample.ir_args, tensors) for tensors in draws]
    found = []
    for operands in trials:
        results = _results_under(sample, operands, draws, wholes)
        if results is not None and any(None not in places for places in results):
            found.append(Strategy(operands, results))
    return found


def missing_strategies(sample: Sample, valid: Sequence[Strategy]) -> list[Strategy]:
    """Returns the valid strategies that the op's rule doesn't have; all of them without a rule.

    One that differs from a known one in whether an operand is whole isn't missing: that both are
    valid shows that the operand doesn't matter there.
    """
    rule = sample.rule if sample.has_rule else None
    own = list(rule_strategies(rule)) if rule is not None else []
    known = [strategy for strategy in valid if any(_covers(one, strategy) for one in own)]
    return [
        strategy
        for strategy in valid
        if strategy not in known and not any(_alike(strategy, other) for other in known)
    ]


def _alike(one: Strategy, other: Strategy) -> bool:
    operands = zip(one.operands, other.operands, strict=True)
    return all(a == b or a is None or b is None for a, b in operands) and _same_results(one, other)


def _same_results(one: Strategy, other: Strategy) -> bool:
    return all(a & b for a, b in zip(one.results, other.results, strict=True))


RuleStrategy = tuple[tuple[Placement, ...], tuple[Placement, ...]]


def rule_strategies(rule: Rule) -> Iterator[RuleStrategy]:
    """Yields the placements of operands and results that a rule and its bodies allow."""
    for body in ("", *(body.name for body in rule.bodies)):
        under = rule.under(body)
        for parts in (2, 3):
            mesh = ProcessMesh.of_shape((parts,), ["a"])
            for factor in under.splittable:
                split = (SubDim(under.sizes[factor], ("a",)),)
                yield _placements(rule, OpDist(mesh, ((factor, split),), body=body))
            for row in under.linear:
                for monoid in row.monoids:
                    pending = Pending("a", monoid, tuple(sorted(row.operands)))
                    yield _placements(rule, OpDist(mesh, pending=(pending,), body=body))


def _placements(rule: Rule, dist: OpDist) -> RuleStrategy:
    operands = (consumed(rule, dist, at) for at in range(len(rule.operands)))
    results = (produced(rule, dist, at) for at in range(len(rule.results)))
    return tuple(map(_placement, operands)), tuple(map(_placement, results))


def _placement(layout: Layout) -> Placement:
    """Returns a layout as a placement; one that is strided is no placement, and named as such."""
    if layout.partial:
        return layout.partial[0][1]
    for at, dim in enumerate(layout.dims):
        if len(dim) == 1 and dim[0].axes:
            return at
        if any(sub.axes for sub in dim):
            return f"strided {at}"
    return None


def _covers(own: RuleStrategy, strategy: Strategy) -> bool:
    operands, results = own
    return operands == strategy.operands and all(
        mine in places for mine, places in zip(results, strategy.results, strict=True)
    )


def _operand_placements(tensors: Sequence[Tensor]) -> Iterator[tuple[Placement, ...]]:
    """Yields what to try: splits of some operands, or one reduction pending in some."""
    choices: list[list[Placement]] = [[None, *_split_dims(tensor)] for tensor in tensors]
    if math.prod(map(len, choices)) <= MOST_TRIALS:
        yield from _some(itertools.product(*choices))
    else:
        sizes = dict.fromkeys(size for tensor in tensors for size in tensor.shape if size > 1)
        for size in sizes:
            yield from _combinations([_dims_of(tensor, size) for tensor in tensors])
    for monoid in ("sum", "max", "min"):
        yield from _combinations([[monoid] if _defined(monoid, each) else [] for each in tensors])


def _combinations(places: Sequence[Sequence[Placement]]) -> Iterator[tuple[Placement, ...]]:
    """Yields combinations of what operands may be besides whole.

    All of them; if these are too many, those in which at most one operand isn't as all the others.
    """
    if math.prod(1 + len(each) for each in places) <= MOST_OF_A_SIZE:
        yield from _some(itertools.product(*([None, *each] for each in places)))
        return
    split = tuple(next(iter(each), None) for each in places)
    combinations = [split]
    for others in (split, (None,) * len(places)):
        for at, each in enumerate(places):
            combinations += ((*others[:at], one, *others[at + 1 :]) for one in (None, *each))
    yield from _some(dict.fromkeys(combinations))


def _some(combinations: Iterable[tuple[Placement, ...]]) -> Iterator[tuple[Placement, ...]]:
    """Yields those in which something isn't whole."""
    return (each for each in combinations if any(place is not None for place in each))


def _dims_of(tensor: Tensor, size: int) -> list[Placement]:
    return [at for at, each in enumerate(tensor.shape) if each == size]


def _split_dims(tensor: Tensor) -> list[Placement]:
    return [at for at, size in enumerate(tensor.shape) if size > 1]


def _defined(monoid: str, tensor: Tensor) -> bool:
    ordered = not tensor.is_complex() and tensor.dtype != torch.bool
    return tensor.numel() > 0 and (ordered if monoid != "sum" else tensor.is_floating_point())


def _results_under(
    sample: Sample,
    operands: Sequence[Placement],
    draws: Sequence[list[Tensor]],
    wholes: Sequence[list[Tensor]],
) -> tuple[frozenset[Placement], ...] | None:
    """Returns what each result may be taken for, in all numbers of parts; None if for nothing."""
    places: list[frozenset[Placement]] | None = None
    for tensors, whole in zip(draws, wholes, strict=True):
        for parts in _part_counts(tensors, operands):
            found = _try(sample, operands, tensors, whole, parts)
            if places is None:
                places = found
            elif found is not None:
                places = [one & other for one, other in zip(places, found, strict=True)]
            if found is None or places is None or not all(places):
                return None
    return tuple(places) if places is not None else None


def _part_counts(tensors: Sequence[Tensor], operands: Sequence[Placement]) -> list[int]:
    """Returns in how many parts to try: 2, and 3 where no part is empty then."""
    sizes = [
        tensor.shape[at]
        for tensor, at in zip(tensors, operands, strict=True)
        if isinstance(at, int)
    ]
    return [n for n in (2, 3) if all((n - 1) * block_size(size, n) < size for size in sizes)]


def _try(
    sample: Sample,
    operands: Sequence[Placement],
    tensors: Sequence[Tensor],
    whole: Sequence[Tensor],
    parts: int,
) -> list[frozenset[Placement]] | None:
    try:
        pieces = [_pieces(tensor, at, parts) for tensor, at in zip(tensors, operands, strict=True)]
        found = [
            compute(sample.kind, sample.ir_args, [piece[n] for piece in pieces])
            for n in range(parts)
        ]
    except REFUSALS:
        return None
    if any(len(results) != len(whole) for results in found):
        return None
    return [
        frozenset(_taken_for([results[at] for results in found], expected))
        for at, expected in enumerate(whole)
    ]


def _pieces(tensor: Tensor, place: Placement, parts: int) -> list[Tensor]:
    if place is None:
        return [tensor] * parts
    if isinstance(place, str):
        return random_pieces(tensor, place, parts)
    block = block_size(tensor.shape[place], parts)
    return [piece.contiguous() for piece in tensor.split(block, place)]


def _taken_for(parts: Sequence[Tensor], whole: Tensor) -> Iterator[Placement]:
    """Yields the placements under which parts of a result make up the whole."""
    if len({part.shape for part in parts}) == 1 and parts[0].shape == whole.shape:
        if all(_close(part, whole) for part in parts):
            yield None
        for monoid in _monoids(whole.dtype):
            if _close(reduce_tensors(monoid, parts), whole):
                yield monoid
    for at, size in enumerate(whole.shape):
        block = block_size(size, len(parts))
        expected = [part.shape for part in whole.split(max(1, block), at)]
        if [part.shape for part in parts] == expected and _close(torch.cat(list(parts), at), whole):
            yield at


def _monoids(dtype: torch.dtype) -> tuple[str, ...]:
    if dtype == torch.bool:
        return ("any", "all")
    return ("sum", "prod") if dtype.is_complex else ("sum", "max", "min", "prod")


def _close(found: Tensor, expected: Tensor) -> bool:
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(found, expected)
    tolerance = tolerance_of([expected])
    if expected.dtype.itemsize == 1:
        found, expected = found.float(), expected.float()
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def _redrawn(sample: Sample) -> Iterator[list[Tensor]]:
    """Yields other operands, so that no split is right by chance: shuffled, and negated.

    Without those that the op doesn't take: some want a matrix with certain properties.
    """
    generator = torch.Generator().manual_seed(1)

    def shuffled(tensor: Tensor) -> Tensor:
        order = torch.randperm(tensor.numel(), generator=generator)
        return tensor.reshape(-1)[order].reshape(tensor.shape)

    def negated(tensor: Tensor) -> Tensor:
        return 0.5 - shuffled(tensor) if tensor.is_floating_point() else shuffled(tensor)

    for change in (shuffled, negated, shuffled, shuffled):
        try:
            tensors = [change(tensor) for tensor in sample.tensors]
            results = compute(sample.kind, sample.ir_args, tensors)
        except REFUSALS:
            continue
        if [result.shape for result in results] == [result.shape for result in sample.results]:
            yield tensors


def _preference(place: Placement) -> tuple[int, str]:
    """Orders placements: a split is the most useful, then a whole result, then a sum."""
    if isinstance(place, int):
        return 0, str(place)
    return (1, "") if place is None else (2 + (place != "sum"), place)


def _text(places: Iterator[Placement] | Sequence[Placement]) -> str:
    return ", ".join(
        "whole" if place is None else f"dim {place}" if isinstance(place, int) else place
        for place in places
    )
