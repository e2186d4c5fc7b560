"""Views of parameters are taken in each phase that reads them."""

from __future__ import annotations

from dataclasses import replace

from autopar.completion.prepare.renew_views import renew_views
from autopar.ir.program import Function
from tests.completion.networks import Network


def phased(function: Function, *phases: str) -> Function:
    """Returns a function with a phase for each of its ops."""
    ops = (replace(op, phase=phase) for op, phase in zip(function.ops, phases, strict=True))
    return replace(function, ops=tuple(ops))


def summary(function: Function) -> list[str]:
    """Returns phase, kind and operands of each op."""
    return [f"{op.phase} {op.kind.split('.')[1]} {' '.join(op.operands)}" for op in function.ops]


def test_a_view_of_a_parameter_is_taken_again_in_the_backward_pass() -> None:
    net = Network()
    x = net.input("x", 8, 8)
    view = net.permute(net.weight("w", 8, 8), 1, 0)
    first = net.mm(x, view)
    main = net.program(net.mm(first, view)).main
    renewed = renew_views(phased(main, "forward", "forward", "backward"))
    assert summary(renewed) == [
        "forward permute w",
        f"forward mm x {view}",
        "backward permute w",
        f"backward mm {first} {view}.backward",
    ]


def test_activations_are_kept() -> None:
    net = Network()
    view = net.permute(net.input("x", 8, 8), 1, 0)
    first = net.mm(view, net.weight("w", 8, 8))
    main = net.program(net.mm(view, first)).main
    phases = "forward", "forward", "backward"
    assert renew_views(phased(main, *phases)) == phased(main, *phases)


def test_without_phases_nothing_changes() -> None:
    net = Network()
    view = net.permute(net.weight("w", 8, 8), 1, 0)
    main = net.program(net.mm(net.mm(net.input("x", 8, 8), view), view)).main
    assert renew_views(main) is main
