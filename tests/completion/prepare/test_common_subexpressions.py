"""Equal moves of one value are made once."""

from __future__ import annotations

from autopar.completion.prepare.common_subexpressions import share_moves
from autopar.ir.program import Function
from tests.completion.networks import Network


def kinds(function: Function) -> list[str]:
    return [op.kind.split(".")[1] for op in function.ops]


def test_equal_views_are_one() -> None:
    net = Network()
    x = net.input("x", 2, 6, 8)
    outs = [net.mm(net.view(x, 12, 8), net.weight(name, 8, 8)) for name in "qkv"]
    program = net.program(*outs)
    shared = share_moves(program.main)
    assert kinds(shared) == ["view", "mm", "mm", "mm"]
    assert {op.arg("self") for op in shared.ops[1:]} == {shared.ops[1].arg("self")}
    assert len(shared.values) == len(program.main.values) - 2


def test_views_of_equal_views_are_one() -> None:
    net = Network()
    x = net.input("x", 4, 6)
    first, second = (net.permute(net.view(x, 6, 4), 1, 0) for _ in range(2))
    shared = share_moves(net.program(net.add(first, second)).main)
    assert kinds(shared) == ["view", "permute", "add"]


def test_what_is_returned_or_pinned_stays() -> None:
    net = Network()
    x = net.input("x", 4, 6)
    views = [net.view(x, 24) for _ in range(2)]
    function = net.program(*views).main
    assert share_moves(function) is function


def test_other_arguments_and_computations_stay() -> None:
    net = Network()
    x = net.input("x", 4, 6)
    values = [net.view(x, 24), net.view(net.relu(x), 24), net.view(net.relu(x), 24)]
    function = net.program(net.add(net.add(values[0], values[1]), values[2])).main
    assert share_moves(function) is function
