"""Pieces are added before they are scattered."""

from __future__ import annotations

from autopar.annotate import apply_mesh, apply_pins, parse_mesh, parse_pin
from autopar.completion import Complete
from autopar.cost import Cluster
from tests.completion.networks import Network


def test_a_sum_of_pieces_that_its_reader_wants_split_is_scattered_once() -> None:
    """Both products leave pieces, and the sum is pinned to be split."""
    net = Network()
    x, y = net.input("x", 64, 32), net.input("y", 64, 32)
    products = [net.mm(each, net.weight(name, 32, 16)) for each, name in ((x, "a"), (y, "b"))]
    total = net.relu(net.add(*products))
    mesh = parse_mesh("tp=4")
    pins = ["x=[-1,tp]", "y=[-1,tp]", "a=[tp,-1]", "b=[tp,-1]", f"{total}=[tp,-1]"]
    program = apply_pins(net.program(total), mesh, [parse_pin(pin) for pin in pins])
    done = Complete(Cluster.load("cpu"), None)(apply_mesh(program, mesh)).main
    (added,) = (op for op in done.ops if op.kind.startswith("aten.add"))
    assert added.dist is not None
    assert [pending.operands for pending in added.dist.pending] == [(0, 1)]
    assert done.values[added.results[0]].dist == done.values[products[0]].dist
