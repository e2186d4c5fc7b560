"""Windows: what members read, hold and get."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.ir.rules.redistribution import Redistribution
from autopar.ir.rules.window import Piece, Window, pieces
from autopar.runtime.collectives import communication
from autopar.runtime.collectives.groups import Group


def redistributions() -> Iterator[tuple[Redistribution, int]]:
    """Yields redistributions of many kinds, with the number of members."""
    windows = [Window("y", 1, -1, 3), Window("y", 2, -3, 5), Window("y", 1, 2), Window("y", 3)]
    windows += [Window("y", 1, -4, 9), Window("y", 1, -5, 1, "wrap"), Window("y", 2, 0, 2)]
    windows += [Window("y", 1, -2, 1, "edge"), Window("y", 1, -3, 1, "none")]
    for window, size, members in itertools.product(windows, (5, 8, 12, 31), (1, 2, 3, 4, 7)):
        outputs = max(1, size // window.stride)
        yield Redistribution.over(size, outputs, members, window), members
        if window.stride == 1:
            yield Redistribution.over(size, size, members, Window("y", -1, size - 1)), members


def held(way: Redistribution, member: int) -> set[int]:
    return set(range(way.size)[member * way.block : (member + 1) * way.block])


def test_what_a_member_gets_is_what_it_reads_and_does_not_hold() -> None:
    for way, members in redistributions():
        for member in range(members):
            read = [piece for _, piece in way.pieces(member) if piece.step is not None]
            inside = {at for p in read for at in range(p.extent[0], sum(p.extent))}
            assert inside <= set(range(way.size))
            if way.window.fill in (0, "none"):
                low, high = way.interval(member)
                assert inside == set(range(max(0, low), min(high, way.size)))
                assert way.received(member) == len(inside - held(way, member))


def test_the_busiest_member_is_found_without_asking_all() -> None:
    for way, members in redistributions():
        most = max(way.received(member) for member in range(members))
        assert way.most_received() == most, (way, members)


def test_windows_that_are_blocks() -> None:
    for way, members in redistributions():
        if way.is_identity:
            for member in range(members):
                assert set(range(*way.interval(member))) == held(way, member)
    patches = Redistribution.over(12, 4, 2, Window("y", 3, 0, 3))
    assert patches.is_identity
    assert not Redistribution.over(15, 5, 2, Window("y", 3, 0, 3)).is_identity


def test_what_stands_outside() -> None:
    assert list(pieces(-2, 3, 4, 0)) == [Piece(0, 2, None), Piece(0, 3, 1)]
    assert list(pieces(2, 6, 4, "edge")) == [Piece(2, 2, 1), Piece(3, 2, 0)]
    assert list(pieces(-2, 1, 4, "reflect")) == [Piece(2, 2, -1), Piece(0, 1, 1)]
    assert list(pieces(3, 9, 4, "wrap")) == [Piece(3, 1, 1), Piece(0, 4, 1), Piece(0, 1, 1)]
    assert list(pieces(-2, 9, 4, "none")) == [Piece(0, 4, 1)]


def test_arguments_come_back() -> None:
    for way, _ in redistributions():
        again = Redistribution.of_args(dict(way.args))
        assert again.args == way.args
    with pytest.raises(InvalidInputError, match="no redistribution"):
        Redistribution.of_args({"size": 3})


def test_nothing_but_the_halo_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def record(send: list[Tensor], shapes: list[tuple[int, ...]], group: Group) -> list[Tensor]:
        sent.append(sum(len(piece) for piece in send))
        return [torch.zeros(shape) for shape in shapes]

    monkeypatch.setattr(communication, "exchanged", record)
    for way, members in redistributions():
        sent.clear()
        for member in range(members):
            group = Group("", members, member, tuple(range(members)), "gloo")
            block = torch.zeros(len(held(way, member)), 2)
            communication.redistribute(block, 0, *(value for _, value in way.args), group=group)  # type: ignore[arg-type]
        assert sum(sent) == sum(way.received(member) for member in range(members))
