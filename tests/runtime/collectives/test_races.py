"""Races that lock-step execution can't show are found by what is under way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx

from autopar.base.errors import RuntimeFailure
from autopar.ir.program import Op
from autopar.ir.text import parse_program
from autopar.runtime.collectives.async_collectives import end_sum, start_sum
from autopar.runtime.collectives.groups import Group
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.stepper import step
from autopar.runtime.execute.updates import InPlace
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights
from tests.runtime.programs import deploy

GROUP = Group("all", 2, 0, (0, 1), "virtual")
NEG = torch.ops.aten.neg.default
NEG_ = torch.ops.aten.neg_.default

ONE = """
program executable

func main {
  input %x: f32[4]
  %a: f32[4] = aten.exp.default(self=%x)
  %s: f32[4] = comm.all_reduce(self=%a, monoid="sum", group="all")
  %b: f32[4] = aten.neg.default(self=%x)
  %t: f32[4] = aten.add.Tensor(self=%s, other=%b)
  return %t
}
"""


def ran(change: Callable[[fx.Graph], None]) -> Tensor:
    """Runs rank 0 of a program in which something was changed, with another one like it."""
    module = emit(parse_program(ONE), {"all": GROUP})
    change(module.graph)
    steps = step(module, (torch.tensor([0.0, 1.0, 2.0, 3.0]),))
    try:
        request = next(steps)
        steps.send(2 * request.tensor)
    except StopIteration as finished:
        (result,) = finished.value
        assert isinstance(result, Tensor)
        return result
    raise AssertionError("a second collective")


def node(graph: fx.Graph, target: object) -> fx.Node:
    return next(each for each in graph.nodes if each.target is target)


def apply(graph: fx.Graph, function: Callable[..., object], operand: fx.Node) -> fx.Node:
    """Adds a node that applies a function while the sum is under way."""
    with graph.inserting_before(node(graph, end_sum)):
        made = graph.call_function(function, (operand,))
    made.meta["op"] = Op("aten.neg.default", (), ("early",))
    return made


def copied(graph: fx.Graph) -> None:
    """Lets the sum have memory of its own."""
    start = node(graph, start_sum)
    start.args = (*start.args[:2], False)


def test_without_a_race_nothing_is_said() -> None:
    x = torch.tensor([0.0, 1.0, 2.0, 3.0])
    torch.testing.assert_close(ran(lambda graph: None), 2 * x.exp() - x)
    torch.testing.assert_close(ran(copied), 2 * x.exp() - x)


def test_a_read_of_what_a_sum_is_written_over() -> None:
    def change(graph: fx.Graph) -> None:
        apply(graph, NEG, node(graph, start_sum).all_input_nodes[0])

    with pytest.raises(RuntimeFailure, match=r"a race: .* -> %early .* takes memory .* %s "):
        ran(change)


def test_a_read_of_what_is_only_sent_is_none() -> None:
    def change(graph: fx.Graph) -> None:
        copied(graph)
        apply(graph, NEG, node(graph, start_sum).all_input_nodes[0])

    ran(change)


def test_a_write_to_what_is_sent() -> None:
    def change(graph: fx.Graph) -> None:
        copied(graph)
        apply(graph, NEG_, node(graph, start_sum).all_input_nodes[0])

    with pytest.raises(RuntimeFailure, match=r"%early .* writes to memory .* is being sent: .* %s"):
        ran(change)


def test_a_write_through_a_list() -> None:
    def change(graph: fx.Graph) -> None:
        copied(graph)
        operand = node(graph, start_sum).all_input_nodes[0]
        made = apply(graph, torch.ops.aten._foreach_neg_.default, operand)
        made.args = ([operand],)

    with pytest.raises(RuntimeFailure, match=r"%early .* writes to memory"):
        ran(change)


def test_a_sum_over_what_is_sent() -> None:
    def change(graph: fx.Graph) -> None:
        copied(graph)
        start = node(graph, start_sum)
        made = apply(graph, start_sum, start.all_input_nodes[0])
        made.args = (*start.args[:2], True)

    with pytest.raises(RuntimeFailure, match=r"%early .* is written over memory .* is being sent"):
        ran(change)


def test_a_result_that_is_read_before_it_is_there() -> None:
    def change(graph: fx.Graph) -> None:
        apply(graph, NEG, node(graph, start_sum))

    with pytest.raises(RuntimeFailure, match=r"%early .* doesn't wait for .* %s"):
        ran(change)


def test_what_a_sum_was_written_over_holds_the_sum() -> None:
    """As on real ranks, so that comparisons show a late reader."""

    def change(graph: fx.Graph) -> None:
        add = node(graph, torch.ops.aten.add.Tensor)
        add.args = (node(graph, start_sum).all_input_nodes[0], add.args[1])

    torch.testing.assert_close(ran(change), ran(lambda graph: None))


SHARED = """
program executable
func main {
  parameter %w: f32[2] box [4[tp * 2; 2]]
  input %x: f32[2] box [2]
  %h: f32[2] = aten.mul.Tensor(self=%w, other=%x)
  %p: f32[] = aten.sum.default(self=%h)
  %l: f32[] = comm.all_reduce(self=%p, monoid="sum", group="tp")
  %b: f32[2] = comm.broadcast(self=%w, source=0, group="tp")
  %n: f32[2] = aten.sub.Tensor(self=%w, other=%x) phase=update
  alias %n -> %w
  return %l as "loss", %b as "first" box [2], %n as "w" box [4[tp * 2; 2]]
}
"""


def test_each_member_gets_memory_of_its_own(tmp_path: Path) -> None:
    """What rank 0 sends to all is its parameter, which it overwrites afterwards."""
    write_weights(tmp_path / "w.safetensors", {"w": torch.arange(4.0)})
    with WeightFile(tmp_path / "w.safetensors") as file:
        deployment = deploy({"tp": 2}, SHARED, tp=["tp"])
        mesh = VirtualMesh(deployment, file, InPlace(lambda loss, refusal: None))
    found = mesh.run({"x": torch.ones(2)})
    assert found["first"].tolist() == [0.0, 1.0]
    assert found["w"].tolist() == [-1.0, 0.0, 1.0, 2.0]
