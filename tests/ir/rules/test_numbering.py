"""Which blocks members hold and read, and from whom they get them."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from autopar.cost.reshard.redistribution import redistribution_messages
from autopar.ir.dims import block_size
from autopar.ir.rules.numbering import Numbering, permuted
from autopar.ir.rules.redistribution import Redistribution
from autopar.ir.rules.window import Window


def numberings(sizes: tuple[int, ...]) -> list[Numbering]:
    """All ways to cut by some of the axes and then by others, which use all of them together."""
    orders = [
        order
        for count in range(1, len(sizes) + 1)
        for order in itertools.permutations(range(len(sizes)), count)
    ]
    return [
        Numbering(sizes, held, read)
        for held, read in itertools.product(orders, repeat=2)
        if {*held, *read} == set(range(len(sizes)))
    ]


def test_a_plain_numbering_is_that_of_positions() -> None:
    plain = Numbering()
    assert [plain.held_by(at) for at in range(3)] == [0, 1, 2]
    assert plain.holder(2, 0) == 2


def test_blocks_are_numbered_by_coordinates() -> None:
    numbering = Numbering((2, 3), held=(1,), read=(1, 0))
    assert [numbering.held_by(at) for at in range(6)] == [0, 1, 2, 0, 1, 2]
    assert [numbering.read_by(at) for at in range(6)] == [0, 2, 4, 1, 3, 5]
    np.testing.assert_array_equal(numbering.read_by(np.arange(6)), [0, 2, 4, 1, 3, 5])


@pytest.mark.parametrize("sizes", [(2,), (2, 2), (2, 3), (2, 2, 3)], ids=str)
def test_a_permutation_takes_every_tensor_once(sizes: tuple[int, ...]) -> None:
    count = int(np.prod(sizes))
    for order in itertools.permutations(range(len(sizes))):
        found = [permuted(member, sizes, order) for member in range(count)]
        expected = np.arange(count).reshape(sizes)
        assert sorted(found) == list(range(count))
        for member, source in enumerate(found):
            shape = tuple(sizes[axis] for axis in order)
            coords = np.unravel_index(source, sizes)
            assert np.ravel_multi_index(coords, sizes) == source
            assert expected.transpose(order).shape == shape
            here = np.unravel_index(member, sizes)
            assert np.ravel_multi_index([here[axis] for axis in order], shape) == source


@pytest.mark.parametrize("sizes", [(2,), (4,), (2, 2), (2, 3), (3, 4), (2, 2, 2)], ids=str)
def test_readers_get_their_blocks_from_holders_that_take_turns(sizes: tuple[int, ...]) -> None:
    members = int(np.prod(sizes))
    for numbering in numberings(sizes):
        parts = [math.prod(sizes[a] for a in axes) for axes in (numbering.held, numbering.read)]
        for size in (1, members - 1, members, 3 * members + 1, 12):
            held, wanted = (block_size(size, count) for count in parts)
            window = Window("", fill="none")
            exchange = Redistribution(size, held, size, wanted, window, numbering)
            messages: Counter[tuple[str, int]] = Counter()
            elements: Counter[tuple[str, int]] = Counter()
            for reader in range(members):
                low, high = exchange.interval(reader)
                got: list[int] = []
                for holder, piece in exchange.pieces(reader):
                    start = numbering.held_by(holder) * held
                    assert start <= piece.start
                    assert piece.start + piece.length <= min(start + held, size)
                    got += range(piece.start, piece.start + piece.length)
                    for end in (("from", holder), ("to", reader)):
                        messages[end] += holder != reader
                        elements[end] += piece.length if holder != reader else 0
                assert got == list(range(min(low, size), min(high, size)))
            bound = redistribution_messages(
                size, held, wanted, *(members // count for count in parts)
            )
            assert max(messages.values(), default=0) <= bound.messages
            assert max(elements.values(), default=0) <= bound.elements
