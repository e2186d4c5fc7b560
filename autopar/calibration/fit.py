"""Fit: latency and time per byte from measured seconds, per collective.

The seconds of an algorithm are linear in the link's alpha and beta (`autopar.cost.algorithms`).
Which algorithm a size takes depends on these again, so fitting and choosing alternate. Residuals
are relative, since times span orders of magnitude. Their absolute values are what is minimized, by
least squares reweighted (Schlossmacher, 1973), so that a sample that was disturbed counts little.

Where much is disturbed, the fit may want a latency of nothing, or bytes that take no time. The one
is at least half of what the smallest messages took at best, which hardly carry anything; the other
half of what the largest ones took beyond that.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autopar.cost.algorithms import KINDS, POINT_TO_POINT, Ways
from autopar.cost.links import LinkLevel

ROUNDS = 20
"""More than choices and weights needed to settle on any sample."""

LEAST_ALPHA, LEAST_BETA = 1e-7, 1e-13
"""Below these is no link between processes: 100 ns, in which light goes 30 m, and 10 TB/s."""


@dataclass(frozen=True)
class LinkSample:
    """One measured collective.

    Attributes:
        kind: A name of `autopar.cost.algorithms.KINDS`, or `POINT_TO_POINT`.
        members: How many took part.
        nbytes: As `CommunicationModel` counts them: of the full tensor.
        seconds: The median of several runs, on the slowest rank.
    """

    kind: str
    members: int
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class Fit:
    """What explains some samples best.

    Attributes:
        alpha_seconds: Latency.
        beta_seconds_per_byte: Time per byte.
        typical_error: The median of |predicted - measured| / measured.
        samples: How many there were.
    """

    alpha_seconds: float
    beta_seconds_per_byte: float
    typical_error: float
    samples: int


def fit_link(samples: Sequence[LinkSample]) -> tuple[Fit, Mapping[str, Fit]]:
    """Returns the fit of a level of links over all collectives, and that of each of them.

    Args:
        samples: Of one level.
    """
    kinds = dict.fromkeys(sample.kind for sample in samples)
    by_kind = {
        kind: fit_samples([sample for sample in samples if sample.kind == kind]) for kind in kinds
    }
    return fit_samples(samples), by_kind


def fit_samples(samples: Sequence[LinkSample]) -> Fit:
    """Returns the alpha and beta that explain samples best."""
    weights = [1.0] * len(samples)
    alpha, beta = 1e-6, 1e-12
    limits = _limits(samples)
    for _ in range(ROUNDS):
        rows = [_coefficients(sample, alpha, beta) for sample in samples]
        alpha, beta = _least_squares(samples, rows, weights, limits)
        errors = [_error(s, row, alpha, beta) for s, row in zip(samples, rows, strict=True)]
        weights = [1 / max(error, 1e-3) for error in errors]
    predicted = [_seconds(sample, alpha, beta) for sample in samples]
    errors = [
        abs(seconds - sample.seconds) / sample.seconds
        for sample, seconds in zip(samples, predicted, strict=True)
    ]
    return Fit(alpha, beta, statistics.median(errors), len(samples))


def _limits(samples: Sequence[LinkSample]) -> tuple[float, float]:
    """Returns the alpha and beta that are small enough to be exceeded by any link that made these.

    Half of what explains the smallest messages alone, and half of what then explains the largest.
    """
    sizes = [sample.nbytes for sample in samples]
    small, large = (
        [each for each in samples if each.nbytes == size] for size in (min(sizes), max(sizes))
    )
    latency = min(each.seconds / _coefficients(each, 1.0, 0.0)[0] for each in small)
    per_byte = []
    for each in large:
        steps, nbytes = _coefficients(each, 0.0, 1.0)
        per_byte.append((each.seconds - steps * latency) / nbytes)
    return max(LEAST_ALPHA, latency / 2), max(LEAST_BETA, min(per_byte) / 2)


def _ways(sample: LinkSample, alpha: float, beta: float) -> Ways:
    link = LinkLevel("", sample.members, alpha, beta)
    if sample.kind == POINT_TO_POINT:
        return ((alpha + sample.nbytes * beta, "direct"),)
    return KINDS[sample.kind][0](link, sample.members, sample.nbytes)


def _seconds(sample: LinkSample, alpha: float, beta: float) -> float:
    return min(_ways(sample, alpha, beta))[0]


def _coefficients(sample: LinkSample, alpha: float, beta: float) -> tuple[float, float]:
    """Returns what alpha and beta are multiplied by in the algorithm that is cheapest."""
    ways = _ways(sample, alpha, beta)
    at = ways.index(min(ways))
    return _ways(sample, 1.0, 0.0)[at][0], _ways(sample, 0.0, 1.0)[at][0]


def _error(sample: LinkSample, row: tuple[float, float], alpha: float, beta: float) -> float:
    return abs(row[0] * alpha + row[1] * beta - sample.seconds) / sample.seconds


def _least_squares(
    samples: Sequence[LinkSample],
    rows: Sequence[tuple[float, float]],
    weights: Sequence[float],
    limits: tuple[float, float],
) -> tuple[float, float]:
    """Returns the alpha and beta, above limits, with the least weighted relative residuals."""
    aa = ab = bb = ay = by = 0.0
    for sample, (a, b), weight in zip(samples, rows, weights, strict=True):
        scaled = weight / sample.seconds**2
        aa, ab, bb = aa + scaled * a * a, ab + scaled * a * b, bb + scaled * b * b
        ay, by = ay + scaled * a * sample.seconds, by + scaled * b * sample.seconds
    determinant = aa * bb - ab * ab
    if determinant > 1e-12 * aa * bb:
        alpha, beta = (ay * bb - by * ab) / determinant, (by * aa - ay * ab) / determinant
        if alpha >= limits[0] and beta >= limits[1]:
            return alpha, beta
    # Otherwise the best has one of them at its limit.
    by_alpha = max(limits[0], (ay - limits[1] * ab) / aa)
    by_beta = max(limits[1], (by - limits[0] * ab) / bb if bb else 0.0)
    at_limits = (by_alpha, limits[1]), (limits[0], by_beta)

    def residual(found: tuple[float, float]) -> float:
        alpha, beta = found
        return aa * alpha**2 + 2 * ab * alpha * beta + bb * beta**2 - 2 * (ay * alpha + by * beta)

    return min(at_limits, key=residual)
