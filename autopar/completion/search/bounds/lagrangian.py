"""Lagrangian bound: what every plan takes at least that fits into a limit of memory.

A plan that fits takes, with a price of the bytes that it holds, no more than its seconds and the
price of the limit. So for any price, the least seconds and price of all plans, less the price of
the limit, are a bound of the seconds of those that fit (Geoffrion, "Lagrangean relaxation for
integer programming", 1974). Only such bytes have a price here as are there whatever is computed
again; that takes seconds, too, so the bound is also one of programs that do.

Of MiniLM within 30 MiB on 2x4 it leaves 7.3% open, and the bound without a limit 39.1% (both are in
the summary of a compilation).
"""

from __future__ import annotations

from collections.abc import Sequence

from autopar.completion.search.fastest import Search
from autopar.completion.search.network.memory_price import MemoryPrice

MOST_PRICES, FEWER_PRICES = 8, 3
"""How many prices are tried at most, also of large programs."""

STEP = 2.0
"""By how much prices differ."""


def least_seconds_within(
    searches: Sequence[Search], memory_bytes: int, seconds: float, byte_seconds: float
) -> float:
    """Returns seconds that every plan takes at least that holds no more than a limit.

    Args:
        searches: Of the program, also with its weights taken apart.
        memory_bytes: The limit.
        seconds: Those of a plan that fits.
        byte_seconds: About what a byte more of memory saves.
    """

    def bound(price: float) -> float:
        memory_price = MemoryPrice.of_all(price, is_sure=True)
        above = seconds + price * memory_bytes
        least = min(search.bound_at(memory_price, above) for search in searches)
        return least - price * memory_bytes

    most = MOST_PRICES if all(search.learned.is_small for search in searches) else FEWER_PRICES
    bounds = {0: bound(byte_seconds)}
    for way in (1, -1):
        exponent = way
        while len(bounds) < most and not searches[0].watch.is_late:
            bounds[exponent] = bound(byte_seconds * STEP**exponent)
            if bounds[exponent] <= bounds[exponent - way]:
                break
            exponent += way
        if exponent != way:
            # Where it rises one way, it falls the other way.
            break
    return max(bounds.values())
