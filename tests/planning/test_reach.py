"""Which elements iterations have: what is joined or read covers all that it is made of."""

from __future__ import annotations

import random

import pytest

from autopar.ir.rules.window import Window
from autopar.planning.chunk.reach import Reach


def elements(reach: Reach, iteration: int) -> set[int]:
    start = reach.start(iteration)
    return set(range(start, start + reach.length))


def drawn(chance: random.Random, inner: int, block: int) -> Reach:
    offset, low, high = (chance.randint(-4, inner) for _ in range(3))
    first = min(low, high)
    reach = Reach(block, offset - 4, first, max(low, high), chance.randint(1, inner))
    return reach.within(inner)


@pytest.mark.parametrize("seed", range(200))
def test_covers(seed: int) -> None:
    chance = random.Random(seed)
    inner, block = chance.randint(4, 30), chance.randint(1, 6)
    one, other = drawn(chance, inner, block), drawn(chance, inner, block)
    joined = one.joined(other, inner)
    window = Window("y", chance.choice([1, 2, 3]), chance.randint(-3, 0), chance.randint(1, 4))
    read = one.read(window)
    size = chance.randint(max(1, inner - 3), inner * window.stride)
    held = read.within(size)
    minor = chance.choice([each for each in (1, 2, 3) if block % each == 0])
    for iteration in range(-(-inner // block)):
        assert elements(one, iteration) | elements(other, iteration) <= elements(joined, iteration)
        assert elements(joined, iteration) <= set(range(inner))
        wanted = {
            index * window.stride + window.start + at
            for index in elements(one, iteration)
            for at in range(window.length)
        }
        assert wanted <= elements(read, iteration)
        assert elements(read, iteration) & set(range(size)) <= elements(held, iteration)
        assert elements(held, iteration) <= set(range(size))
        assert {each // minor for each in elements(one, iteration)} <= elements(
            one.over(minor), iteration
        )
