"""Algorithms of collectives on one level of links, with their seconds in closed form.

The alpha-beta model (Hockney, 1994): a message of N bytes takes alpha + N * beta seconds. Formulas
are those of Thakur, Rabenseifner and Gropp, *Optimization of Collective Communication Operations in
MPICH* (2005), and of Chan, Heimlich, Purkayastha and van de Geijn, *Collective communication:
theory, practice, and experience* (2007).

With p members, N bytes, the links' alpha and beta, and lg the logarithm to base 2, rounded up:

                            through a switch                          around a ring
    all_gather,             doubling: lg(p) alpha + N (p-1)/p beta    (p-1) alpha + N (p-1)/p beta
    reduce_scatter
    all_reduce              tree: lg(p) (alpha + N beta)              twice that
                            halving and doubling: twice the above, but one alpha less
    all_to_all              direct: (p-1) (alpha + N/p beta)          (p-1) (alpha + N/4 beta)
                            bruck: lg(p) (alpha + N/2 beta)
    broadcast               tree: lg(p) (alpha + N beta)              (p-1) alpha + N beta
                            scatter and gather: as halving and doubling
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autopar.cost.links import LinkLevel

POINT_TO_POINT = "point_to_point"
"""The kind of what isn't one of `KINDS`: messages between pairs."""

Ways = tuple[tuple[float, str], ...]
"""Seconds on one level of links, and the algorithm that takes them."""


def _gather_ways(link: LinkLevel, count: int, nbytes: float) -> Ways:
    """All_gather and reduce_scatter: a ring, or recursive doubling (Bruck's, or halving)."""
    alpha, moved = link.alpha_seconds, nbytes * (count - 1) / count * link.beta_seconds_per_byte
    if link.topology == "ring":
        return (((count - 1) * alpha + moved, "ring"),)
    return ((_lg(count) * alpha + moved, "doubling"),)


def _all_reduce_ways(link: LinkLevel, count: int, nbytes: float) -> Ways:
    """All_reduce: recursive doubling of whole tensors, or reduce_scatter and all_gather.

    The last step of halving and the first of doubling are between the same pairs, which exchange
    what is left at once. So reducing over all members takes no longer than over some of them after
    the others.
    """
    alpha, beta = link.alpha_seconds, link.beta_seconds_per_byte
    moved = nbytes * (count - 1) / count * beta
    if link.topology == "ring":
        return ((2 * ((count - 1) * alpha + moved), "ring"),)
    return (
        (_lg(count) * (alpha + nbytes * beta), "tree"),
        ((2 * _lg(count) - 1) * alpha + 2 * moved, "halving and doubling"),
    )


def _all_to_all_ways(link: LinkLevel, count: int, nbytes: float) -> Ways:
    """All_to_all: every pair by itself, or Bruck's algorithm.

    Around a ring a byte travels a quarter of the way on average, and takes a link at each step.
    """
    alpha, beta = link.alpha_seconds, link.beta_seconds_per_byte
    if link.topology == "ring":
        return (((count - 1) * (alpha + nbytes / min(count, 4) * beta), "ring"),)
    return (
        ((count - 1) * (alpha + nbytes / count * beta), "direct"),
        (_lg(count) * (alpha + nbytes / 2 * beta), "bruck"),
    )


def _broadcast_ways(link: LinkLevel, count: int, nbytes: float) -> Ways:
    """Broadcast: a binomial tree, or van de Geijn's scatter and all_gather."""
    alpha, beta = link.alpha_seconds, link.beta_seconds_per_byte
    if link.topology == "ring":
        return (((count - 1) * alpha + nbytes * beta, "pipeline"),)
    return (
        (_lg(count) * (alpha + nbytes * beta), "tree"),
        (2 * (_lg(count) * alpha + nbytes * (count - 1) / count * beta), "scatter and gather"),
    )


KINDS: Mapping[str, tuple[Callable[[LinkLevel, int, float], Ways], bool]] = {
    "all_gather": (_gather_ways, True),
    "reduce_scatter": (_gather_ways, True),
    "all_reduce": (_all_reduce_ways, True),
    "all_to_all": (_all_to_all_ways, False),
    "broadcast": (_broadcast_ways, False),
}
"""Per collective, its algorithms, and whether outer levels move smaller pieces."""


def _lg(count: int) -> int:
    return (count - 1).bit_length()
