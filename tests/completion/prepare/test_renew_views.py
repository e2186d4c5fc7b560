"""Views of parameters are taken in each phase that reads them."""

from __future__ import annotations

from dataclasses import replace

from autopar.completion.prepare.renew_views import renew_views
from autopar.ir.ops.loops import CAT, TAKE
from autopar.ir.program import Function, Ref
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


def test_what_a_loop_puts_together_is_not_put_together_again() -> None:
    net, loops = Network(), (("head", 2),)
    weight = net.weight("w", 8, 8)
    part = net.op(TAKE, (4, 8), "part", self=Ref(weight), trip=2, loop="head")
    cat = net.op(CAT, (8, 8), "whole", self=Ref(net.permute(part, 1, 0)), trip=2, dim=1)
    turned = net.permute(cat, 1, 0)
    main = net.program(net.mm(net.mm(net.input("x", 8, 8), turned), turned)).main
    main = phased(main, *["forward"] * 5, "backward")
    ops = [replace(op, loops=loops) if op.kind == CAT else op for op in main.ops]
    renewed = renew_views(replace(main, ops=tuple(ops)))
    (again,) = (op for op in renewed.ops if op.kind == CAT)
    assert again.loops == loops
    assert summary(renewed)[-2:] == [
        f"backward permute {cat}",
        f"backward mm {main.ops[4].results[0]} {turned}.backward",
    ]
